"""The commands over what was measured, and those that measure some of it once more by fresh jobs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from meshtune.runners.json_files import write_files
from meshtune.runners.registry import SCHEDULERS
from meshtune.tuner.cli.common import WrongCall, console, errors, print_found, print_json
from meshtune.tuner.cli.options import CampaignId, JsonOption, Place, placed

app = typer.Typer()
PANEL = "Results"
# As `tuner.results.export` has them, which is dear to load (tests/tuner/test_usage.py).
FORMATS = ", ".join(
    (
        *("json", "job", "megatron", "deepspeed", "torchtitan", "accelerate"),
        *(name for name, place in SCHEDULERS.items() if place.script),
    )
)
DEFAULT_URL = "http://127.0.0.1:8000"
_MEANT = "A campaign: id, its beginning, or `last`; or a trial of it, such as last/7."
_END = "--"
# Where the words behind `--` are kept while Typer reads those before it.
_OWN = "meshtune.sbatch.arguments"


@app.command(rich_help_panel=PANEL, short_help="Print the best plans and the gain over the baseline.")
@placed
def best(
    place: Place,
    campaign: CampaignId = "last",
    top: Annotated[int, typer.Option(min=1, help="How many settings.")] = 10,
    as_json: JsonOption = False,
) -> None:
    """Print the best plans measured, with intervals, memory and the gain over the baseline."""
    from meshtune.runners.documents import plain
    from meshtune.tuner.cli.telling import print_best
    from meshtune.tuner.results.ranking import rank
    from meshtune.tuner.results.views import best_view

    record = place.record(campaign)
    if as_json:
        print_json(plain(best_view(record.campaign, rank(record.campaign, record.trials), top)))
    else:
        print_best(record.campaign, record.trials, top)


@app.command(rich_help_panel=PANEL, short_help="Compare two campaigns or trials: specs, plans, figures.")
@placed
def diff(
    first: Annotated[str, typer.Argument(metavar="A", help=_MEANT, show_default=False)],
    second: Annotated[str, typer.Argument(metavar="B", help="The same.", show_default=False)],
    place: Place,
    as_json: JsonOption = False,
) -> None:
    """Say what two campaigns or trials differ in: specs, plans, verdicts, figures, and where the time of a step goes.

    Of a campaign its recommended plan is meant. Speeds have a ratio where model, batch, devices and the like are equal.
    """
    from meshtune.tuner.cli.render.analysis import diff_parts
    from meshtune.tuner.cli.telling import trial_of
    from meshtune.tuner.results import comparison

    meant = []
    for words in (first, second):
        name, slash, number = words.partition("/")
        record = place.record(name)
        meant.append((record, trial_of(record, number) if slash else None))
    found = comparison.diff(*meant)
    print_found(found, diff_parts(found), as_json)


@app.command(rich_help_panel=PANEL, short_help="Write a plan in the words of a program or scheduler.")
@placed
def export(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the files.")],
    place: Place,
    campaign: CampaignId = "last",
    trial: Annotated[
        str,
        typer.Option(help="`recommended`, `fastest-once`, `fastest-confirmed`, `best`, `worst`, a trial or a plan."),
    ] = "recommended",
    format: Annotated[str, typer.Option(help=f"{FORMATS}, or a package's scheduler; default: json and job.")] = "",
    option: Annotated[
        list[str] | None, typer.Option(help="name=value for the format's scheduler or program, such as queue=gpu.")
    ] = None,
) -> None:
    """Write a plan as setting.json and as the launch with its values, or in another program's words."""
    from meshtune.runners.documents import MISSING
    from meshtune.search_spaces.checks import InvalidValue
    from meshtune.tuner.results import export as exports
    from meshtune.tuner.specs.document import parse_options

    record = place.record(campaign)
    entry = exports.choose(record.campaign, record.trials, trial)
    given = parse_options(option or [])
    form = exports.FORMATS.get(format)
    if given and (not format or (form is not None and not form.program and not form.script)):
        formats = f"--format {format} has" if format else "the formats json and job have"
        raise WrongCall(f"--option {next(iter(given))}: {formats} no options; a scheduler's or program's format has")
    setting = exports.export_of(record.campaign, entry, output, given)
    try:
        view = exports.exported(setting, format)
    except InvalidValue as error:
        mistakes = []
        for problem in error.problems:  # each by the option that mends it, where it is one of an option
            if problem.message == MISSING:
                mistakes.append(f"needs --option {problem.path}=...")
            else:
                mistakes.append(f"--option {problem}" if problem.path.partition(".")[0] in given else str(problem))
        raise WrongCall(f"--format {format}: {'; '.join(mistakes)}") from None
    for path in write_files(output, view.files):
        console.print(f"wrote {path}", soft_wrap=True)
    if view.command is not None:
        errors.print(f"start it in {output}: {view.command}", soft_wrap=True)
    if view.note:
        errors.print(view.note, style="yellow", soft_wrap=True)
    if view.handover is not None:
        errors.print(f"warning: {view.handover.warning}.", style="yellow", soft_wrap=True)
        errors.print(f"{view.handover.offer}:\n    {view.handover.confirm}{place.option}", soft_wrap=True)


