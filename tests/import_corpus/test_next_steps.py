"""Every refusal of the corpus, and of the scripts below, is followed as it is written: at most two steps later there is
a spec, or legal plans of the spec that it gives, and nobody comes to the same refusal again."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from command_lab import Result, run_meshtune
from import_cases import CASES, cases

from meshtune.tuner.specs.document import parse_yaml

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("import corpus")]

_MOST = 2
TRAINING = (
    "torchrun --nproc_per_node 4 pretrain_gpt.py --num-layers 8 --hidden-size 512 --num-attention-heads 8 "
    "--seq-length 1024 --vocab-size 51200 --micro-batch-size 2 --global-batch-size 64 --bf16"
)
# What people put for the words that a step leaves open.
WORDS = {"ARGUMENTS": "", "VALUE": "1", "DEVICES": "4", "torchrun ...": TRAINING, "COMMAND": TRAINING}
# Likewise, by file: what they have, of a case of the corpus.
FILES = {
    "RUN.log": "log-megatron-dump/*.out",
    "FILE.yaml": "nemo2-recipe/*.yaml",
    "FILE.toml": "titan-toml-2024/*.toml",
}
# A program that nobody reads, in the manner of docs/how-to/workloads.md.
OWN = """
model: {preset: llama3-8b}
cluster: {preset: dgx-h100, nodes: 2}
global_batch_size: 64
workload:
  kind: command
  command: torchrun own.py --tp {tp} --micro-batch {micro_batch_size} --accumulate {grad_accum_steps}
