"""Plain commands: scripts of every style are read by their flags, their help and their source; what a trial starts is
the user's own words, with the values of its plan in place."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_lab import run_meshtune
from hypothesis import given
from hypothesis import strategies as st
from places import TINY, cluster

from meshtune.runners.programs.dialects.base import Imported
from meshtune.runners.programs.dialects.sources import read_command
from meshtune.runners.programs.workloads.base import JobRequest, started_in
from meshtune.runners.programs.workloads.command import CommandWorkload
from meshtune.search_spaces.plan import PLAN_FIELDS, Plan
from meshtune.tuner.specs.document import parse_yaml
from meshtune.tuner.specs.import_script import spec_document
from meshtune.tuner.specs.read import read_spec

DDP = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", "-b", type=int, default=8, help="images per GPU")
parser.add_argument("--grad-accum", type=int, default=1, help="passes before a step")
parser.add_argument("--gradient-checkpointing", action="store_true")
parser.add_argument("--output-dir", default="out")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--resume")
"""
CLICK = """
import click
@click.command()
@click.option("--micro-bs", "-m", default=2, help="rows of one device")
@click.option("--accum", default=4)
@click.option("--remat/--no-remat", default=True, help="recompute in the backward pass")
@click.option("--zero", type=click.Choice(["0", "2"]), default="0")
def main(**options): ...
"""
FIELDS = """
from dataclasses import dataclass, field
from transformers import HfArgumentParser
@dataclass
class Settings:
    batch: int = field(default=4, metadata={"help": "per device"})
    accumulation_steps: int = 2
    sequence_parallel: bool = False
    tp: int = 2  # ranks that share a layer
    ckpt_dir: str = "/data/ckpt"
"""
DIVIDED = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=256, help="images of all GPUs together")
parser.add_argument("--accum-iter", type=int, default=1)
args = parser.parse_args()
args.batch_size = int(args.batch_size / ngpus_per_node)
"""
CONSTANTS = """
out_dir = "out"
batch_size = 12  # the micro-batch
gradient_accumulation_steps = 5 * 8
exec(open("configurator.py").read())
gradient_accumulation_steps //= ddp_world_size
"""
FIRE = """
import fire
def train(data: str, batch_size: int = 128, micro_batch_size: int = 4):
    accumulate = batch_size // micro_batch_size