@app.command(rich_help_panel=PANEL, short_help="Say what the trials teach: knobs, failures, why the best win.")
@placed
def analyze(place: Place, campaign: CampaignId = "last", as_json: JsonOption = False) -> None:
    """Say what the trials teach: the knobs that matter, failures, what was expected, why the best plans win."""
    from meshtune.tuner.cli.render.analysis import analysis_parts

    with place.there.opened(campaign) as chosen:
        analysis = chosen.analysis()
    print_found(analysis, analysis_parts(analysis), as_json)


@app.command(rich_help_panel=PANEL, short_help="Measure the winner and the baseline with another program.")
@placed
def confirm(
    spec: Annotated[
        Path, typer.Option("--with", help="YAML with the other program as `workload`, and `runner` if it differs.")
    ],
    place: Place,
    campaign: CampaignId = "last",
    trial: Annotated[
        str, typer.Option(help="`recommended`, `fastest-once`, `fastest-confirmed`, `best` or a trial's number.")
    ] = "recommended",
    as_json: JsonOption = False,
) -> None:
    """Measure a plan and the baseline with another program, in a campaign of the two, and compare again.

    Without a measured baseline the best other plan takes its place. Exit code 0: the plan is faster there too; 1: it
    is not, or was not measured.
    """
    from meshtune.tuner.cli.render.analysis import handover_lines
    from meshtune.tuner.cli.spec_file import yaml_file
    from meshtune.tuner.results.export import FORMATS, NothingToExport, choose
    from meshtune.tuner.results.handover import check_handover, rival_of
    from meshtune.tuner.specs.confirming import confirming_document
    from meshtune.tuner.specs.document import InvalidSpec

    with place.there.opened(campaign) as chosen:
        record = chosen.record()
        source = record.campaign
        winner = choose(source, record.trials, trial)
        rival = rival_of(source, record.trials, winner)
        if rival is None:
            words = "no measured plan of another layout and the same size to compare with; other programs know no knobs"
            raise NothingToExport(f"campaign {source.id} has {words}")
        refusal = f"{spec}: {source.id} cannot be confirmed with it:\n"
        other = yaml_file(spec, refusal)
        try:
            document = confirming_document(other, source.spec, winner.trial.plan, rival.trial.plan, chosen.home)
        except InvalidSpec as error:
            raise WrongCall(f"{refusal}{error}") from None
        ended = chosen.another(document, quiet=as_json)
    there = ended.campaign
    if not as_json:
        console.print(f"{there.id} is {there.state}: {there.reason}", soft_wrap=True)
    if not there.state.final:
        raise WrongCall(f"{there.id} is {there.state}: {there.reason}; `meshtune resume {there.id}` goes on")
    check = check_handover(source, winner, rival, there, ended.trials)
    print_found(check, handover_lines(check), as_json)
    if not as_json and check.confirmed and (kind := there.spec.workload.kind) in FORMATS:
        words = f"meshtune export {there.id} --format {kind} --output FOLDER"
        console.print(f"to export it as it ran there: {words}", soft_wrap=True)
    raise typer.Exit(0 if check.confirmed else 1)


