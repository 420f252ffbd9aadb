"""The commands that read, write and judge a spec: `spaces`, `import`, `estimate` and `project`. They start nothing and
store nothing."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

from meshtune.runners.capture.process import read_process
from meshtune.runners.capture.read import read_captured
from meshtune.runners.capture.session import capture as capture_calls
from meshtune.runners.dialects.base import CannotRead, Imported
from meshtune.runners.dialects.sources import read_command, read_source
from meshtune.runners.documents import plain
from meshtune.runners.untrusted_text import UnreadableText
from meshtune.search_spaces.checks import did_you_mean
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.presets import cluster_presets
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.campaign.units import seconds
from meshtune.tuner.cli.common import (
    DEFAULT_HOME,
    DatabaseOption,
    HomeOption,
    JsonOption,
    Refused,
    SpecFile,
    console,
    errors,
    open_campaign,
    plan_fields,
    print_found,
    read_spec_file,
)
from meshtune.tuner.cli.render import display
from meshtune.tuner.cli.render.predictions import exact_memory_parts, explanation_parts, projection_parts, quote_parts
from meshtune.tuner.prediction.predict import Basis, ExactMemory, check_same, estimate_exactly, learn
from meshtune.tuner.prediction.quote import explain, make_quote
from meshtune.tuner.prediction.scaling import make_projection, node_counts
from meshtune.tuner.specs.import_script import import_notes, missing, render_spec, spec_document

CalibrateOption = Annotated[
    str, typer.Option("--calibrate", help="Learn from what this campaign measured: an id, or `last`.")
]
# What names a spec, where a campaign may stand as well.
SPEC_SUFFIXES = (".yaml", ".yml", ".json")


def spaces(
    spec: SpecFile,
    why: Annotated[str, typer.Option(help="Explain one plan, such as tp=4,pp=2,zero_stage=1.")] = "",
    plans: Annotated[bool, typer.Option("--list", help="List every legal plan.")] = False,
) -> None:
    """Show the space of a spec: how many plans are legal, what rejects the others, why a plan is not legal."""
    _, _, space = read_spec_file(spec, None)
    if why:
        plan = space.complete(**plan_fields(why))
        broken = space.explain(plan)
        console.print(f"{plan.key}: {'illegal' if broken else 'legal'}", soft_wrap=True)
        for violation in broken:
            console.print(f"  {violation.constraint}: {violation.message}; {violation.reason}", soft_wrap=True)
        return
    console.print(display.space_text(space), soft_wrap=True)
    console.print(display.space_table(space))
    if plans:
        for plan in space:
            console.print(plan.key, soft_wrap=True)


def import_(
    source: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE | -- COMMAND...]", help="Launch script, configuration or log.", show_default=False
        ),
    ] = None,
    capture: Annotated[
        bool, typer.Option("--capture", help="Run COMMAND here with stand-ins that start no training; see the docs.")
    ] = False,
    command: Annotated[
        str, typer.Option("--command", metavar="TEXT", help="Read one command line, such as 'torchrun ... train.py'.")
    ] = "",
    pid: Annotated[
        int | None, typer.Option("--pid", min=1, help="Read a live process: a rank or its launcher.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A variable that the script finds.")
    ] = None,
    start: Annotated[int, typer.Option("--start", min=0, help="Which of several starts, from 1.")] = 0,
    format_: Annotated[str, typer.Option("--format", help="The program; default: what recognises the text.")] = "",
    cluster: Annotated[str, typer.Option(help="A cluster preset; nodes as the script says.")] = "",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the spec there; default: print.")] = None,
) -> None:
    """Make a campaign spec of a training that you have: its setting is the baseline, the rest stays as it is.

    It is read from a launch script, a configuration file, a log, a command line or a live process; or from what a
    launcher calls when it runs with stand-ins.
    """
    words = source or []
    if cluster and cluster not in cluster_presets():
        raise Refused(f"--cluster: no cluster preset is called {cluster!r}; {did_you_mean(cluster, cluster_presets())}")
    if (bool(words), bool(command), pid is not None).count(True) != 1:
        raise Refused("give one of FILE, --command TEXT, --pid N, or --capture -- COMMAND")
    if len(words) > 1 and not capture:
        raise Refused(f"one file is imported, not {len(words)}; a command is run by `--capture -- COMMAND`")
    given = _settings(set_ or [])
    # What the spec is named after, and imported from.
    name, told = "process", f"process {pid}"
    try:
        if capture:
            captured = capture_calls(words, given)
            imported = read_captured(captured, start, format_)
            name, told = Path(captured.script or words[0]).stem, Path(captured.script or words[0]).name
        elif pid is not None:
            imported = read_process(pid, format_)
        elif command:
            name, told = "command", "a command line"
            imported = read_command(command, given=given, number=start, dialect=format_)
        else:
            name, told = Path(words[0]).stem, Path(words[0]).name
            imported = read_source(Path(words[0]), given=given, number=start, dialect=format_)
    except (CannotRead, UnreadableText) as error:
        place = "" if capture or pid or command or str(error).startswith(told) else f"{words[0]}: "
        raise Refused(f"{place}{error}") from None
    document = spec_document(imported, name=name, cluster=cluster, here=Path.cwd())
    notes = import_notes(imported, cluster)
    text = render_spec(document, told, notes)
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text, encoding="utf-8")
        console.print(f"wrote {output}", soft_wrap=True)
    _tell(imported, notes, missing(document), output)


def _settings(words: Sequence[str]) -> dict[str, str]:
    given = {}
    for setting in words:
        name, joined, value = setting.partition("=")
        if not joined or not name.isidentifier():
            raise Refused(f"--set: must be NAME=VALUE, not {setting!r}")
        given[name] = value
    return given


def _tell(imported: Imported, notes: Sequence[str], gaps: Sequence[str], output: Path | None) -> None:
    """Notes, open questions, what is missing, and the next command, beside the spec."""
    for note in notes:
        errors.print(f"note: {note}", style="dim", markup=False, soft_wrap=True)
    for question in imported.questions:
        errors.print(f"open question: {question}", style="yellow", markup=False, soft_wrap=True)
    if gaps:
        errors.print(f"fill in before use: {', '.join(gaps)}", style="yellow", soft_wrap=True)
    spec = output or "SPEC"
    todo = []
    if imported.questions:
        todo.append(f"answer the open questions in {spec} and delete their lines")
    if gaps:
        todo.append("fill in what is missing")
    errors.print(f"next: {', '.join([*todo, ''])}meshtune spaces {spec}", markup=False, soft_wrap=True)


def estimate(
    spec: SpecFile,
    exact: Annotated[bool, typer.Option("--exact", help="Run the trainer on tensors without memory.")] = False,
    plan: Annotated[str, typer.Option(help="Why not this plan, such as tp=8,pp=4,zero_stage=1.")] = "",
    rank: Annotated[
        list[int] | None, typer.Option(min=0, help="With --exact: a rank; default: one per kind of stage.")
    ] = None,
    calibrate: CalibrateOption = "",
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
) -> None:
    """Predict what a campaign will meet: plans that fit, the best of them, its cost; or why not one plan.

    With --exact: the peak memory per pipeline stage of one plan (default: the baseline), in seconds to minutes.
    """
    _, campaign_spec, space = read_spec_file(spec, None)
    chosen = space.complete(**plan_fields(plan)) if plan else None
    if exact and calibrate:
        raise Refused("--calibrate goes with predictions, and --exact predicts nothing")
    if rank and not exact:
        raise Refused("--rank goes with --exact")
    if exact:
        found = _estimated_exactly(campaign_spec, chosen, rank or [])
        print_found(plain(found), exact_memory_parts(found), as_json)
        return
    basis = Basis()
    if calibrate:
        campaign, trials = _recorded(calibrate, home, db)
        check_same(campaign.spec, campaign_spec)
        basis = learn(campaign.label, campaign.spec, trials)
    if chosen is not None:
        explanation = explain(campaign_spec, space, chosen, basis)
        document = plain(explanation)
        # No campaign is asked, and the violations have another name than over REST.
        del document["trial"]
        print_found({"broken": document.pop("violations"), **document}, explanation_parts(explanation), as_json)
    else:
        quote = make_quote(campaign_spec, space, basis)
        print_found(plain(quote), quote_parts(quote), as_json)


def _estimated_exactly(spec: CampaignSpec, plan: Plan | None, ranks: Sequence[int]) -> ExactMemory:
    """With its duration told before it starts, and a bar on a terminal."""
    columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("")

        def show(done: float, total: float) -> None:
            if not done:
                errors.print(f"this takes about {seconds(total)}, judged by one layer; Ctrl-C ends it", soft_wrap=True)
            bar.update(task, completed=done, total=total)

        return estimate_exactly(spec, plan, ranks, show)


def project(
    source: Annotated[str, typer.Argument(metavar="CAMPAIGN|SPEC", help="A campaign to learn from, or a spec file.")],
    nodes: Annotated[str, typer.Option(help="Node counts, such as 1,2,4; default: the spec's, doubled 5 times.")] = "",
    wall: Annotated[float, typer.Option(min=0.01, max=1, help="The least efficiency that still pays.")] = 0.8,
    tokens: Annotated[float | None, typer.Option(help="Days and device-hours to train on so many.")] = None,
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
) -> None:
    """Predict the best plan, time, MFU and efficiency at other node counts, and where scaling ends."""
    if tokens is not None and not 0 < tokens < float("inf"):
        raise Refused(f"--tokens: must be positive, not {tokens:g}")
    trials: Sequence[Trial] = ()
    if source.endswith(SPEC_SUFFIXES):
        _, spec, _ = read_spec_file(Path(source), None)
        basis = Basis()
    else:
        campaign, trials = _recorded(source, home, db)
        spec = campaign.spec
        basis = learn(campaign.label, spec, trials)
    counts = node_counts(nodes, spec.cluster.nodes)
    found = make_projection(spec, basis, counts, least_efficiency=wall, tokens=tokens, trials=trials)
    print_found(plain(found), projection_parts(found), as_json)


def _recorded(campaign_id: str, home: Path, db: str) -> tuple[Campaign, list[Trial]]:
    with open_campaign(home, db, campaign_id) as (service, campaign):
        return campaign, service.store.trials(campaign.id)