fire.Fire(train)
"""
OWN = """
from setup import parser
parser.add_argument("--lr", type=float)
"""
HERE = {"micro_batch_size": 4, "recompute": "none"}
SWITCH = {"{recompute}": {"none": None, "full": "--gradient-checkpointing"}}
# Style -> source, command, elements of the draft's command behind the script, and other parts of the draft.
STYLES: Mapping[str, tuple[str, str, list[Any], dict[str, Any]]] = {
    "argparse under torchrun": (
        DDP,
        "torchrun --standalone --nproc-per-node 8 train.py --batch-size 4 --grad-accum=8 --epochs 3 --resume x.pt",
        [
            "--batch-size",
            "{micro_batch_size}",
            "--grad-accum={grad_accum_steps}",
            "--epochs",
            "3",
            "--resume",
            "x.pt",
            SWITCH,
        ],
        {
            "plan": HERE,
            "batch": 256,
            "head": ["torchrun", "--standalone", "--nproc-per-node", "{devices_per_node}", "train.py"],
            "trial_arguments": {"--output-dir": "{directory}/output_dir"},
            "space": {"micro_batch_size": [1, 2, 4, 8, 16, 32], "recompute": ["none", "full"]},
            "guessed": ["baseline.micro_batch_size", "global_batch_size"],
        },
    ),
    "a short name, a switch that is on and one process": (
        DDP,
        "python -u train.py -b 4 --gradient-checkpointing --grad-accum 2 --output-dir /data/run",
        [
            "-b",
            "{micro_batch_size}",
            {"{recompute}": {"none": None, "full": "--gradient-checkpointing"}},
            "--grad-accum",
            "{grad_accum_steps}",
            "--output-dir",
            "/data/run",
        ],
        {
            "plan": {"micro_batch_size": 4, "recompute": "full"},
            "batch": 8,
            "head": ["python", "-u", "train.py"],
            "start": None,
            "trial_arguments": {"--output-dir": "{directory}/output_dir"},
        },
    ),
    "click, with a switch that turns off and choices": (
        CLICK,
        "python -m torch.distributed.run --nproc_per_node=2 train.py -m 2 --no-remat --zero 2",
        [
            "-m",
            "{micro_batch_size}",
            {"{recompute}": {"none": "--no-remat", "full": None}},
            "--zero",
            "{zero_stage}",
            {"{grad_accum_steps}": {"1": ["--accum", "1"], "2": ["--accum", "2"], "4": None, "8": ["--accum", "8"]}},
        ],
        {
            "plan": {"micro_batch_size": 2, "recompute": "none", "zero_stage": 2},
            "batch": 16,
            "head": ["python", "-m", "torch.distributed.run", "--nproc_per_node={devices_per_node}", "train.py"],
            "space": {"micro_batch_size": [1, 2, 4, 8], "recompute": ["none", "full"], "zero_stage": [0, 2]},
        },
    ),
    "fields of a dataclass": (
        FIELDS,
        "torchrun --nproc-per-node 4 train.py --batch 3",
        [
            "--batch",
            "{micro_batch_size}",
            {
                "{grad_accum_steps}": {
                    str(n): ["--accumulation_steps", str(n)] if n != 2 else None for n in (1, 2, 3, 6)
                }
            },
            {"{sequence_parallel}": {"false": None, "true": "--sequence_parallel"}},
            {"{tp}": {"1": ["--tp", "1"], "2": None, "4": ["--tp", "4"]}},
        ],
        {
            "plan": {"micro_batch_size": 3, "tp": 2, "sequence_parallel": False},
            "batch": 12,
            "trial_arguments": {"--ckpt_dir": "{directory}/ckpt_dir"},
        },
    ),
    "a batch that the source divides": (
        DIVIDED,
        "torchrun --nproc_per_node=8 train.py --batch-size 64 --accum-iter 2",
        [
            "--batch-size",
            {"{micro_batch_size}": {str(n): str(8 * n) for n in (1, 2, 4, 8, 16)}},
            "--accum-iter",
            "{grad_accum_steps}",
        ],
        {"plan": {"micro_batch_size": 8}, "batch": 128},
    ),
    "constants of nanoGPT": (
        CONSTANTS,
        "torchrun --nproc_per_node=8 train.py --batch_size=16 --gradient_accumulation_steps=16",
        [
            "--batch_size={micro_batch_size}",
            {"{grad_accum_steps}": {str(n): f"--gradient_accumulation_steps={8 * n}" for n in (1, 2, 4, 8, 16, 32)}},
        ],
        {"plan": {"micro_batch_size": 16}, "batch": 256},
    ),
    "a command under mpirun": (
        "",
        "mpirun -np 4 python train.py --per_device_batch_size=8 --global_batch_size 64",
        ["--per_device_batch_size={micro_batch_size}", "--global_batch_size", "{global_batch_size}"],
        {"plan": {"micro_batch_size": 8}, "batch": 64, "start": None},
    ),
    "fire, whose accumulation is worked out": (
        FIRE,
        "torchrun --nproc_per_node 4 train.py x --batch_size 64 --micro_batch_size 2",
        ["x", "--batch_size", "{global_batch_size}", "--micro_batch_size", "{micro_batch_size}"],
        {"plan": {"micro_batch_size": 2}, "batch": 64},
    ),
    "accelerate, and flags that no script shows": (
        "",
        "accelerate launch --num_processes 2 --mixed_precision bf16 train.py --bs 2 --accum 4 --act-ckpt --x 1",
        [
            "--bs",
            "{micro_batch_size}",
            "--accum",
            "{grad_accum_steps}",
            {"{recompute}": {"none": None, "full": "--act-ckpt"}},
            "--x",
            "1",
        ],
        {
            "plan": {"micro_batch_size": 2, "recompute": "full"},
            "batch": 16,
            "head": [
                "accelerate",
                "launch",
                "--num_processes",
                "{world_size}",
                "--mixed_precision",
                "bf16",
                "train.py",
            ],
        },
    ),
    "a flag of the batch alone": (
        OWN,
        "torchrun --nproc_per_node 2 train.py --batch-size 32 --lr 0.1",
        ["--batch-size", "32", "--lr", "0.1"],
        {
            "plan": {"micro_batch_size": 32},
            "batch": 64,
            "fixed": {"micro_batch_size": 32},
            "space": {"micro_batch_size": [32]},
            "asked": "no flag that is known changes how train.py runs",
        },
    ),
}


def read(folder: Path, source: str, command: str) -> Imported:
    (folder / "train.py").write_text(source)
    return read_command(command, given={})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("style", STYLES)
def test_a_script_of_each_style_becomes_its_draft(style, folder):
    source, command, behind, more = STYLES[style]
    imported = read(folder, source, command)
    workload = imported.workload
    own = workload["command"]
    at = own.index("train.py") + 1
    assert own[at:] == behind
    assert own[:at] == more.get("head", own[:at])
    assert workload.get("start") == more.get("start", "node")
    assert workload["watch"] is True
    assert workload.get("trial_arguments") == more.get("trial_arguments")
    assert workload.get("fixed") == more.get("fixed")
    said = {name: value for name, value in imported.plan.items() if name not in ("dp", "grad_accum_steps")}
    assert (said, imported.global_batch_size) == (more["plan"], more["batch"])
    assert imported.space == more.get("space", imported.space)
    asked = [question for question in imported.questions if not question.guessed]
    assert all(more.get("asked", "-") in str(question) for question in asked)
    if "guessed" in more:
        assert [question.path for question in imported.questions] == more["guessed"]


def started(imported: Imported, plan: Plan, devices: int, folder: Path) -> list[str]:
    """The words of a plan's real launch."""
    workload = CommandWorkload({name: value for name, value in imported.workload.items() if name != "kind"})
    model, where = replace(TINY, seq_len=1), cluster(1, devices)
    job = workload.materialize(
        JobRequest("t", model, plan, where, folder / "job", seed=1, time_limit_s=60.0, real=True)
    )
    return list(started_in(job.command)[1])


