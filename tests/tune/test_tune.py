"""Launches that know nothing of meshtune are tuned by one command, without a spec, an option of length or an edit."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
import samples
from command_lab import Result
from jobs import processes_where
from tiny_models import save_dataset, save_model

LAUNCHES = Path(__file__).parent / "launches"
STAND_IN = Path(__file__).parents[1] / "laboratories" / "megatron_stand_in.py"
# As one types it in its folder.
LINES = {
    "ddp": "torchrun --nproc_per_node 2 train.py --batch-size 2 --grad-accum 8 --epochs 3 --save-dir checkpoints",
    "trainer": "torchrun --nproc_per_node 2 run_clm.py --config_name tiny-llama --do_train --use_cpu --block_size 64 "
    "--per_device_train_batch_size 2 --gradient_accumulation_steps 8 --num_train_epochs 3 --learning_rate 5e-4 "
    "--logging_steps 5 --save_steps 20 --output_dir output",
    "deepspeed": "deepspeed --num_gpus 2 cifar10_deepspeed.py --deepspeed --deepspeed_config ds_config.json --epochs 3",
    "accelerate": "accelerate launch --cpu --num_processes 2 train_classifier.py --cpu --per-device-batch 4 "
    "--gradient-accumulation-steps 8 --num-epochs 3",
    "megatron": "sbatch train.sbatch",
    "trl": "trl sft --model_name_or_path model --dataset_name data --use_peft --lora_r 8 --max_length 64 --bf16 false "
    "--gradient_checkpointing false --per_device_train_batch_size 1 --gradient_accumulation_steps 16 --use_cpu "
    "--dataloader_num_workers 0 --learning_rate 1e-3 --output_dir out",
}
# Micro-batch and accumulation of the line, and its global batch, as the table has them.
UNDERSTOOD = {
    "ddp": ("mbs2 ga8", 32),
    "trainer": ("mbs2 ga8", 32),
    "deepspeed": ("mbs2 ga8", 32),
    "accelerate": ("mbs4 ga8", 64),
    "megatron": ("tp4 pp2 dp2 mbs1 ga128", 256),
    "trl": ("mbs1 ga16", 16),
}
# Of the first launch, on two cores that have nothing else to do; beside other workers of pytest it takes twice as long.
MOST_S = 240.0


def contents(folder: Path) -> dict[str, str]:
    """Each file and folder below `folder`, with its bytes' digest."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in folder.rglob("*")
    }


def belongs(process: Path) -> bytes:
    """The words of a process and its folder."""
    return (process / "cmdline").read_bytes() + os.fsencode(os.readlink(process / "cwd")) + b"/"


def split(pids: list[int]) -> tuple[list[int], list[int]]:
    """Local runners' servers, and the rest."""
    servers = [pid for pid in pids if b"schedulers.local.server" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return servers, [pid for pid in pids if pid not in servers]


def tuned(
    name: str,
    folder: Path,
    *options: str,
    line: str = "",
    files: Mapping[str, str] = MappingProxyType({}),
    most_s: float = 900.0,
) -> tuple[Result, float]:
    """What the command prints, and how long it takes; the user's files are as they were, and no process is left. line:
    in place of the launch's own. files: beside those of the launch."""
    user = folder / "user"
    if name == "trl":
        save_model(user / "model")
        save_dataset(user / "data", rows=1000, words=63)
    else:
        shutil.copytree(LAUNCHES / name, user, ignore=shutil.ignore_patterns("__pycache__"))
    if name == "megatron":  # its checkout
        shutil.copy(STAND_IN, user / "pretrain_gpt.py")
    for file, text in files.items():
        (user / file).write_text(text)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "MESHTUNE_HOME": str(folder / "home"),
        "COLUMNS": "100",
    }
    command = [sys.executable, "-m", "meshtune.tuner.cli", "tune", "--yes", *options, "--"]
    before, begun = contents(user), time.monotonic()
    done = subprocess.run(
        [*command, *shlex.split(line or LINES[name])], cwd=user, env=environment, capture_output=True, text=True,
        timeout=most_s, check=False,
    )  # fmt: skip
    took_s = time.monotonic() - begun
    assert contents(user) == before, done.stdout + done.stderr
    servers, left = split(processes_where(lambda pid: b"%s/" % os.fsencode(folder) in belongs(pid)))
    for pid in servers:
        os.kill(pid, signal.SIGTERM)  # which it does by itself half a minute after the last job
    assert not left, [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left]
    return Result(done.returncode, done.stdout, done.stderr), took_s


