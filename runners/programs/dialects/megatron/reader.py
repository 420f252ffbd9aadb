"""Reads starts and logs of Megatron: model, plan, number format, and the user's other arguments, which stay.

Nothing is guessed: what is neither said nor Megatron's default for certain is an open question (decision 0036)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath

from meshtune.runners.programs.dialects.base import CannotRead, Imported, Launch
from meshtune.runners.programs.dialects.bash.launch import find_launch
from meshtune.runners.programs.dialects.megatron.command_line import CommandLine, read_command_line
from meshtune.runners.programs.dialects.megatron.log_dump import Dump, find_dump
from meshtune.runners.programs.dialects.megatron.log_dump import is_log as is_log
from meshtune.runners.programs.dialects.megatron.read_model import read_model
from meshtune.runners.programs.dialects.megatron.read_plan import derived, read_plan
from meshtune.runners.programs.dialects.megatron.read_workload import read_workload
from meshtune.search_spaces.checks import names_in

# Three of these together are Megatron's.
_CORE = names_in("""
    --num-layers --hidden-size --num-attention-heads --seq-length --max-position-embeddings --encoder-num-layers
    --micro-batch-size --global-batch-size --train-iters --tensor-model-parallel-size --pipeline-model-parallel-size
    --tokenizer-type
""")
# What a part of the program's name says that it trains; the programs pretrain_*.py, finetune_*.py and train_*.py of
# NVIDIA/Megatron-LM, core_v0.4.0 to d98e8a64, and of deepspeedai/Megatron-DeepSpeed 4efb479d.
_OTHER_MODELS: Mapping[str, str] = {
    part: kind
    for kind, parts in {
        "BERT": "bert",
        "T5": "t5",
        "UL2": "ul2",
        "a retriever": "ict biencoder orqa retro",
        "a vision model": "vision vit inpaint classify dino",
        "a multimodal model": "multimodal mimo vlm",
        "a state-space or hybrid model": "mamba hybrid",
        "by reinforcement": "rl",
    }.items()
    for part in parts.split()
}
# Arguments that only such programs have a use for.
_OTHER_ARGUMENTS: Mapping[str, str] = {
    name: kind
    for kind, names in {
        "an encoder-decoder": "--encoder-num-layers --decoder-num-layers --decoder-seq-length",
        "BERT or T5": "--mask-prob --bert-no-binary-head",
        "a retriever": "--ict-head-size --retro-add-retriever",
        "a vision model": "--vision-pretraining --img-h",
        "a hybrid model": "--hybrid-layer-pattern --hybrid-override-pattern --hybrid-attention-ratio",
        "reinforcement learning": "--perform-rl-step",
    }.items()
    for name in names.split()
}
# Megatron's tools and tasks, which train nothing or nothing from the start: parts of their paths, and their arguments.
_TOOLS = frozenset(
    {"tasks", "tools", "generate", "generation", "server", "inference", "evaluate", "eval", "checkpoint"}
)
_OF_TOOLS = frozenset(
    {"--task", "--out-seq-length", "--sample-output-file", "--genfile", "--top_p", "--top_k", "--eval_fp32"}
)
_PROGRAM = re.compile(r"(pre)?train_\w+|finetune_\w+")


def is_program(launch: Launch) -> bool:
    names = {word.partition("=")[0] for word in launch.words}
    if "bridge" in launch.script or "accelerate" in launch.script or "--model_name_or_path" in names:
        return False
    theirs = len(names & _CORE)
    stem = PurePath(launch.script).stem
    return theirs >= 3 or (bool(_PROGRAM.fullmatch(stem)) and (theirs > 0 or stem.endswith(("_gpt", "_bert", "_t5"))))


def refuse_other_models(launch: Launch) -> None:
    """Raises CannotRead, by the program's name or by arguments that no GPT has."""
    stem = PurePath(launch.script).stem.lower()
    parts = stem.split("_")
    other = next((_OTHER_MODELS[part] for part in parts if part in _OTHER_MODELS), "")
    names = {word.partition("=")[0] for word in launch.words}
    telling = sorted(names & _OTHER_ARGUMENTS.keys())
    # pretrain_gpt.py has all arguments, and takes no notice of most of these.
    if "gpt" in parts:
        telling = [name for name in telling if name.startswith(("--hybrid", "--encoder", "--decoder", "--retro-add"))]
    folders = {part for folder in PurePath(launch.script).parts for part in PurePath(folder).stem.lower().split("_")}
    tools = sorted(names & _OF_TOOLS) + (sorted(folders & _TOOLS) if parts[0] != "pretrain" else [])
    if tools:
        told = f"{launch.place}: Megatron, but {launch.script} does not pretrain ({tools[0]})"
        raise CannotRead(f"{told}. Next: the script that starts pretrain_gpt.py")
    if not other and not telling:
        return
    why = f"{launch.script} trains {other}" if other else f"{telling[0]} is for {_OTHER_ARGUMENTS[telling[0]]}"
    raise CannotRead(
        f"{launch.place}: Megatron, but {why}; the dialect reads decoder-only transformers (pretrain_gpt.py). "
        "Next: a spec with `kind: command` (docs/how-to/workloads.md)"
    )


def parse(text: str) -> Imported:
    """What a launch script, or a file of arguments, says. Raises CannotRead."""
    return read_launch(find_launch(text))


def read_launch(launch: Launch) -> Imported:
    """What one start of the program says. Raises CannotRead."""
    refuse_other_models(launch)
    if launch.script.startswith("-m "):
        raise CannotRead(
            f"{launch.place}: Megatron's arguments, but {launch.script} is no file: the workload `megatron` starts the "
            "path of one. Next: name the file that the module is, and import again"
        )
    line = read_command_line(launch)
    if line.has("--yaml-cfg"):
        raise CannotRead(
            f"{launch.place}: Megatron-LM with --yaml-cfg, whose file has all arguments. Next: import the log of a run "
            "(meshtune import RUN.log), which shows what it resolved"
        )
    return _imported(line)


def read_log(text: str) -> Imported:
    """What the last dump of arguments in a training's log says. Raises CannotRead."""
    dump: Dump = find_dump(text)
    refuse_other_models(dump.launch)
    line = read_command_line(dump.launch, dump.devices)
    for question in dump.questions:
        line.ask(*question)
    for note in dump.notes:
        line.note(note)
    return _imported(line)


def _imported(line: CommandLine) -> Imported:
    plan = read_plan(line)
    model = read_model(line)
    batch, found = derived(line, plan)
    workload = read_workload(line)
    return Imported(
        workload=workload,
        model=model,
        plan={**plan, **found},
        global_batch_size=batch,
        nodes=line.launch.nodes,
        devices_per_node=line.launch.devices_per_node,
        questions=tuple(line.questions),
        notes=tuple(dict.fromkeys(line.notes)),
    )
