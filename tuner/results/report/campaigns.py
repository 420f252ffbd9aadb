"""The report of campaigns: the answer, why it is the answer, and what both rest on, down to every setting.

Its numbers are those of `best`, `analyze` and the comparison, from the same values. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import yaml

from meshtune.runners.hardware import kinds_text
from meshtune.search_spaces.changes import plan_changes, words_of
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.objective import yardstick_of
from meshtune.tuner.campaign.spec import CampaignSpec, document_of, space_of
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.campaign.units import Estimate, device_time, gibibytes, moment, number, percent, seconds
from meshtune.tuner.results.analysis.analysis import Analysis, analyse
from meshtune.tuner.results.comparison import Comparison, compare
from meshtune.tuner.results.figures import canvas, progress, settings
from meshtune.tuner.results.ranking import Ranked, baseline_of, rank
from meshtune.tuner.results.report.analysis import failure_section, forecast_section, matter_section
from meshtune.tuner.results.report.page import PageTable, Picture, Section, drawn, page
from meshtune.tuner.results.sizes import SizePoint
from meshtune.tuner.results.winners import Winners, winners_of


def render_report(entries: Sequence[tuple[Campaign, Sequence[Trial]]]) -> str:
    """The HTML file of at least one campaign with its trials; of several, they are compared first."""
    simulated = [campaign.id for campaign, _ in entries if campaign.simulated]
    notices = ["Simulated: nothing below was measured on any device."] if len(simulated) == len(entries) else []
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
    again = drawn(progress.second_runs(ranking), "First and second runs")
    why = matter_section(campaign, trials, analysis)
    return [
        _answer(campaign, winners, ranking),
        replace(why, pictures=[*_parts(winners, ranking), *why.pictures]),
        _state(campaign, trials),
        failure_section(space, trials, analysis.failures),
        forecast_section(campaign, analysis),
        *([_scaling(analysis.scaling)] if analysis.scaling else []),
        Section(heading="Every setting", pictures=[again], tables=_every(campaign, trials, ranking)),
        Section(heading="Trials by node", pictures=[drawn(progress.timeline(campaign, trials), "Trials by node")]),
        _asked(campaign, space),
        _environment(campaign, trials, analysis),
        Section(heading="The spec", verbatim=spec_text),
    ]


def _asked(campaign: Campaign, space: Space) -> Section:
    spec, cluster = campaign.spec, campaign.spec.cluster
    batch = "free" if spec.global_batch_size is None else f"{spec.global_batch_size:,} sequences"
    weights = spec.model.parameters
    scale, word = (1e9, " billion") if weights >= 1e9 else (1e6, " million") if weights >= 1e6 else (1, "")
    size = f": {number(weights / scale)}{word} parameters" * spec.model.known
    budget = spec.budget
    limits = [
        (budget.trials, f"{budget.trials} trials"),
        (budget.wall_time_s, f"{seconds(budget.wall_time_s or 0)} of work"),
        (budget.device_hours, device_time(3600 * (budget.device_hours or 0))),
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
    ended = Counter(_ended(campaign, trial) for trial in trials)
    spent = sum(trial.device_s for trial in trials)
    prose = [f"The campaign is {campaign.state}" + (f": {campaign.reason}." if campaign.reason else ".")]
    if campaign.search_ended:
        prose.append(f"The search ended: {campaign.search_ended}.")
    if campaign.chance_left is not None:
        left, tolerance = percent(campaign.chance_left), percent(campaign.spec.stop.tolerance)
        prose.append(f"Chance that an untried plan is better by more than {tolerance}, as the search sees it: {left}.")
    counts = ", ".join(f"{count} {name}" for name, count in ended.most_common()) or "none"
    prose.append(f"{len(trials)} trials: {counts}{f'; {device_time(spent)}' if spent else ''}.")
    prose += [f"It learnt from {lesson}." for lesson in campaign.lessons]
    picture = drawn(progress.best_so_far(campaign, trials), "Best so far")
    return Section(heading="The search", prose=prose, pictures=[picture])


def _answer(campaign: Campaign, winners: Winners, ranking: Sequence[Ranked]) -> Section:
    found, unit, reason = winners.recommended, yardstick_of(campaign.spec).unit, winners.recommendation.reason
    if found is None:
        said = "No setting has a speed" if not ranking else f"No recommendation: {reason}"
        return Section(heading="The answer", prose=[f"{said}."])
    badges = [f"trial {found.trial.number}: {found.trial.plan.key}", found.runs_text]
    badges += [f"changes the numerics: {one}" for one in found.changed_numerics]
    rows = [
        ("setting", _setting(campaign.spec, found.trial.plan)),
        (unit, _interval(found.objective)),
        ("gain over the baseline", "" if found is baseline_of(ranking) else found.gain_text),
        ("step", seconds(found.step_time_s)),
        ("MFU", "" if found.mfu is None else percent(found.mfu)),
        ("peak memory of tensors", _gibibytes(found.peak_memory_bytes)),
        ("memory left", _gibibytes(found.headroom_bytes)),
        (f"{_ended(campaign, found.trial)} by", "; ".join(badges)),
    ]
    prose = [f"Recommended: {reason}."]
    for words, one in (("once, by its first run", winners.fastest_once), ("confirmed", winners.fastest_confirmed)):
        if one is not None and one.trial.number != found.trial.number:
            setting = f"trial {one.trial.number}, {_setting(campaign.spec, one.trial.plan)}"
            prose.append(f"Fastest {words}: {_interval(one.objective)} {unit} ({setting}).")
    table = PageTable(columns=("", ""), rows=[row for row in rows if row[1]])
    return Section(heading="The answer", prose=prose, tables=[table])


def _setting(spec: CampaignSpec, plan: Plan) -> str:
    """As its difference from the baseline."""
    changes = plan.key if spec.baseline is None else words_of(plan_changes(spec.baseline, plan))
    return changes or "the baseline"


def _ended(campaign: Campaign, trial: Trial) -> str:
    return str(trial.state) if trial.verdict is None else canvas.MARKS[trial.verdict].named(campaign.simulated)


def _gibibytes(value: float | None) -> str:
    return "" if value is None else gibibytes(int(value))


def _parts(winners: Winners, ranking: Sequence[Ranked]) -> list[Picture]:
    named = {"recommended": winners.recommended, "fastest once": winners.fastest_once, "baseline": baseline_of(ranking)}
    shown = {entry.trial.number: (name, entry) for name, entry in reversed(named.items()) if entry is not None}
    caption = "Means over the ranks, of a step that was profiled for this alone."
    return [drawn(settings.step_parts(list(reversed(shown.values()))), "Time of a step by part", caption=caption)]


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
        prose=["The best plan of each size; efficiency is speed per device over that of the smallest size."],
        pictures=[drawn(settings.scaling({"by runs": [(one.devices, one.efficiency) for one in points]}), "Scaling")],
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


def _every(campaign: Campaign, trials: Sequence[Trial], ranking: Sequence[Ranked]) -> list[PageTable]:
    ranked, rows, rest = {entry.trial.number: entry for entry in ranking}, [], []
    unit, folded = yardstick_of(campaign.spec).unit, {one.number for entry in ranking for one in entry.again}
    for trial in (one for one in trials if one.number not in folded):
        entry, about = ranked.get(trial.number), (str(trial.number), _setting(campaign.spec, trial.plan))
        if entry is None:
            rest.append(
                (*about, _ended(campaign, trial).replace(" ", "\u00a0"), getattr(trial.outcome, "reason", "")[:200])
            )
            continue
        again = f"{len(entry.runs) - 1} of {len(entry.again)}" if entry.again else ""
        told = (number(entry.objective.value), "" if entry.gain is None else f"{100 * entry.gain.value:+.1f} %")
        rows.append((*about, *told, seconds(entry.step_time_s), _gibibytes(entry.peak_memory_bytes), again))
    columns = ("trial", "setting", unit, "gain", "step", "peak memory", "again")
    caption = "By second runs where there are any (again: how many gave a speed, of those that were tried)."
    every = PageTable(columns=columns, rows=rows, numbers=frozenset({0, 2, 3, 4, 5, 6}), caption=caption)
    ends = replace(every, columns=("trial", "setting", "end", "reason"), rows=rest, caption="Without a speed.")
    ends = replace(ends, numbers=frozenset({0}), long=frozenset({3}))
    return [table for table in (every, ends) if table.rows]


def _comparison_section(comparison: Comparison) -> Section:
    speed_words = " or ".join(dict.fromkeys(f"{one.speed_unit}/device" for one in comparison.campaigns))
    columns = ("campaign", "nodes", "devices", "model", "plan", speed_words, "efficiency", "projected")
    rows = []
    for one in comparison.campaigns:
        best, projected = one.recommended, None if one.projected is None else one.projected.efficiency
        speed = None if best is None else _interval(best.tokens_per_s_per_device)
        efficiency = "" if one.efficiency is None else one.efficiency.percent_text()
        against = f" of {one.efficiency_against}" if one.efficiency_against not in (None, one.id) else ""
        rows.append(
            (
                *(one.id + (" (simulated)" if one.simulated else ""), str(one.nodes), f"{one.devices:,}", one.model),
                *("" if best is None else best.plan_key, speed or "", efficiency + against),
                "" if projected is None else projected.percent_text(),
            )
        )
    shares: dict[str, list[tuple[int, Estimate | None]]] = {
        "by runs": [(one.devices, one.efficiency) for one in comparison.campaigns],
        "projected": [(one.devices, getattr(one.projected, "efficiency", None)) for one in comparison.campaigns],
    }
    known = {name: [(at, share) for at, share in some if share is not None] for name, some in shares.items()}
    return Section(
        heading="Campaigns side by side",
        level=1,
        prose=[
            "The recommended plan of each. Efficiency is speed per device over that of the smallest campaign of the"
            " kind; projected: by that one's physics.",
            *(f"{note}." for note in comparison.notes),
        ],
        pictures=[drawn(settings.scaling(known), "Scaling over the campaigns")],
        tables=[PageTable(columns=columns, rows=rows, numbers=frozenset({1, 2, 5, 6, 7}))],
    )


def _interval(value: Estimate) -> str:
    if value.low == value.high:
        return number(value.value)
    return f"{number(value.value)} ({number(value.low)} to {number(value.high)})"
