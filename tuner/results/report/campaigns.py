"""The report of campaigns: what was asked, what was found and how sure that is, and every trial.

Its numbers are those of `best`, `analyze` and the comparison, from the same values. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import yaml

from meshtune.runners.hardware import kinds_text
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.objective import yardstick_of
from meshtune.tuner.campaign.spec import document_of, space_of
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.campaign.units import Estimate, gibibytes, moment, number, percent, seconds
from meshtune.tuner.results.analysis.analysis import Analysis, analyse
from meshtune.tuner.results.comparison import Comparison, compare
from meshtune.tuner.results.figures import progress, settings
from meshtune.tuner.results.ranking import Ranked, baseline_of, rank
from meshtune.tuner.results.report.analysis import failure_section, forecast_section, matter_section
from meshtune.tuner.results.report.page import PageTable, Section, drawn, page
from meshtune.tuner.results.sizes import SizePoint
from meshtune.tuner.results.winners import Winners, winners_of

SIMULATED = "Simulated: nothing below was measured on any device."
OTHERS = 3
NONE = "-"


def render_report(entries: Sequence[tuple[Campaign, Sequence[Trial]]]) -> str:
    """The HTML file of at least one campaign with its trials; of several, they are compared first."""
    simulated = [campaign.id for campaign, _ in entries if campaign.simulated]
    notices = [SIMULATED] if len(simulated) == len(entries) else []
    if simulated and not notices:
        notices = [f"Simulated, not measured on any device: {', '.join(simulated)}."]
    if len(entries) == 1:
        campaign, trials = entries[0]
        newest = max([campaign.created_at, *(one.last.finished_at or 0.0 for one in trials)])
        about = [f"Campaign {campaign.id}, begun {moment(campaign.created_at)}, as of {moment(newest)}"]
        return page(campaign.spec.name, _sections(campaign, trials), subtitle=about, notices=notices)
    sections = [_comparison_section(compare(entries))]
    for campaign, trials in entries:
        heading = f"{campaign.spec.name}: {campaign.label}"
        sections += [Section(heading=heading, level=1, new_page=True), *_sections(campaign, trials)]
    names = ", ".join(dict.fromkeys(campaign.spec.name for campaign, _ in entries))
    return page(f"{len(entries)} campaigns: {names}", sections, notices=notices)


def _sections(campaign: Campaign, trials: Sequence[Trial]) -> list[Section]:
    trials = sorted(trials, key=lambda trial: trial.number)
    space, ranking = space_of(campaign.spec), rank(campaign, trials)
    winners, analysis = winners_of(campaign.spec, ranking), analyse(campaign, space, trials)
    # Complete: presets written out, defaults filled in.
    spec_text = yaml.safe_dump(document_of(campaign.spec), sort_keys=False, width=100)
    return [
        _asked(campaign, space),
        _state(campaign, trials),
        _found(campaign, winners, ranking),
        Section(heading="Best so far", pictures=[drawn(progress.best_so_far(campaign, trials), "Best so far")]),
        matter_section(campaign, trials, analysis),
        failure_section(space, trials, analysis.failures),
        _parts(winners, ranking),
        forecast_section(analysis),
        _again(ranking),
        *([_scaling(analysis.scaling)] if analysis.scaling else []),
        Section(heading="Trials by node", pictures=[drawn(progress.timeline(trials), "Trials by node")]),
        _environment(campaign, trials, analysis),
        Section(heading="Every trial", tables=[_every(campaign, trials)], new_page=True),
        Section(heading="The spec", verbatim=spec_text, new_page=True),
    ]


def _asked(campaign: Campaign, space: Space) -> Section:
    spec, cluster = campaign.spec, campaign.spec.cluster
    batch = "free" if spec.global_batch_size is None else f"{spec.global_batch_size:,} sequences"
    size = f": {spec.model.parameters / 1e9:,.4g} billion parameters" * spec.model.known
    budget = spec.budget
    limits = [
        (budget.trials, f"{budget.trials} trials"),
        (budget.wall_time_s, f"{seconds(budget.wall_time_s or 0)} of work"),
        (budget.device_hours, f"{number(budget.device_hours or 0)} device-hours"),
    ]
    rows = [
        ("model", f"{spec.model.name}{size}"),
        ("cluster", f"{cluster.name}: {cluster.nodes:,} nodes of {cluster.devices_per_node} {cluster.device.name}"),
        ("global batch", batch),
        ("objective", f"{spec.objective}: {spec.model.worded(spec.objective.words)}"),
        ("searched", f"{space.plans:,} legal plans of {space.combinations:,} combinations"),
        ("search", spec.search.kind),
        ("budget", ", ".join(words for given, words in limits if given is not None)),
        ("runs by", f"runner {spec.runner.kind}, workload {spec.workload.kind}"),
        ("baseline", "none" if spec.baseline is None else spec.baseline.key),
        ("owner", " of the project ".join(name for name in (campaign.owner or "command line", spec.project) if name)),
    ]
    return Section(heading="What was asked", tables=[PageTable(columns=("", ""), rows=rows)])


def _state(campaign: Campaign, trials: Sequence[Trial]) -> Section:
    ended = Counter(str(trial.verdict or trial.state).replace("_", " ") for trial in trials)
    hours = sum(trial.device_s for trial in trials)
    prose = [f"The campaign is {campaign.state}" + (f": {campaign.reason}." if campaign.reason else ".")]
    if campaign.search_ended:
        prose.append(f"The search ended: {campaign.search_ended}.")
    if campaign.chance_left is not None:
        left, tolerance = percent(campaign.chance_left), percent(campaign.spec.stop.tolerance)
        prose.append(f"Chance that an untried plan is better by more than {tolerance}, as the search sees it: {left}.")
    counts = ", ".join(f"{count} {name}" for name, count in ended.most_common()) or "none"
    prose.append(f"{len(trials)} trials: {counts}; {number(hours / 3600)} device-hours.")
    prose += [f"It learnt from {lesson}." for lesson in campaign.lessons]
    return Section(heading="State", prose=prose)


def _found(campaign: Campaign, winners: Winners, ranking: Sequence[Ranked]) -> Section:
    unit = yardstick_of(campaign.spec).unit
    baseline = baseline_of(ranking)
    named = [
        ("recommended", winners.recommended),
        ("fastest confirmed", winners.fastest_confirmed),
        ("fastest once", winners.fastest_once),
        ("baseline", baseline),
    ]
    shown = [(name, entry) for name, entry in named if entry is not None]
    if not shown:
        return Section(heading="What was found", prose=["Nothing was measured."])
    rows = [
        ("trial", *(str(entry.trial.number) for _, entry in shown)),
        ("plan", *(entry.trial.plan.key for _, entry in shown)),
        (unit, *(_interval(entry.objective) for _, entry in shown)),
        ("by", *(entry.runs_text for _, entry in shown)),
        (f"{unit}, by its first run", *(number(entry.first_run.value) for _, entry in shown)),
        ("gain over the baseline", *(NONE if entry is baseline else entry.gain_text or NONE for _, entry in shown)),
        ("step", *(seconds(entry.step_time_s) for _, entry in shown)),
        (campaign.spec.model.worded("tokens/s"), *(number(entry.tokens_per_s.value) for _, entry in shown)),
        ("TFLOP/s per device", *(NONE if (it := one.tflops_per_device) is None else number(it) for _, one in shown)),
        ("MFU", *(NONE if entry.mfu is None else percent(entry.mfu) for _, entry in shown)),
        ("peak memory", *(_gibibytes(entry.peak_memory_bytes) for _, entry in shown)),
        ("memory left", *(_gibibytes(entry.headroom_bytes) for _, entry in shown)),
    ]
    reason = winners.recommendation.reason
    return Section(
        heading="What was found",
        prose=[f"Recommended: {reason}." if winners.recommended else f"No recommendation: {reason}."],
        tables=[
            PageTable(
                columns=("", *(name for name, _ in shown)),
                rows=rows,
                caption="Fastest once: the best first run. Fastest confirmed: the best by its second runs."
                " A gain is one in speed.",
            )
        ],
    )


def _gibibytes(value: float | None) -> str:
    return NONE if value is None else gibibytes(int(value))


def _parts(winners: Winners, ranking: Sequence[Ranked]) -> Section:
    named = [("recommended", winners.recommended), ("fastest once", winners.fastest_once)]
    named += [("baseline", baseline_of(ranking))]
    named += [(f"rank {entry.rank}", entry) for entry in ranking[:OTHERS]]
    shown: dict[int, tuple[str, Ranked]] = {}
    for name, entry in named:
        if entry is not None:
            shown.setdefault(entry.trial.number, (name, entry))
    picture = drawn(
        settings.step_parts(list(shown.values())),
        "Time of a step by part",
        caption="Means over the ranks, of a step that was profiled for this alone.",
    )
    return Section(heading="Where the time goes", pictures=[picture])


def _again(ranking: Sequence[Ranked]) -> Section:
    again = [(entry, known) for entry in ranking if (known := entry.confirmation) is not None]
    if not again:
        return Section(heading="Second runs", prose=["No plan has a second run."])
    columns = ("trial", "plan", "second runs", "first run", "mean of second runs", "change")
    rows = []
    for entry, confirmation in again:
        change = f"failed: {confirmation.trial.verdict}" if entry.failed_again else NONE
        if confirmation.change is not None:
            change = f"{100 * confirmation.change:+.1f} %"
        value = NONE if confirmation.change is None else _interval(entry.objective)
        about = (str(entry.trial.number), entry.trial.plan_key, str(confirmation.runs))
        rows.append((*about, number(entry.first_run.value), value, change))
    return Section(
        heading="Second runs",
        prose=["First runs chose these plans, so the best of them are fast by luck too; their second runs tell."],
        pictures=[drawn(progress.second_runs(ranking), "First and second runs")],
        tables=[PageTable(columns=columns, rows=rows, numbers=frozenset({0, 2, 3, 4, 5}))],
    )


def _scaling(points: Sequence[SizePoint]) -> Section:
    columns = ("nodes", "devices", "trial", "plan", points[0].speed_unit, "efficiency", points[0].cost_unit)
    rows = [
        (
            *(str(one.nodes), f"{one.devices:,}", str(one.trial), one.plan_key, number(one.tokens_per_s.value)),
            *(one.efficiency.percent_text(), number(one.cost)),
        )
        for one in points
    ]
    return Section(
        heading="Scaling",
        prose=["The best measured plan of each size; efficiency is speed per device over that of the smallest size."],
        pictures=[drawn(settings.scaling({"measured": [(one.devices, one.efficiency) for one in points]}), "Scaling")],
        tables=[PageTable(columns=columns, rows=rows, numbers=frozenset({0, 1, 2, 4, 5, 6}))],
    )


def _environment(campaign: Campaign, trials: Sequence[Trial], analysis: Analysis) -> Section:
    measured = [trial.measurement for trial in trials if trial.measurement is not None]
    software = Counter((name, version) for one in measured for name, version in one.software.items())
    hardware = Counter(kinds_text(one.hardware) for one in measured if one.hardware)
    device = campaign.spec.cluster.device
    rows = [("device, as the spec describes it", f"{device.name}, {gibibytes(int(device.memory_bytes))}")]
    rows += [("devices, as jobs saw them", f"{words} ({count} trials)") for words, count in hardware.most_common()]
    rows += [(name, f"{version} ({count} trials)") for (name, version), count in sorted(software.items())]
    basis = analysis.unpredicted if analysis.basis is None else f"Basis of what is predicted: {analysis.basis.words}"
    return Section(
        heading="Software and hardware",
        prose=[f"{basis}."],
        tables=[PageTable(columns=("", ""), rows=rows)],
    )


def _every(campaign: Campaign, trials: Sequence[Trial]) -> PageTable:
    yardstick = yardstick_of(campaign.spec)
    columns = f"trial|by|outcome|plan|{yardstick.unit}|step|expected|fits|memory|node|reason".split("|")
    rows = []
    for trial in trials:
        measured, expected, outcome = trial.measurement, trial.expectation, trial.outcome
        ended = str(trial.verdict or trial.state).replace("_", " ")
        failure = "" if outcome is None or outcome.failure is None else f" ({outcome.failure})".replace("_", " ")
        rows.append(
            (
                *(str(trial.number), str(trial.origin), ended + failure, trial.plan.key),
                NONE if measured is None else number(yardstick.of(measured)),
                NONE if measured is None else seconds(measured.step_time_s),
                NONE if expected is None else seconds(expected.step_time_s),
                NONE if expected is None else percent(expected.p_fits),
                _gibibytes(getattr(measured, "fullest_rank_bytes", None)),
                " ".join(trial.last.nodes[:2]) + (" ..." if len(trial.last.nodes) > 2 else ""),
                "" if outcome is None or measured is not None else outcome.reason[:200],
            )
        )
    return PageTable(
        columns=columns,
        rows=rows,
        numbers=frozenset({0, 4, 5, 6, 7, 8}),
        long=frozenset({10}),
        caption="Each by its own run. Expected, fits: the search's when it chose the plan, never measured.",
    )


def _comparison_section(comparison: Comparison) -> Section:
    speed_words = " or ".join(dict.fromkeys(f"{one.speed_unit}/device" for one in comparison.campaigns))
    columns = ("campaign", "nodes", "devices", "model", "plan", speed_words, "efficiency", "projected")
    rows = []
    for one in comparison.campaigns:
        best, projected = one.recommended, None if one.projected is None else one.projected.efficiency
        speed = None if best is None else _interval(best.tokens_per_s_per_device)
        efficiency = NONE if one.efficiency is None else one.efficiency.percent_text()
        against = f" of {one.efficiency_against}" if one.efficiency_against not in (None, one.id) else ""
        rows.append(
            (
                *(one.id + (" (simulated)" if one.simulated else ""), str(one.nodes), f"{one.devices:,}", one.model),
                *(NONE if best is None else best.plan_key, speed or NONE, efficiency + against),
                NONE if projected is None else projected.percent_text(),
            )
        )
    shares: dict[str, list[tuple[int, Estimate | None]]] = {
        "measured": [(one.devices, one.efficiency) for one in comparison.campaigns],
        "projected": [(one.devices, getattr(one.projected, "efficiency", None)) for one in comparison.campaigns],
    }
    known = {name: [(at, share) for at, share in some if share is not None] for name, some in shares.items()}
    picture = drawn(settings.scaling(known), "Scaling over the campaigns")
    return Section(
        heading="Campaigns side by side",
        level=1,
        prose=[
            "The recommended plan of each. Efficiency is speed per device over that of the smallest campaign of the"
            " kind; projected: by that one's physics.",
            *(f"{note}." for note in comparison.notes),
        ],
        pictures=[picture] if len({one.devices for one in comparison.campaigns if one.efficiency}) > 1 else [],
        tables=[PageTable(columns=columns, rows=rows, numbers=frozenset({1, 2, 5, 6, 7}))],
    )


def _interval(value: Estimate) -> str:
    if value.low == value.high:
        return number(value.value)
    return f"{number(value.value)} ({number(value.low)} to {number(value.high)})"