def check_understood(name: str, told: str, line: str = "") -> None:
    """The table has the setting of the line and its global batch, and the line itself."""
    plan, batch = UNDERSTOOD[name]
    one_line = " ".join(re.sub(r"[│|]", " ", told).split())
    assert plan in one_line, told
    assert re.search(rf"global batch {batch}\b", one_line), told
    assert (line or LINES[name]).split()[-1] in one_line, told


def check_end(name: str, told: str) -> str:
    """Trials were measured, the baseline first; the end is the line with changed words, or the sentence that it stays.

    The new line; empty where it stays."""
    trials = re.findall(r"(?m)^trial (\d+): .*: ok, step ", told)
    assert "0" in trials, told
    assert len(trials) > 1, told
    assert "\nRecommended: " in told, told
    if "The launch line stays as it is." in told:
        return ""
    (line,) = re.findall(r"(?m)^Your launch line, .* faster:\n +(.*)$", told)
    old, new = shlex.split(LINES[name]), shlex.split(line)
    # DeepSpeed's words are in its file.
    assert new != old or re.search(r"(?m)^    with ds_config.json: ", told)
    assert Path(new[0]).name == old[0]
    return line


def value(words: list[str], flag: str) -> int:
    """The number after a flag, in either style."""
    (found,) = re.findall(rf"{flag}[ =](\d+)", " ".join(words))
    return int(found)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_torchrun_script_is_tuned_as_the_readme_shows(tmp_path):
    """Eight passes a step, each with an all-reduce: fewer and larger ones are about twice as fast."""
    quiet = os.getloadavg()[0] < 1
    finished, took_s = tuned("ddp", tmp_path)
    told = finished.out + finished.err
    assert finished.code == 0, told
    check_understood("ddp", finished.out)
    line = check_end("ddp", finished.out)
    assert line, told
    batch, passes = (value(shlex.split(line), flag) for flag in ("--batch-size", "--grad-accum"))
    assert batch * passes * 2 == 32
    assert batch > 2
    assert "--epochs 3" in line
    assert "--save-dir checkpoints" in line
    samples.compared("tune", shortened(finished.out))
    assert took_s < MOST_S or not quiet, told


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial/own-script.md"])
def test_a_page_has_the_launch_whose_output_it_shows(page):
    assert f"\n    meshtune tune -- {LINES['ddp']}\n" in (samples.ROOT / page).read_text()


def shortened(output: str) -> list[str]:
    """What the README shows: the first trials, and from the launch line on."""
    lines = output.splitlines()
    trials = [line for line in lines if line.startswith("trial ")][:3]
    end = next(number for number, line in enumerate(lines) if line.startswith("Your launch line, "))
    last = next(number for number, line in enumerate(lines) if line.startswith("What takes "))
    return [*trials, "...", *lines[end : last + 1]]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["trainer", "deepspeed", "accelerate"])