"""
DS = '{"zero_optimization": {"stage": 1}, "bf16": {"enabled": true}}'

MEGATRON = TRAINING.partition("pretrain_gpt.py")[2]
SCRIPTS = {
    "an error before the start": f"set -e\nno-such-command\n{TRAINING}\n",
    "an error and a loop": "set -e\nno-such-command\nfor i in 1 2; do $START; done\n",
    "a variable that nothing sets": f"{TRAINING} --lr $LR\n",
    "a variable that is worked out": f"N=$(grep -c GPU none)\nB=$((8 / N))\n{TRAINING} --lr $B\n",
    "devices that are counted": f"N=$(nvidia-smi -L | wc -l)\n{TRAINING} --lr $((8 / N))\n",
    "a launcher by its path": f"/usr/bin/srun -N 1 {TRAINING}\n",
    "a program by its path": "/opt/conda/none/bin/torchrun pretrain_gpt.py --num-layers 2\n",
    "a job that is not there": "sbatch --nodes=2 job.sh\n",
    "another scheduler": "bsub -n 4 ./job.sh\n",
    "another machine": f"ssh node1 '{TRAINING}'\n",
    "a container": f"docker run --rm img bash -c '{TRAINING}'\n",
    "a file of settings that is not there": f"deepspeed pretrain_gpt.py {MEGATRON} --deepspeed_config ds.json\n",
    "settings of Accelerate that are not there": "accelerate launch --config_file acc.yaml run_clm.py --bf16\n",
    "several trainings": f"{TRAINING}\n{TRAINING} --lr 1\n",
    "a program of nobody": "torchrun --nproc_per_node 8 own.py --a 2\n",
    "nothing": "echo done\n",
}


def follow(folder: Path, said: str, words: list[str]) -> tuple[Result, list[str]]:
    """What the step of a refusal comes to, done with what people have; and its command."""
    assert "Next" in said or "--start N" in said or "without its folder" in said, said
    step = re.split(r"Next(?:, inside of it)?: ", said, maxsplit=1)[-1]
    script = next((word for word in words if (folder / word).is_file()), "")
    if "SPEC.yaml:\n\n" in step:
        spec = step.partition("SPEC.yaml:\n\n")[2]
        for base in re.findall(r'"base": "([^"]+)"', spec):
            (folder / base).parent.mkdir(parents=True, exist_ok=True)
            (folder / base).write_text("learning_rate: 1.0e-5\n")
        (folder / "SPEC.yaml").write_text(spec)
        return run_meshtune(folder, "spaces", "SPEC.yaml"), ["SPEC.yaml"]
    if "--start N" in step:
        words = ["--start", "1", *words]
    elif found := re.search(r"Write (\w+) without its folder", step):
        text = (folder / script).read_text()
        (folder / script).write_text(re.sub(rf"\S*/{found[1]}\b", found[1], text))
    elif step.startswith("the same command with"):
        given = re.findall(r"--set (\w+)=", step)
        words = [*(part for name in given for part in ("--set", f"{name}={VALUES.get(name, '1')}")), *words]
    elif step.startswith("make the file"):
        named = r"make the file ([\w./-]+)|([\w./-]+\.(?:json|ya?ml|sh))(?:, are not there|,? is not there)"
        name = re.search(named, said)[re.search(named, said).lastindex]
        made = {".json": DS, ".yaml": "distributed_type: MULTI_GPU\nnum_processes: 4\n"}
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(made.get(Path(name).suffix, f"#SBATCH --nodes=1\n{TRAINING}\n"))
        words = [name] if f"meshtune import {name}" in step else words
    elif step.startswith(("a spec with `kind: command`", "write a spec")):
        (folder / "SPEC.yaml").write_text(OWN)
        return run_meshtune(folder, "spaces", "SPEC.yaml"), ["SPEC.yaml"]
    else:
        command = re.search(r"meshtune import ((?:'[^']*'|[^\s,;`'()])+(?: (?:'[^']*'|[^\s,;`'()])+)*)", step)
        assert command, said
        words = [WORDS.get(word, word) for word in shlex.split(command[1])]
        words = [script if word == "SCRIPT" else word for word in words if word]
        # After `or`, `which` and the like there are no more words of the command.
        ends = next((at for at, word in enumerate(words) if word in ("or", "of", "which", "where", "and")), len(words))
        words = words[:ends]
        for name in FILES.keys() & set(words):
            shutil.copy(next(CASES.glob(FILES[name])), folder / name)
        if "JOB_SCRIPT" in words or (words[-1].endswith(".sbatch") and not (folder / words[-1]).exists()):
            (folder / words[-1]).parent.mkdir(exist_ok=True)
            (folder / words[-1]).write_text(f"#!/bin/bash\n#SBATCH --nodes=1\n{TRAINING}\n")
    return run_meshtune(folder, "import", *words), words


# Of variables that scripts of the corpus read.
VALUES = {"WORK_ROOT": ".", "SCRATCH_ROOT": ".", "PBS_O_WORKDIR": "."}


def followed(folder: Path, words: list[str]) -> None:
    done, refusals = run_meshtune(folder, "import", *words), list[str]()
    while done.code:
        assert len(refusals) < _MOST, refusals
        assert done.err not in refusals, f"a loop: {done.err}"
        refusals.append(done.err)
        done, words = follow(folder, done.err.strip(), words)
    if words == ["SPEC.yaml"]:
        assert "0 legal" not in done.out
    else:
        assert parse_yaml(done.out)["workload"], refusals


REFUSED = [case for case in cases() if case.expected.keys() & {"refused", "may_refuse"}]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_the_next_step_of_a_case_works(case, tmp_path):
    shutil.copytree(case.folder, tmp_path / case.name, ignore=shutil.ignore_patterns("expected.yaml"))
    followed(tmp_path / case.name, case.expected["source"])


@pytest.mark.parametrize("captured", [False, True], ids=["read", "captured"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_next_step_of_a_script_works(script, captured, tmp_path):
    (tmp_path / "run.sh").write_text(f"#!/bin/bash\n{SCRIPTS[script]}")
    followed(tmp_path, ["--capture", "--", "bash", "run.sh"] if captured else ["run.sh"])
