"""What a pilot saves where jobs wait in the queue: one campaign by pilots and by one Slurm job per trial, on one real
Slurm of two nodes on this machine, in turn.

`python benchmarks/pilot.py [--delay-s 60] [--trials 10] [--trial-s 5]` (root, and Slurm's programs). Each job becomes
eligible `--delay-s` after it was submitted (`sbatch --begin`); a trial's steps take `--trial-s`. Printed: seconds from
the start of `meshtune run` to its end, trials measured, Slurm jobs, and the ratio."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "laboratories"))

from slurm_lab import SlurmLab

from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.store import Store

TRAIN = """
import sys, time
from meshtune.runners.report import report
steps = 10
time.sleep(float(sys.argv[1]))
step_s = float(sys.argv[1]) / steps
report([step_s * (1 + 0.001 * (number % 3)) for number in range(steps)])
"""

PLAN = ("{micro_batch_size}", "{zero_stage}", "{grad_accum_steps}")


def run(mode: str, options: argparse.Namespace, lab: SlurmLab, folder: Path) -> tuple[float, int, int]:
    """Seconds, trials measured, and Slurm jobs."""
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    spec = {
        "name": mode,
        "model": {"layers": 2, "hidden": 32, "heads": 2, "ffn": 64, "vocab": 128, "seq_len": 16},
        "cluster": {"preset": "local-cpu", "nodes": 2, "devices_per_node": 1},
        "global_batch_size": 4096,
        "space": {"micro_batch_size": [1 << power for power in range(11)], "zero_stage": [0, 1], "pp": [1]},
        "workload": {"kind": "command", "command": ["{python}", str(folder / "train.py"), str(options.trial_s), *PLAN]},
        "search": "random",
        "confirm": 0,
        "stop": {"chance": 0},
        "trial": {"time_limit_s": 60},
        "runner": {
            "kind": "slurm",
            "mode": mode,
            "poll_s": 0.5,
            "extra_lines": [f"#SBATCH --begin=now+{options.delay_s}"],
        },
        "budget": {"trials": options.trials},
    }
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    before, begun = len(lab.jobs()), time.monotonic()
    home = Home(folder / "home")
    command = [sys.executable, "-m", "meshtune.tuner.cli", "run", "spec.yaml", "--home", str(home.root)]
    subprocess.run(command, cwd=folder, check=True, env={**os.environ, **lab.environment}, stdout=subprocess.DEVNULL)
    took_s = time.monotonic() - begun
    with Store.open(home.database_url) as store:
        (campaign,) = store.campaigns(limit=2)
        measured = sum(trial.measurement is not None for trial in store.trials(campaign.id))
    return took_s, measured, len(lab.jobs()) - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay-s", type=int, default=60)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--trial-s", type=float, default=5.0)
    options = parser.parse_args()
    with SlurmLab(nodes=2) as lab, tempfile.TemporaryDirectory() as folder:
        found = {mode: run(mode, options, lab, Path(folder) / mode) for mode in ("pilot", "job")}
    for mode, (seconds, measured, jobs) in found.items():
        sys.stdout.write(f"{mode}: {seconds:.1f} s, {measured} trials measured, {jobs} Slurm jobs\n")
    sys.stdout.write(f"one job per trial takes {found['job'][0] / found['pilot'][0]:.2f} times as long as pilots\n")


if __name__ == "__main__":
    main()