def test_a_launch_of_each_kind_is_tuned(tmp_path, name):
    if importlib.util.find_spec({"trainer": "transformers"}.get(name, name)) is None:
        pytest.skip(f"{name} is not installed")
    finished, _ = tuned(name, tmp_path)
    told = finished.out + finished.err
    assert finished.code == 0, told
    check_understood(name, finished.out)
    check_end(name, finished.out)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_lora_fine_tuning_by_trl_is_tuned_from_its_own_command(tmp_path, monkeypatch):
    """Sixteen passes a step of one short sequence: fewer and larger ones are several times as fast. The knobs that
    change no numbers are tried unasked, the one that the command sets among them."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    few = ["--trials", "3", "--answer", "space.micro_batch_size=[1, 8, 16]", "--answer", "confirm_rounds=1"]
    finished, _ = tuned("trl", tmp_path, *few, "--answer", "confirm=1")
    told = finished.out + finished.err
    assert finished.code == 0, told
    check_understood("trl", finished.out)
    one_line = " ".join(finished.out.split())
    assert "transformers_dataloader_num_workers 0, 2, 4" in one_line, told
    # Of one process, which has nobody to send gradients to; and those of CUDA.
    for other in ("transformers_ddp_bucket_cap_mb", "transformers_use_liger_kernel", "trl_peft_attn_implementation"):
        assert other not in one_line, told
    line = check_end("trl", finished.out)
    assert line, told
    words = shlex.split(line)
    batch, passes = value(words, "--per_device_train_batch_size"), value(words, "--gradient_accumulation_steps")
    assert batch * passes == 16
    assert batch > 1
    for kept in ("--use_peft", "--lora_r 8", "--output_dir out", "--learning_rate 1e-3"):
        assert kept in line
    assert line.count("--dataloader_num_workers") == 1


def test_a_batch_script_of_megatron_is_understood_and_shown(tmp_path):
    finished, _ = tuned("megatron", tmp_path, "--dry-run", most_s=120)
    told = finished.out + finished.err
    assert finished.code == 0, told
    check_understood("megatron", finished.out)
    one_line = " ".join(finished.out.split())
    assert "2 x 8 H100" in one_line, told
    assert "runner slurm" in one_line, told
    for words in ("#SBATCH --partition=h100", "#SBATCH --account=nlp", "pretrain_gpt.py", "--train-iters"):
        assert words in finished.out, words
    # Neither the folder of real checkpoints is loaded or written, nor a real run's length taken.
    assert "--save /scratch" not in finished.out
    assert "--load /scratch" not in finished.out
    assert "--train-iters 100000" not in finished.out


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_batch_script_is_tuned_on_slurm(slurm, tmp_path, nodes):
    """Trials are jobs of the script's own head; of several nodes each one ends when rank 0 has measured."""
    line = "torchrun --nproc_per_node 2 train.py"
    if nodes > 1:
        rendezvous = "--rdzv_backend c10d --rdzv_endpoint $MASTER_ADDR:29500"
        line = f"srun torchrun --nnodes $SLURM_NNODES --nproc_per_node 1 {rendezvous} train.py"
    script = f"""#!/bin/bash
#SBATCH --partition=main --time=01:00:00 --comment=tune
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
export PATH={Path(sys.executable).parent}:$PATH OMP_NUM_THREADS=1
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
{line} --batch-size 2 --grad-accum 8 --epochs 3 --save-dir checkpoints
"""
    cluster = f"cluster={{preset: local-cpu, nodes: {nodes}, devices_per_node: {2 // nodes}}}"
    faster = tmp_path / "faster.slurm"
    launch, options = "sbatch train.slurm", ["--answer", cluster, "--trials", "4", "--apply", str(faster)]
    finished, _ = tuned("ddp", tmp_path, *options, line=launch, files={"train.slurm": script})
    told = finished.out + finished.err
    assert finished.code == 0, told
    check_understood("ddp", finished.out, launch)
    assert "runner slurm" in " ".join(finished.out.split()), told
    assert re.search(r"(?m)^trial 1: .*: ok, step ", finished.out), told
    copy = faster.read_text()
    assert copy.startswith(script[: script.index("srun" if nodes > 1 else "torchrun")]), copy
    assert copy != script


@pytest.mark.slow
def test_a_spec_is_written_in_place_of_a_campaign(tmp_path):
    finished, _ = tuned("ddp", tmp_path, "--spec", str(tmp_path / "spec.yaml"), most_s=60)
    assert finished.code == 0, finished.out + finished.err
    assert "train.py" in (tmp_path / "spec.yaml").read_text()
    assert not re.search(r"(?m)^trial \d", finished.out)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_launcher_gets_a_changed_copy(tmp_path):
    """`bash launch.sh` with --apply: the copy has other words in the same script, which stays as it was."""
    script = (
        "#!/bin/bash\nBATCH=2\ntorchrun --nproc_per_node 2 train.py --batch-size $BATCH --grad-accum 8 --epochs 3\n"
    )
    faster = tmp_path / "faster.sh"
    finished, _ = tuned("ddp", tmp_path, "--apply", str(faster), line="bash launch.sh", files={"launch.sh": script})
    assert finished.code == 0, finished.out + finished.err
    copy = faster.read_text()
    assert copy.startswith("#!/bin/bash\n")
    assert copy != script
    assert "torchrun" in copy
