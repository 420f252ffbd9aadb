"""Hugging Face's Trainer is tuned from its start command: under torchrun, Accelerate with FSDP2, and DeepSpeed, with
the real packages, and step times that a clock of the script's own confirms."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_lab import run_campaign
from launches import launch_of

from meshtune.runners.outcome import Verdict
from meshtune.runners.programs.transformers.reader import read_launch
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.cli.spec_file import read_document
from meshtune.tuner.specs.import_script import spec_document

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "huggingface"
SCRIPT = ROOT / "tests" / "laboratories" / "hf_train.py"
ARGUMENTS = (
    f"{SCRIPT} --config_name model --block_size 32 --output_dir out --use_cpu --disable_tqdm true --logging_steps 1 "
    "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --learning_rate 1e-3 --num_train_epochs 1"
)
FSDP = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "FSDP",
    "fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"},
    "mixed_precision": "no",
    "num_machines": 1,
    "num_processes": 2,
}
DEEPSPEED = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_optimization": {"stage": 1},
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto"},
}
STEPS, WARMUP = 23, 3

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def programs(monkeypatch, tmp_path):
    """`python3`, `accelerate` and `deepspeed` are those beside this Python."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def campaign(folder: Path, command: str, files: dict[str, str], space: dict[str, Any], trials: int) -> list[Trial]:
    """The trials of a campaign that the start command imports as; its recommendation is looked at here."""
    for name, text in files.items():
        (folder / name).write_text(text)
        command = command.replace(name, str(folder / name))
    read = {str(folder / name): text for name, text in files.items()}
    read["model/config.json"] = (EXAMPLE / "model" / "config.json").read_text()
    launch = launch_of(command, files=read, directory=str(EXAMPLE), nodes=1, devices_per_node=2)
    imported = read_launch(launch)
    # Of all that the command says, only in what format the model is loaded is left to its user; and FSDP on CPUs, which
    # Accelerate leaves out, and the script under test does not.
    on_cpus = ["baseline.zero_stage"] if "accelerate" in command else []
    assert [question.path for question in imported.questions] == [*on_cpus, "workload.dtype"]
    document = spec_document(imported, name="hf", cluster="local-cpu", here=ROOT)
    del document["open_questions"]
    if on_cpus:
        document["baseline"]["zero_stage"] = 3
    assert document["global_batch_size"] == 16
    document["cluster"] = {"preset": "local-cpu", "devices_per_node": 2}
    document["space"] |= {"micro_batch_size": [2], "recompute": ["none"], **space}
    document["workload"] |= {"dtype": "float32", "steps": STEPS, "warmup_steps": WARMUP}
    document["workload"]["env"] = {"DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo"}
    document |= {
        "runner": {"kind": "local", "idle_s": 0.5},
        "budget": {"trials": trials},
        "search": "grid",
        "confirm": 0,
    }
    finished, _, tried = run_campaign(folder, document, ROOT, timeout_s=600)
    told = finished.out + finished.err + "".join(str(trial.outcome) for trial in tried)
    assert finished.code == 0, told
    assert [trial.verdict for trial in tried] == [Verdict.OK] * trials, told
    assert "Recommended: tp1 pp1 dp2 " in finished.out
    return tried


def confirm(trial: Trial, folder: Path, engine: str) -> None:
    """The script's own clock agrees, and the engine that was asked for ran."""
    measured = trial.outcome.measurement
    assert (len(measured.warmup_times_s), len(measured.step_times_s)) == (WARMUP, STEPS - WARMUP)
    assert (measured.tokens_per_step, measured.devices) == (16 * 32, 2)
    assert {"torch", "transformers", "accelerate"} <= measured.software.keys()
    (path,) = folder.glob(f"home/**/{trial.last.job_name}/clock.json")
    clock = json.loads(path.read_text())
    assert engine in clock["engines"]
    passes = trial.plan.grad_accum_steps
    assert len(clock["begins"]) == STEPS * passes
    # From the begin of the first timed step to that of the last one; the callback's ends at its end.
    span_s = clock["begins"][(STEPS - 1) * passes] - clock["begins"][WARMUP * passes]
    assert sum(measured.step_times_s[:-1]) == pytest.approx(span_s, rel=0.1)


def same_losses(trials: list[Trial], tolerance: float = 2e-3) -> None:
    """One batch trains one model, whatever the plan; the Trainer logs four digits."""
    losses = [trial.outcome.measurement.first_losses for trial in trials]
    for found in losses:
        assert len(found) == 4
        assert found == pytest.approx(losses[0], rel=tolerance)


@pytest.mark.long  # by default DeepSpeed itself runs in test_examples.py
def test_the_trainer_under_torchrun_is_tuned_from_its_start_command(tmp_path):
    trials = campaign(tmp_path, f"torchrun --nproc-per-node 2 {ARGUMENTS}", {}, {"micro_batch_size": [2, 8]}, 2)
    assert [trial.plan.micro_batch_size for trial in trials] == [2, 8]
    for trial in trials:
        confirm(trial, tmp_path, "DistributedDataParallel")
    same_losses(trials)


def test_the_examples_launch_script_imports_as_its_campaign():
    words = re.sub(r"^#.*\n|\\\n", "", (EXAMPLE / "launch.sh").read_text(), flags=re.MULTILINE)
    read = {"model/config.json": (EXAMPLE / "model" / "config.json").read_text()}
    launch = launch_of(words, files=read, directory=str(EXAMPLE), nodes=1, devices_per_node=2)
    imported = read_launch(launch)
    written = read_document(EXAMPLE / "campaign.yaml")
    assert {**imported.workload, "dtype": "float32"} == written["workload"]
    assert written["model"].items() <= imported.model.items()
    assert written["baseline"].items() <= imported.plan.items()
    assert (imported.global_batch_size, dict(imported.trial)) == (written["global_batch_size"], {})
    assert imported.space.items() <= written["space"].items()


@pytest.mark.long  # by default the Trainer runs under torchrun
@pytest.mark.parametrize("stages", [[2], [0, 2]])
def test_accelerate_with_fsdp2_is_tuned_from_its_start_command(tmp_path, stages):
    files = {"accelerate.yaml": yaml.safe_dump(FSDP)}
    command = f"accelerate launch --config_file accelerate.yaml {ARGUMENTS}"
    trials = campaign(tmp_path, command, files, {"zero_stage": stages}, len(stages) + 1)
    assert sorted(trial.plan.zero_stage for trial in trials) == [*stages, 3]
    for trial in trials:
        confirm(trial, tmp_path, "FSDPModule" if trial.plan.zero_stage else "DistributedDataParallel")
    same_losses(trials)


@pytest.mark.long
@pytest.mark.parametrize("stages", [[2], [0, 2, 3]])
def test_the_trainer_with_deepspeed_is_tuned_from_its_start_command(tmp_path, stages):
    files = {"ds_config.json": json.dumps(DEEPSPEED)}
    command = f"deepspeed --num_gpus 2 {ARGUMENTS} --deepspeed ds_config.json"
    trials = campaign(tmp_path, command, files, {"zero_stage": stages}, len(stages) + 1)
    assert sorted(trial.plan.zero_stage for trial in trials) == sorted([*stages, 1])
    for trial in trials:
        confirm(trial, tmp_path, "DeepSpeedEngine")
        assert "deepspeed" in trial.outcome.measurement.software
    same_losses([trial for trial in trials if trial.plan.zero_stage < 3])
    # Weights that are cut as they are made come from other random numbers.
    same_losses(trials, tolerance=2e-2)