@app.command(rich_help_panel=PANEL, short_help="Write campaigns as one HTML file with figures, for print.")
@placed
def report(
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file.")],
    place: Place,
    campaigns: Annotated[list[str] | None, typer.Argument(help="Campaign ids or beginnings; default: last.")] = None,
) -> None:
    """Write campaigns as one HTML file with figures and tables, which needs no network and prints well."""
    from meshtune.runners.extras import require_extra

    require_extra("report", "a report")
    from meshtune.tuner.results.report.campaigns import render_report

    by_id = {record.campaign.id: record for record in map(place.record, campaigns or ["last"])}
    _write(output, render_report([(record.campaign, record.trials) for record in by_id.values()]).encode())


@app.command("export-data", rich_help_panel=PANEL, short_help="Write every trial as CSV, Parquet or JSON.")
@placed
def export_data(
    place: Place,
    campaign: CampaignId = "last",
    format: Annotated[Literal["csv", "parquet", "json"], typer.Option(help="json has every step and attempt.")] = "csv",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File; default: print, but for parquet.")
    ] = None,
) -> None:
    """Write the trials of a campaign as a table with a row for each, or the whole campaign as JSON."""
    from meshtune.runners.extras import require_extra
    from meshtune.tuner.results.table import TableFormat, data_of

    if format == "parquet":
        require_extra("parquet", "writing Parquet")
        if output is None:
            raise WrongCall("--format parquet: needs -o FILE: it is no text")
    record = place.record(campaign)
    body = data_of(record.campaign, record.trials, TableFormat(format))
    if output is None:
        sys.stdout.write(body.decode())
    else:
        _write(output, body)


def _write(output: Path, body: bytes) -> None:
    output.write_bytes(body)
    console.print(f"wrote {output}", soft_wrap=True)


@app.command(rich_help_panel=PANEL, short_help="Measure plans again: does their order hold?")
@placed
def rerun(
    place: Place,
    campaign: CampaignId = "last",
    trials: Annotated[
        list[str] | None, typer.Argument(help="Numbers, or words as of `export --trial`; default: best worst.")
    ] = None,
) -> None:
    """Measure plans once more, by fresh jobs, and say whether their order holds.

    Stores nothing; with --server these are second runs of the campaign."""
    from meshtune.tuner.campaign.units import number
    from meshtune.tuner.results.export import choose

    again: list[tuple[float, float]] = []
    with place.there.opened(campaign) as chosen:
        record = chosen.record()
        entries = [choose(record.campaign, record.trials, name) for name in trials or ["best", "worst"]]
        named = {entry.rank: entry.trial for entry in entries}
        for trial, outcome in chosen.remeasure(list(named.values())):
            before = trial.measurement
            if before is None or outcome.measurement is None:
                errors.print(f"trial {trial.number}: {outcome.verdict}: {outcome.reason}", style="red")
                raise typer.Exit(1)
            again.append((before.tokens_per_s_per_device, outcome.measurement.tokens_per_s_per_device))
            console.print(
                f"trial {trial.number}: {trial.plan.key}: recorded {number(again[-1][0])}, "
                f"now {number(again[-1][1])} {record.campaign.spec.model.worded('tokens/s/device')}"
            )
    holds = [now for _, now in sorted(again, reverse=True)] == sorted((now for _, now in again), reverse=True)
    console.print("the order holds" if holds else "the order does not hold", style="green" if holds else "red")
    raise typer.Exit(0 if holds else 1)