def baseline(imported: Imported, devices: int) -> Plan:
    axes = {name: value for name, value in imported.plan.items() if name in PLAN_FIELDS}
    plan = Plan(**{**axes, "dp": 1})
    dp = devices // (plan.tp * plan.pp * plan.cp)
    return replace(plan, dp=dp, grad_accum_steps=imported.global_batch_size // (plan.micro_batch_size * dp))


@pytest.mark.parametrize("style", STYLES)
def test_the_baseline_starts_the_users_own_words(style, folder):
    source, command, *_ = STYLES[style]
    imported = read(folder, source, command)
    # mpirun says no nodes.
    devices, words = imported.devices_per_node or 4, shlex.split(command.removeprefix("mpirun -np 4 "))
    assert started(imported, baseline(imported, devices), devices, folder) == words


@pytest.mark.parametrize("style", STYLES)
def test_each_draft_is_a_legal_spec_once_it_is_answered(style, folder):
    source, command, _, more = STYLES[style]
    imported = read(folder, source, command)
    devices = imported.devices_per_node or 4
    document = spec_document(imported, name="own", cluster="", here=folder)
    document.pop("open_questions", None)
    document["model"] = {"preset": "llama3.2-1b", "seq_len": 128}
    document["cluster"] = {"preset": "dgx-h100", "nodes": 1, "devices_per_node": devices}
    spec, space = read_spec(document, None)
    assert spec.baseline is not None
    assert not space.explain(baseline(imported, devices))
    assert len(space) > 1 or "asked" in more


def test_another_plan_changes_its_words_alone(folder):
    source, command, *_ = STYLES["argparse under torchrun"]
    imported = read(folder, source, command)
    plan = replace(baseline(imported, 8), micro_batch_size=8, grad_accum_steps=4, recompute="full")
    words = command.replace("--batch-size 4", "--batch-size 8").replace("accum=8", "accum=4")
    assert started(imported, plan, 8, folder) == shlex.split(f"{words} --gradient-checkpointing")


@pytest.mark.parametrize(
    ("declared", "given", "words"),
    [
        ('"--recompute", choices=["none", "selective", "full"]', "--recompute full", {"none", "selective", "full"}),
        ('"--gradient_checkpointing", type=str', "--gradient_checkpointing=True", {"none", "full"}),
        ('"--remat", action=argparse.BooleanOptionalAction, default=True', "--remat", {"none", "full"}),
        ('"--act-ckpt", type=int, default=1', "", {"none", "full"}),
    ],
)
def test_what_recomputes_is_told_in_the_words_of_its_flag(declared, given, words, folder):
    source = f"import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument({declared})\n"
    imported = read(folder, source, f"python train.py -b 2 {given}")
    (choice,) = (each["{recompute}"] for each in imported.workload["command"] if isinstance(each, dict))
    assert set(choice) == words
    assert imported.plan["recompute"] == "full"
    assert started(imported, baseline(imported, 1), 1, folder) == shlex.split(f"python train.py -b 2 {given}")


def test_a_value_that_the_script_does_not_say_is_asked(folder):
    (folder / "train.py").write_text(DDP)
    (folder / "run.sh").write_text("torchrun --nproc-per-node 2 train.py --batch-size $SIZE --grad-accum 2\n")
    done = run_meshtune(folder, "import", "run.sh")
    assert done.code == 0, done.err
    spec = parse_yaml(done.out)
    assert spec["baseline"]["micro_batch_size"] is None
    assert spec["workload"]["command"] is None
    assert any("--batch-size $SIZE" in line and "not known here" in line for line in spec["open_questions"])


@given(st.text(max_size=60))
def test_any_source_is_read_or_left(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "train.py"
    path.write_text(f"parser.add_argument({text}\n)\n@dataclass\nclass A:\n    x: int = {text}\n", errors="replace")
    assert read_command(f"python {path} --batch-size 2", given={}).plan["micro_batch_size"] == 2


def test_a_guess_is_shown_with_the_help_of_its_flag(folder):
    imported = read(folder, DDP, "torchrun --nproc-per-node 2 train.py -b 4")
    texts = [str(question) for question in imported.questions]
    assert texts == [
        'baseline.micro_batch_size: micro_batch_size 4 by -b 4 ("images per GPU")',
        'global_batch_size: grad_accum_steps 1 by the default of --grad-accum ("passes before a step")',
    ]


@pytest.mark.parametrize(
    ("source", "command", "path", "told"),
    [
        ("", "--batch-size 4 --mbs 2", "baseline.micro_batch_size", "--batch-size 4 and --mbs 2 may both say it"),
        ("", "--batch-size many", "baseline.micro_batch_size", "--batch-size many: what micro_batch_size is by it"),
        (
            DIVIDED.replace("of all GPUs together", "per GPU"),
            "",
            "baseline.micro_batch_size",
            "its help says of one rank",
        ),
        (DIVIDED, "--batch-size 63", "baseline.micro_batch_size", "the source divides it by ngpus_per_node"),
    ],
)
def test_what_contradicts_itself_is_asked_and_not_guessed(source, command, path, told, folder):
    imported = read(folder, source, f"torchrun --nproc-per-node 8 train.py {command} --accum-iter 2")
    asked = [question for question in imported.questions if question.path == path]
    assert [told in question.text for question in asked] == [True]
    assert not asked[0].guessed
    assert "micro_batch_size" not in imported.plan


def test_a_script_that_starts_its_processes_has_the_machines_devices(folder):
    imported = read(folder, "import torch.multiprocessing as mp\nmp.spawn(work)\n", "python train.py --batch-size 4")
    assert (imported.workload["start"], imported.devices_per_node) == ("node", None)
    assert (imported.plan["micro_batch_size"], imported.global_batch_size) == (4, None)


def test_numbers_of_any_size_are_read_at_once(folder):
    words = "--global-batch-size 999999996 --accum 2"
    imported = read(folder, "", f"torchrun --nproc-per-node 3 train.py {words}")
    assert imported.global_batch_size == 999_999_996


@pytest.mark.parametrize("count", ["gpu", "auto"])
def test_devices_that_the_launcher_counts_are_the_machines(count, folder):
    imported = read(folder, DDP, f"torchrun --nproc-per-node {count} train.py -b 4")
    assert imported.devices_per_node is None
    assert imported.workload["command"][:4] == ["torchrun", "--nproc-per-node", count, "train.py"]


def test_ranks_of_several_nodes_are_started_by_the_runner(folder):
    words = "--nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint n0:29500"
    imported = read(folder, DDP, f"torchrun {words} train.py -b 4 --grad-accum 2")
    assert imported.workload["command"][:3] == ["python", "train.py", "-b"]
    assert "start" not in imported.workload
    assert (imported.nodes, imported.devices_per_node, imported.global_batch_size) == (2, 8, 128)


def test_flags_of_a_module_beside_the_script_are_known(folder):
    (folder / "setup.py").write_text(DDP)
    imported = read(folder, OWN, "torchrun --nproc-per-node 2 train.py -b 4")
    assert {"{recompute}": {"none": None, "full": "--gradient-checkpointing"}} in imported.workload["command"]


def test_the_models_shapes_come_from_its_folder_or_the_cache(folder, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(folder / "hf"))
    config = (
        '{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, '
        '"intermediate_size": 128, "vocab_size": 256, "tie_word_embeddings": false}'
    )
    for place in ("own", "hf/hub/models--some--llama/snapshots/1"):
        (folder / place).mkdir(parents=True)
        (folder / place / "config.json").write_text(config)
    for name in ("own", "some/llama"):
        imported = read(folder, OWN, f"python train.py --model {name} --seq-len 512 --batch-size 2")
        assert (imported.model["layers"], imported.model["hidden"], imported.model["seq_len"]) == (2, 64, 512)
    imported = read(folder, OWN, "python train.py --model resnet50 --batch-size 2")
    assert imported.model == {}
    assert not [question for question in imported.questions if question.path.startswith("model")]


def test_the_command_line_writes_the_draft(folder):
    source, command, behind, _ = STYLES["argparse under torchrun"]
    (folder / "train.py").write_text(source)
    (folder / "launch.sh").write_text(f"#!/bin/bash\nexport NCCL_DEBUG=WARN\n{command}\n")
    for words in (["--command", command], ["launch.sh"]):
        done = run_meshtune(folder, "import", *words)
        assert done.code == 0, done.err
        spec = parse_yaml(done.out)
        assert spec["workload"]["command"][5:] == behind
        assert spec["baseline"] == HERE
        assert len(spec["open_questions"]) == 2
        assert "model" not in spec
        assert "fill in before use: cluster" in done.err
    assert spec["workload"]["env"] == {"NCCL_DEBUG": "WARN"}


WORD = st.from_regex(r"[A-Za-z0-9_./:{}%+,=-]{1,12}", fullmatch=True).filter(lambda word: not word.endswith(".py"))


@given(st.lists(WORD, max_size=6), st.lists(WORD, max_size=6), st.integers(1, 64), st.integers(1, 16))
def test_unknown_words_stay_as_they_are(tmp_path_factory, before, behind, size, passes):
    folder = tmp_path_factory.getbasetemp()
    # Names that are known are not what is asked here, nor behind a section.
    before, behind = ([word.replace(".", ".z") for word in each] for each in (before, behind))
    before, behind = ([f"--z{word}" if word[0] == "-" else f"z{word}" for word in each] for each in (before, behind))
    words = ["train.py", *before, "--batch-size", str(size), f"--grad-accum={passes}", *behind]
    imported = read_command(shlex.join(["python", *words]), given={})
    assert started(imported, baseline(imported, 1), 1, folder) == ["python", *words]
    assert {"{micro_batch_size}", "--grad-accum={grad_accum_steps}"} <= set(imported.workload["command"])


@pytest.mark.parametrize("word", ["--z-.B=Bz-/B", "optim.b=0.9", "--model.o=a/b"])
def test_a_letter_in_a_section_is_no_short_name(word):
    imported = read_command(f"python train.py {word} -b 4 --grad-accum 2", given={})
    assert word in imported.workload["command"]
    assert imported.plan["micro_batch_size"] == 4


@pytest.mark.parametrize(("flag", "warned"), [("--save-dir", False), ("--tag", True)])
def test_files_that_no_flag_leads_are_told(folder, flag, warned):
    source = f'import torch\nparser.add_argument("{flag}", default="checkpoints")\ntorch.save(1, "best.pt")\n'
    imported = read(folder, source, "python train.py --batch-size 4 --grad-accum 2")
    told = [question.text for question in imported.questions if "saves files" in question.text]
    assert (told != [], imported.workload.get("trial_arguments") is None) == (warned, warned)
