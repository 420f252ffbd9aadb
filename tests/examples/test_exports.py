"""What `meshtune export` writes starts as its line says, and goes as fast as the trial that measured it.

The machine is shared, so that times are compared as ratios, of runs in turns: within a factor of 3 where each runs
once, and of 1.5 for the best of three turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from command_lab import run_campaign

from meshtune.runners.json_files import write_files
from meshtune.runners.outcome import Verdict, read_result
from meshtune.runners.programs.deepspeed.workload import STEP_PATTERNS
from meshtune.runners.programs.log_reader import read_lines
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.cli.spec_file import read_document
from meshtune.tuner.results.export import choose, export_of, exported

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "laboratories" / "hf_train.py"
ARGUMENTS = f"--config_name {ROOT}/examples/huggingface/model --block_size 32 --use_cpu --disable_tqdm true"
ONE = {"runner": {"kind": "local", "idle_s": 0.5}, "budget": {"trials": 1}, "search": "grid", "confirm": 0}
STEPS, WARMUP = 12, 4

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

Run = Callable[[], float]


def campaign_of(folder: Path, document: dict[str, Any]) -> tuple[Campaign, Trial]:
    """A campaign whose baseline is all that it measures."""
    finished, campaign, trials = run_campaign(folder, document | ONE, ROOT, timeout_s=300)
    told = finished.out + finished.err + "".join(str(trial.outcome) for trial in trials)
    assert [trial.verdict for trial in trials] == [Verdict.OK], told
    return campaign, trials[0]


def written(campaign: Campaign, trial: Trial, folder: Path, format: str, **options: str) -> str:
    """The line that starts the exported setting in its folder, into which it is written."""
    export = export_of(campaign, choose(campaign, [trial], "best"), folder, options)
    view = exported(export, format)
    write_files(folder, view.files)
    assert view.command is not None
    return view.command


def output_of(line: str, folder: Path) -> str:
    """What a line that a user types says."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{line}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr


def result_of(line: str, folder: Path) -> Run:
    """Runs a job by hand, which reports by a file."""

    def run() -> float:
        output_of(line, folder)
        outcome = read_result(folder)
        assert outcome.measurement is not None
        return median(outcome.measurement.step_times_s)

    return run


def require_same_speed(trial: Trial, own: Run, exported: Run, turns: int) -> None:
    """turns: 0 takes the trial's own measurement, and the exported run once."""
    if turns:
        times = [(own(), exported()) for _ in range(turns)]
        ratio = min(time for _, time in times) / min(time for time, _ in times)
        assert 1 / 1.5 < ratio < 1.5, times
    else:
        measured = median(trial.outcome.measurement.step_times_s)
        took = exported()
        assert measured / 3 < took < measured * 3, (measured, took)


TURNS = pytest.mark.parametrize("turns", [0, pytest.param(3, marks=pytest.mark.long)])


@pytest.mark.long  # by default DeepSpeed itself runs in test_examples.py
@pytest.mark.parametrize("turns", [0, 3])
def test_the_deepspeed_line_starts_the_script_with_the_exported_file(tmp_path, turns):
    document = read_document(ROOT / "examples" / "deepspeed" / "campaign.yaml")
    document["baseline"] = {"micro_batch_size": 4, "zero_stage": 2}
    document["workload"] |= {"python": sys.executable, "steps": STEPS, "warmup_steps": WARMUP}
    # The user's own, so that the exported file has them too, and the log tells its steps.
    document["workload"]["config"] |= {
        "steps_per_print": 1,
        "log_level": "info",
        "timers": {"throughput": {"enabled": True, "synchronized": True}},
    }
    campaign, trial = campaign_of(tmp_path, document)
    line = written(campaign, trial, tmp_path / "exported", "deepspeed")
    own = written(campaign, trial, tmp_path / "own", "job")

    def step_s(line: str, folder: Path) -> Run:
        def run() -> float:
            rates = read_lines(output_of(line, folder).splitlines(), STEP_PATTERNS).timings
            assert len(rates) >= STEPS - WARMUP
            return 16 / median(rates[WARMUP:])

        return run

    require_same_speed(trial, step_s(own, tmp_path / "own"), step_s(line, tmp_path / "exported"), turns)


@TURNS
def test_the_trainers_line_measures_its_setting_again(tmp_path, turns):
    measuring = {"max_warmup_steps": 3, "min_steps": 6, "max_steps": 8}
    document = {
        "name": "exported",
        "model": {"layers": 2, "hidden": 64, "heads": 4, "ffn": 256, "vocab": 512, "seq_len": 64},
        "cluster": {"preset": "local-cpu", "devices_per_node": 2},
        "global_batch_size": 16,
        "space": {"tp": [1], "pp": [1], "zero_stage": [1], "micro_batch_size": [4]},
        "baseline": {"zero_stage": 1, "micro_batch_size": 4},
        "workload": {"kind": "torch", "measuring": measuring},
    }
    campaign, trial = campaign_of(tmp_path, document)
    line = written(campaign, trial, tmp_path / "exported", "job")
    own = written(campaign, trial, tmp_path / "own", "job")
    require_same_speed(trial, result_of(own, tmp_path / "own"), result_of(line, tmp_path / "exported"), turns)


@pytest.mark.parametrize("turns", [pytest.param(0, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)])
def test_torchrun_and_accelerate_start_a_script_of_the_trainer(tmp_path, turns):
    said = "--per_device_train_batch_size {micro_batch_size} --gradient_accumulation_steps {grad_accum_steps}"
    command = (
        f"exec python3 -m meshtune.runners.report {SCRIPT} {ARGUMENTS} {said} --max_steps {{steps}} --output_dir out"
    )
    document = {
        "name": "exported",
        "model": {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 192, "vocab": 512, "seq_len": 32},
        "cluster": {"preset": "local-cpu", "devices_per_node": 2},
        "global_batch_size": 16,
        "space": {"micro_batch_size": [4]},
        "baseline": {"micro_batch_size": 4},
        "workload": {
            "kind": "command",
            "command": command,
            "env": {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            "steps": STEPS,
            "warmup_steps": WARMUP,
        },
    }
    campaign, trial = campaign_of(tmp_path, document)
    own, exported = tmp_path / "own", tmp_path / "exported"
    launch = written(campaign, trial, own, "job")
    script = (own / "launch.sh").read_text()
    assert f"\ntorchrun --nnodes 1 --nproc_per_node 2 {SCRIPT} --config_name" in script
    line = written(campaign, trial, exported, "accelerate", script=str(SCRIPT), dtype="float32")
    # What accelerate.yaml says in a comment is the script's.
    line += f" {ARGUMENTS} --output_dir out --max_steps {STEPS} --per_device_train_batch_size 4 "
    line += "--gradient_accumulation_steps 2"

    def clocked(line: str, folder: Path) -> Run:
        def run() -> float:
            output_of(f"export MESHTUNE_DIRECTORY={folder}; {line}", folder)
            clock = json.loads((folder / "clock.json").read_text())
            assert "DistributedDataParallel" in clock["engines"]
            begins = clock["begins"][:: trial.plan.grad_accum_steps][WARMUP:]
            return median(later - earlier for earlier, later in pairwise(begins))

        return run

    require_same_speed(trial, clocked(launch, own), clocked(line, exported), turns)
    assert not (own / "result.json").exists()