@app.command(rich_help_panel=PANEL, short_help="Measure the optimum again: does it still stand?")
@placed
def revalidate(place: Place, campaign: CampaignId = "last", as_json: JsonOption = False) -> None:
    """Measure the optimum and the best other plan once more, and say whether the optimum still stands.

    Stores nothing; with --server these are second runs of the campaign.

    Exit code 0: it stands; 1: it is slower, fails, or another plan is better now.
    """
    from meshtune.tuner.cli.render.analysis import revalidation_lines
    from meshtune.tuner.results.export import NothingToExport
    from meshtune.tuner.results.revalidation import judge, to_measure

    with place.there.opened(campaign) as chosen:
        record = chosen.record()
        entries = to_measure(record.campaign, record.trials)
        if not entries:
            raise NothingToExport(f"campaign {record.campaign.id} has no plan to measure again")
        outcomes = [outcome for _, outcome in chosen.remeasure([entry.trial for entry in entries])]
    judgement = judge(record.campaign, entries, outcomes)
    rate = record.campaign.spec.model.worded("tokens/s/device")
    print_found(judgement, revalidation_lines(judgement, rate), as_json)
    raise typer.Exit(0 if judgement.stands else 1)


@app.command(rich_help_panel=PANEL, short_help="Print the best known plan for a model on some nodes.")
@placed
def recommend(
    model: Annotated[str, typer.Option(help="The model's name, as campaigns or presets have it.")],
    cluster: Annotated[str, typer.Option(help="The cluster's name, as campaigns or presets have it.")],
    nodes: Annotated[int, typer.Option(min=1, help="How many nodes the job gets.")],
    place: Place,
    global_batch_size: Annotated[int | None, typer.Option(min=1, help="Default: as it was measured.")] = None,
    workload: Annotated[str, typer.Option(help="The training code; default: the newest campaign's.")] = "",
    software: Annotated[str, typer.Option(help="What the job runs on, such as torch=2.13,cuda=13.0.")] = "",
    simulated: Annotated[bool, typer.Option("--simulated", help="Of simulated campaigns alone.")] = False,
    as_json: JsonOption = False,
    as_env: Annotated[bool, typer.Option("--env", help="Print MESHTUNE_... lines for a shell.")] = False,
) -> None:
    """Print the best known plan for a model on some nodes of a cluster: measured, or projected and said to be."""
    from meshtune.tuner.cli.render.analysis import recommendation_lines
    from meshtune.tuner.results.known_best import LaunchQuestion, environment_text, software_versions

    question = LaunchQuestion(
        model=model,
        cluster=cluster,
        nodes=nodes,
        global_batch_size=global_batch_size,
        workload=workload or None,
        software=software_versions(software),
        simulated=simulated,
    )
    best = place.there.recommend(question)
    if as_env and not as_json:
        sys.stdout.write(environment_text(best))
    else:
        print_found(best, recommendation_lines(best), as_json)


class _UpToTheEnd(TyperCommand):
    """Options of ours and of sbatch stand in any order before `--`. Those behind it are read by nobody, and the place
    of the `--` itself is kept, which Click forgets."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index(_END) if _END in args else len(args)
        ctx.meta[_OWN] = args[end + 1 :]
        return super().parse_args(ctx, args[:end])


@app.command(
    cls=_UpToTheEnd,
    context_settings={"ignore_unknown_options": True},
    rich_help_panel=PANEL,
    short_help="Submit a Slurm script with the best known plan.",
)
def sbatch(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[SBATCH OPTIONS] SCRIPT [-- SCRIPT ARGUMENTS]",
            help="Batch script, with options of sbatch before or behind it.",
            show_default=False,
        ),
    ],
    model: Annotated[str, typer.Option(help="The model's name; default: the script's #MESHTUNE line.")] = "",
    cluster: Annotated[str, typer.Option(help="The cluster's name; default: the script's #MESHTUNE line.")] = "",
    url: Annotated[str, typer.Option(envvar="MESHTUNE_URL", help="The service.")] = DEFAULT_URL,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be submitted.")] = False,
) -> None:
    """Submit a script with MESHTUNE_... variables and @MESHTUNE_...@ placeholders set to the best known plan.

    Options of meshtune and of sbatch stand in any order before `--`, arguments of the script behind it. Without an
    answer within 2 s the script goes with its own defaults, and a warning is printed.
    """
    from meshtune.tuner.cli.advice import submitted

    submitted(words, context.meta[_OWN], model=model, cluster=cluster, url=url, dry_run=dry_run)
