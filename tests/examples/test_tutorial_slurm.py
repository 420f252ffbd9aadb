"""docs/tutorial/megatron-on-slurm.md followed on a real Slurm, with a stand-in for Megatron and pretended devices."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import samples
import yaml
from command_lab import run_meshtune
from slurm_lab import SlurmLab

ROOT = Path(__file__).parents[2]
STAND_IN = ROOT / "tests" / "laboratories" / "megatron_stand_in.py"


def prepared(folder: Path) -> None:
    """The script of the example for 4 nodes of 2 devices, and the folders that it names."""
    site = folder / "site"
    (site / "venv" / "bin").mkdir(parents=True)
    (site / "Megatron-LM").mkdir()
    shutil.copy(STAND_IN, site / "Megatron-LM" / "pretrain_gpt.py")
    (site / "venv" / "bin" / "activate").write_text(f"export PATH={Path(sys.executable).parent}:$PATH\n")
    (site / "module.sh").write_text("module() { export MODULES=$2; }\n")
    text = (ROOT / "examples" / "megatron" / "launch.sh").read_text()
    for old, new in {
        "--gpus-per-node=8": "--gpus-per-node=2\n#SBATCH --partition=main --time=01:00:00 --comment=tutorial",
        "GPUS_PER_NODE=8": "GPUS_PER_NODE=2",
        "/opt/venvs/megatron": str(site / "venv"),
        "/opt/Megatron-LM": str(site / "Megatron-LM"),
        "module load": f"source {site}/module.sh\nmodule load",
    }.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "launch.sh").write_text(text)


@pytest.mark.slurm
@pytest.mark.slow
def test_a_slurm_script_becomes_a_tuned_job_as_the_tutorial_shows(slurm: SlurmLab, tmp_path):
    """The commands of the tutorial in its order: import, spaces, estimate, --dry-run, run, best, export."""
    prepared(tmp_path)

    def meshtune(*words: str, code: int = 0) -> str:
        done = run_meshtune(tmp_path, *words)
        assert done.code == code, done.err
        return done.out + done.err

    told = meshtune("import", "launch.sh", "--cluster", "dgx-h100", "--output", "spec.yaml")
    assert "what `source " in told
    document = yaml.safe_load((tmp_path / "spec.yaml").read_text())
    assert document["runner"] == {
        "kind": "slurm", "partition": "main", "extra_lines": ["#SBATCH --comment=tutorial"]
    }  # fmt: skip
    assert document["trial"] == {"start_s": 300, "time_limit_cap_s": 3600 - 120}
    assert "is not answered" in meshtune("spaces", "spec.yaml", code=2)
    # The answers, and a budget for a test.
    del document["open_questions"]
    document["cluster"] |= {"devices_per_node": 2}
    document["space"] = {"tp": [1, 2], "pp": [2], "zero_stage": [1], "recompute": ["none", "selective"]}
    document["budget"] = {"trials": 2}
    document |= {"confirm": 1, "confirm_rounds": 1}
    document["workload"] |= {"steps": 8, "warmup_steps": 2}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(document, sort_keys=False))

    assert "legal plans of" in meshtune("spaces", "spec.yaml")
    assert "device-hours" in meshtune("estimate", "spec.yaml")
    assert "#SBATCH --comment=tutorial" in meshtune("run", "spec.yaml", "--dry-run")
    command = [sys.executable, "-m", "meshtune.tuner.cli", "run", "spec.yaml", "--home", "home"]
    environment = {**os.environ, **slurm.environment}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    samples.compared("megatron-on-slurm", samples.of_a_campaign(done.stdout))
    best = json.loads(meshtune("best", "last", "--home", "home", "--json"))
    assert best
    meshtune("export", "last", "--home", "home", "-o", "chosen", "--format", "megatron")
    assert "--tensor-model-parallel-size" in (tmp_path / "chosen" / "megatron-args.txt").read_text()
