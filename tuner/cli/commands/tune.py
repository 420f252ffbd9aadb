"""`meshtune tune -- LAUNCH`: from a launch line to a faster one."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshtune.tuner.cli.common import WrongCall, console, errors, print_page
from meshtune.tuner.cli.options import ClusterFileOption, GivenLimits, HomePlace, placed

if TYPE_CHECKING:
    from rich.text import Text

    from meshtune.search_spaces.space import Space
    from meshtune.tuner.campaign.spec import CampaignSpec
    from meshtune.tuner.results.record import Record
    from meshtune.tuner.specs.launch_draft import LaunchDraft

app = typer.Typer()
# Hours of a day, of which a faster plan leaves some.
DAY_H = 24.0


@app.command(
    rich_help_panel="Start here",
    short_help="Find a faster launch line for the training that LAUNCH starts.",
    # The words of LAUNCH are its own, with or without `--` before them.
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@placed
def tune(
    launch: Annotated[
        list[str],
        typer.Argument(metavar="-- LAUNCH...", help="As it is typed: torchrun ..., bash launch.sh, sbatch job.sh."),
    ],
    place: HomePlace,
    limits: GivenLimits,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Take the guesses, and ask nothing.")] = False,
    spec: Annotated[Path | None, typer.Option("--spec", metavar="OUT", help="Write the spec there, and stop.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show quote and first job; start nothing.")] = False,
    apply: Annotated[
        Path | None, typer.Option("--apply", metavar="FILE", help="Write the launcher with the new words there.")
    ] = None,
    answer: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A value of the spec, such as global_batch_size=256.")
    ] = None,
    cluster: ClusterFileOption = None,
) -> None:
    """Find a faster launch line for a training: without a spec, and without a change to its script.

    LAUNCH is read, not run: what was understood is shown and confirmed once. Then the training runs for a few steps as
    it stands, and with other values of its flags, at the same global batch; files that it would leave go to the home's
    folder. The end is the launch line with the changed words marked.
    """
    from meshtune.runners.documents import merged
    from meshtune.runners.programs.capture.stand_in import NAMES
    from meshtune.runners.programs.dialects.base import CannotRead
    from meshtune.runners.programs.dialects.sources import read_command
    from meshtune.runners.untrusted_text import UnreadableText
    from meshtune.search_spaces.checks import problems_as, raising
    from meshtune.tuner.campaign.campaign import Home
    from meshtune.tuner.cli.spec_file import cluster_in, mistaken, stored_basis
    from meshtune.tuner.cli.telling import dry_run_lines, print_missing
    from meshtune.tuner.specs.document import InvalidSpec, parse_options
    from meshtune.tuner.specs.import_script import render_spec
    from meshtune.tuner.specs.launch_draft import devices_here, draft_launch
    from meshtune.tuner.specs.read import quoted, read_spec

    if apply is not None and apply.exists():
        raise WrongCall(f"--apply {apply}: is there already")
    with raising(WrongCall, "", CannotRead, UnreadableText):
        imported = read_command(shlex.join(launch), given=os.environ)
    answers = parse_options(answer or [], "--answer")
    if cluster is not None:
        answers["cluster"] = cluster_in(cluster)
    # Of the campaign: that of the first script in the line, else the first word.
    script = next((word for word in launch if word.endswith((".py", *NAMES["scripts"]))), launch[0])
    name = "".join(letter if letter.isalnum() else "-" for letter in Path(script).stem).strip("-") or "tune"
    devices = devices_here(place.home)
    asks = not yes and sys.stdin.isatty() and console.is_terminal
    while True:
        draft = draft_launch(
            imported, name=name, here=Path.cwd(), devices=devices, answers=answers, environment=os.environ
        )
        if not (draft.open and asks):
            break
        question = draft.open[0]
        given = typer.prompt(f"{question.path}: {question.text}\n{question.path}")
        answers |= parse_options([f"{question.path}={given}"], "the answer")
    document = merged(draft.document, limits.changes)
    text = render_spec(document, shlex.join(launch), list(draft.notes))
    if spec is not None:
        spec.write_text(text, encoding="utf-8")
        console.print(f"wrote {spec}; next: meshtune run {spec}", soft_wrap=True)
    for question in draft.open:
        errors.print(f"open: {question}", style="yellow", markup=False, soft_wrap=True)
    if spec is not None:
        return
    if draft.open:
        raise WrongCall("say what is open by --answer KEY=VALUE, or complete the spec that --spec FILE writes")
    with problems_as(partial(mistaken, "what was understood of the launch"), of=InvalidSpec):
        campaign_spec, space = read_spec(document, Home(place.home.absolute()))
        quote = quoted(document, campaign_spec, space, stored_basis(campaign_spec, place))
    print_page(_understood(launch, campaign_spec, space, draft))
    if space.plans < 2:
        raise WrongCall("there is one plan, the present one: no flag that is known changes how the program runs")
    print_missing(campaign_spec, place.home)
    if dry_run:
        print_page(dry_run_lines(campaign_spec, quote, place.home))
        return
    if asks and not typer.confirm("Go on so?", default=True):
        console.print("nothing was started; --spec FILE writes the spec, to be changed and run", soft_wrap=True)
        return
    if not (asks or yes):
        raise WrongCall("there is no terminal to ask on: --yes goes on so, --dry-run shows more, --spec FILE writes it")
    from meshtune.tuner.cli.at_home import run_here
    from meshtune.tuner.cli.telling import print_result

    record = run_here(place, campaign_spec, space, quote, text)
    print_result(record)
    print_page(_outcome(launch, record, apply))


def _understood(launch: Sequence[str], spec: CampaignSpec, space: Space, draft: LaunchDraft) -> list[Any]:
    """What is going to be measured, in a table, and what of it is a guess."""
    from meshtune.search_spaces.columns import code
    from meshtune.search_spaces.knob_values import word
    from meshtune.search_spaces.knobs import count_with_knobs
    from meshtune.search_spaces.physics.training import MODEL_UNKNOWN
    from meshtune.tuner.campaign.spec import workload_of
    from meshtune.tuner.cli.render.terminal import new_table

    table = new_table("", "", "understood", right=[""])
    cluster, workload, columns = spec.cluster, workload_of(spec), space.columns
    legal = {name: {*map(int, columns[name])} for name in space.dimensions if name in columns}
    tried = {
        name: [value for value in values if name not in legal or code(name, value) in legal[name]]
        for name, values in space.dimensions.items()
    }
    tried |= {one.knob.name: [*map(word, one.knob.values)] for one in count_with_knobs(space) if one.layouts}
    batch, plan, model = spec.global_batch_size, spec.baseline, spec.model
    rows = {
        "launch": shlex.join(launch),
        "program": workload.program or workload.framework.name,
        "devices": f"{cluster.nodes} x {cluster.devices_per_node} {cluster.device.name}, runner {spec.runner.kind}",
        "model": f"{model.layers} layers of width {model.hidden}, {model.parameters / 1e9:.3g}e9 weights"
        if model.known
        else MODEL_UNKNOWN,
        "global batch": "free" if batch is None else f"{batch}, and stays",
        "as it is": "" if plan is None else plan.key,
        "tried": "; ".join(f"{name} {', '.join(map(str, own))}" for name, own in tried.items() if len(own) > 1),
        "plans": f"{space.plans}, of which at most {spec.budget.trials} are run",
        "a trial": "ends when its steps are measured" if spec.workload.options.get("watch") else "takes a few steps",
    }
    for name, words in rows.items():
        table.add_row(name, words)
    return [table, *(f"guess: {guess}" for guess in draft.guesses), *(f"note: {note}" for note in draft.notes)]


def _outcome(launch: Sequence[str], record: Record, apply: Path | None) -> Iterator[str | Text]:
    """The launch line with its changed words marked, what it gains and means. Then the launcher's copy is written to
    `apply` where a plan is recommended that is not the present one. Raises CannotApply, OSError."""
    from rich.text import Text

    from meshtune.runners.programs.dialects.bash.launch import find_launches, script_words
    from meshtune.runners.programs.launch_words import applied, changed_options, changed_words
    from meshtune.tuner.results.launch import changed_files, changed_settings, launch_line
    from meshtune.tuner.results.recommendation import recommend

    spec, recommended = record.campaign.spec, recommend(record.campaign, record.trials)
    choice, present = recommended.choice, spec.baseline
    if choice is None or present is None or not recommended.better or choice.gain is None:
        yield "The launch line stays as it is."
        return
    plan = choice.trial.plan
    script = next((path for _, word in script_words(launch) if (path := Path(word)).is_file()), None)
    text = script.read_text(encoding="utf-8") if script else ""
    starts = find_launches(text, path=script) if script else []
    old, before = list(launch), 0
    if starts:
        start = starts[0]
        # `-m` of a module is the launcher's last word.
        program = start.script.removeprefix("-m ") if "-m" in start.launcher else start.script
        words = [*start.launcher, *program.split()]
        old, before = [*words, *start.words], len(words)
    new = launch_line(spec, plan, old)
    marked = Text(" " * 4)
    for word, changed in changed_words(old, new):
        marked.append(shlex.quote(word), "bold green" if changed else "").append(" ")
    share = choice.gain.value / (1 + choice.gain.value)
    devices = DAY_H * share * spec.cluster.devices
    yield f"\nYour launch line, {choice.gain_text} faster:"
    yield marked
    for change in changed_options(old, new):
        yield f"    changed: {change}"
    for change in changed_settings(spec, present, plan):
        yield f"    with {change}"
    told = f"What takes {DAY_H:.0f} hours takes {DAY_H * (1 - share):.1f}"
    yield f"{told}: {DAY_H * share:.1f} hours and {devices:.1f} device-hours a day are free."
    if apply is None:
        return
    copy = f"#!/bin/bash\nexec {shlex.join(new)}\n"
    if starts:
        # Another launcher is no edit of the program's words.
        kept = before if old[:before] == new[:before] else 0
        copy = applied(text, old[before:], new[kept:], lambda each: find_launches(each, path=script))
    apply.write_text(copy, encoding="utf-8")
    yield f"wrote {apply}"
    for name, own_text in changed_files(spec, present, plan).items():
        beside = apply.with_name(f"{apply.stem}.{name}")
        beside.write_text(own_text, encoding="utf-8")
        yield f"wrote {beside}: the {name} that the new plan needs; put it in the place of yours"
