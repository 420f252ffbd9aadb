"""`meshtune fit`: does a training fit, how fast is it, and what to change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from meshtune.search_spaces.checks import InvalidValue, raising
from meshtune.tuner.cli.common import WrongCall, print_found
from meshtune.tuner.cli.options import HomePlace, JsonOption, placed

app = typer.Typer()
OnOption = Annotated[str, typer.Option("--on", metavar="DEVICES", help="8xH100, RTX 4090, p5.48xlarge; default: here.")]
SeqOption = Annotated[int | None, typer.Option("--seq", min=1, help="Tokens of a row; default: a launch's, or 4096.")]
MethodOption = Annotated[str, typer.Option("--method", help="full, lora or qlora.")]
ProgramOption = Annotated[
    str, typer.Option("--program", help="fsdp, deepspeed, megatron, torchtitan, trl, axolotl, unsloth ...")
]
BatchOption = Annotated[int | None, typer.Option("--batch", min=1, help="Rows of a step, over all devices.")]


@app.command(rich_help_panel="Start here", short_help="Does it fit, how fast, and what to change: no spec, no run.")
@placed
def fit(
    what: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|LAUNCH|FOLDER", help="Qwen/Qwen3-32B, launch.sh, ./checkpoint/; none: the largest"
        ),
    ] = "",
    *,
    place: HomePlace,
    on: OnOption = "",
    seq: SeqOption = None,
    method: MethodOption = "",
    program: ProgramOption = "fsdp",
    batch: BatchOption = None,
    micro_batch: Annotated[int | None, typer.Option(min=1, help="Judge this one; changes start from it.")] = None,
    rank: Annotated[int | None, typer.Option(min=1, help="Of the adapters; default: 16.")] = None,
    optimizer: Annotated[str, typer.Option(help="adamw, adamw_8bit, paged_adamw_8bit, adafactor, muon ...")] = "",
    lengths: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A row's tokens in each line: memory is of the longest ones."),
    ] = None,
    rollout: Annotated[
        tuple[int, int] | None, typer.Option(metavar="PROMPT ANSWER", help="Generated rows: tokens of the longest.")
    ] = None,
    price: Annotated[float | None, typer.Option(help="Of a device's hour.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Predict whether a training fits into the devices' memory, at which speed, and what to change.

    Peak by phase and by part, and the fastest safe setting; the largest micro-batch and the longest sequence; changes
    in order of what they cost. Nothing is run or written. Without a model: the largest one that fits on DEVICES.
    """
    from meshtune.runners.untrusted_text import JSON_LIMITS, read_file
    from meshtune.tuner.cli.render.fit import fit_parts, largest_parts
    from meshtune.tuner.cli.spec_file import stored_basis
    from meshtune.tuner.prediction.fit import FitAnswer
    from meshtune.tuner.prediction.fit import fit as judged
    from meshtune.tuner.specs.document import InvalidSpec
    from meshtune.tuner.specs.fit_words import document_here, largest_models, question_of, said

    if not (what or on):
        raise WrongCall("fit: give a model, a launch script or a checkpoint's folder, or --on DEVICES alone")
    with raising(WrongCall, "fit", InvalidValue, InvalidSpec):
        words = said(
            model=what,
            on=on,
            seq=seq,
            method=method,
            program=program,
            batch=batch,
            micro_batch=micro_batch,
            rank=rank,
            optimizer=optimizer,
            lengths=lengths and (read_file(lengths, JSON_LIMITS.max_bytes, regular=False).split() or [""]),
            rollout=rollout,
            price=price,
        )
        if not what:
            found = largest_models(words)
            print_found(FitAnswer(largest=found), largest_parts(found, on), as_json)
            return
        question = question_of(*document_here(words), words)
        answer = judged(replace(question, basis=stored_basis(question.spec, place)))
    print_found(FitAnswer(fit=answer), fit_parts(answer), as_json)
