"""How one trial looks on a terminal: everything that is known of it, for `meshtune show ID --trial N`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshtune.runners.hardware import HardwareKind, nodes_text
from meshtune.runners.outcome import OF_FIRST_STEPS, Measurement, Verdict
from meshtune.runners.step_breakdown import Part, Profile, StepPhase
from meshtune.search_spaces.knob import Knob
from meshtune.search_spaces.knob_values import word
from meshtune.tuner.campaign.eligibility import unconfirmed_knobs
from meshtune.tuner.campaign.trial import Attempt, Expectation, Trial
from meshtune.tuner.campaign.units import gibibytes, number, seconds
from meshtune.tuner.campaign.waiting import wait_text
from meshtune.tuner.cli.render.display import ended_text, origin_text, pruned_text, state_text, time_notes
from meshtune.tuner.cli.render.terminal import new_table

# What a verdict says of the memory; the others say nothing.
_FITS: Mapping[Verdict, str] = {Verdict.OK: "it fits", Verdict.PRUNED: "it fits", Verdict.OOM: "out of memory"}


def trial_page(trial: Trial, knobs: Sequence[Knob] = (), rate: str = "tokens/s") -> Group:
    """The plan, the attempts, what was expected and measured, each rank, and the end of the log. knobs: the spec's."""
    outcome = trial.outcome
    lines: list[RenderableType] = [
        Text(f"trial {trial.number} of {trial.campaign_id}: {trial.plan.key}", style="bold"),
        Text(f"chosen by: {origin_text(trial)}"),
        Text("plan: " + ", ".join(f"{name} {value}" for name, value in trial.plan.axes_as_dict().items())),
        *_knobs(trial, knobs),
        Text.assemble("verdict: " if trial.state.final else "state: ", state_text(trial)),
        attempts_table(trial),
    ]
    for attempt in trial.attempts:
        reason = wait_text(attempt) if attempt.outcome is None else attempt.outcome.reason.strip()
        lines += [Text(f"attempt {attempt.number}: {reason}")] if reason else []
    lines += [
        Text(f"attempt {attempt.number} was to keep away from {', '.join(attempt.avoid)}, where it could")
        for attempt in trial.attempts
        if attempt.avoid
    ]
    if trial.expectation is not None:
        lines.append(expectation_table(trial.expectation, trial))
    if outcome is None:
        return Group(*lines)
    measured = outcome.measurement or outcome.partial
    if outcome.measurement is not None:
        lines += _measured(outcome.measurement, rate)
    elif outcome.partial is not None:
        lines.append(Text(f"{pruned_text(outcome.partial)}; no measurement"))
    for name in OF_FIRST_STEPS:
        if measured is not None and (values := getattr(measured, name)):
            lines.append(Text(f"{name.replace('_', ' ')}: {', '.join(f'{value:.6g}' for value in values)}"))
    if measured is not None and (measured.peak_memory_bytes or measured.peak_held_bytes or measured.profile):
        lines.append(ranks_table(measured))
    if outcome.log_tail.strip():
        lines += [Text("end of the log:", style="bold"), outcome.log_tail]
    return Group(*lines)


def _knobs(trial: Trial, knobs: Sequence[Knob]) -> list[Text]:
    """The knobs of the plan, and those of which the job did not say that they arrived."""
    if not trial.plan.knobs:
        return []
    lines = [Text("knobs: " + ", ".join(f"{name} {word(value)}" for name, value in trial.plan.knobs.items()))]
    if trial.measurement is not None and (silent := unconfirmed_knobs(knobs, trial.plan, trial.measurement)):
        lines.append(Text(f"not confirmed by the job: {', '.join(silent)}", style="yellow"))
    return lines


def attempts_table(trial: Trial) -> Table:
    """Every attempt with how it ended; its nodes where any are known, with `!` at those that failed."""
    located = any(attempt.nodes or attempt.failed_nodes for attempt in trial.attempts)
    nodes = ["nodes"] if located else []
    table = new_table(
        "Attempts", "attempt", "job", *nodes, "ended", "ran for", "rank", "phase", spare=("phase", "rank", *nodes)
    )
    for attempt in trial.attempts:
        outcome = attempt.outcome
        table.add_row(
            str(attempt.number),
            f"{attempt.job_name}{'' if attempt.job_id in (None, attempt.job_name) else f' ({attempt.job_id})'}",
            *([_nodes(attempt)] if located else []),
            str(attempt.state) if outcome is None else ended_text(outcome),
            seconds(attempt.running_s) if attempt.running_s else "-",
            "-" if outcome is None or outcome.failed_rank is None else str(outcome.failed_rank),
            (outcome.phase if outcome else None) or "-",
        )
    return table


def _nodes(attempt: Attempt) -> str:
    known = dict.fromkeys((*attempt.nodes, *attempt.failed_nodes))
    return ", ".join(f"{node} !" if node in attempt.failed_nodes else node for node in known) or "-"


def expectation_table(expected: Expectation, trial: Trial) -> Table:
    """What the search expected of the plan when it chose it, beside what was measured."""
    measured = trial.measurement
    step = None if measured is None else seconds(measured.step_time_s)
    peak = None if measured is None else measured.fullest_rank_bytes
    span = f"{seconds(expected.step_time_low_s)} to {seconds(expected.step_time_high_s)}"
    rows = (
        ("step (95 % interval)", f"{seconds(expected.step_time_s)} ({span})", step),
        ("peak of the fullest rank", gibibytes(round(expected.peak_bytes)), peak and gibibytes(round(peak))),
        ("fits into memory", f"{100 * expected.p_fits:.0f} %", trial.verdict and _FITS.get(trial.verdict)),
        ("gain over the best before", f"{100 * expected.gain:+.1f} %", None),
    )
    table = new_table("Expected", "", "expected", "measured")
    for name, value, actual in rows:
        table.add_row(name, value, actual or "-")
    return table


def ranks_table(measured: Measurement) -> Table:
    """Memory and time by part, rank by rank; a column that would be empty is left out."""
    profile = measured.profile
    columns: list[tuple[str, Sequence[str]]] = [
        ("tensors", [gibibytes(value) for value in measured.peak_memory_bytes]),
        ("held", [gibibytes(value) for value in measured.peak_held_bytes]),
    ]
    if profile is not None and not {*StepPhase} & profile.parts_s[0].keys():
        columns += [("stage", [str(stage) for stage in profile.stages]), *_part_columns(profile)]
    columns = [(name, values) for name, values in columns if values]
    table = new_table(
        "Ranks", right=("rank", *(name for name, _ in columns)), spare=[name for name, _ in columns[:0:-1]]
    )
    for rank, row in enumerate(zip_longest(*(values for _, values in columns), fillvalue="-")):
        table.add_row(str(rank), *row)
    return table


def _part_columns(profile: Profile) -> list[tuple[str, Sequence[str]]]:
    named = {name for parts in profile.parts_s for name, spent in parts.items() if spent}
    names = [*(str(part) for part in Part if part in named), *sorted(named - set(Part))]
    columns = [(name, [seconds(parts.get(name, 0.0)) for parts in profile.parts_s]) for name in names]
    waiting = [seconds(sum(parts.values())) for parts in profile.waiting_s]
    own = [seconds(value) for value in profile.own_time_s]
    return [*columns, ("waiting for peers", waiting), ("own work", own)]


def _kind(kind: HardwareKind) -> str:
    """One kind of devices, with its driver and nodes."""
    driver = f", driver {kind.driver}" if kind.driver else ""
    return f"{kind.words}{driver}{f' on {nodes_text(kind.nodes)}' if kind.nodes else ''}"


def _measured(measured: Measurement, rate: str) -> list[RenderableType]:
    interval = measured.step_time_interval_s
    dropped = f" ({len(measured.warmup_times_s)} dropped as warm-up)" if measured.warmup_times_s else ""
    if measured.compile_s is not None:
        dropped += f", after {seconds(measured.compile_s)} of compiling"
    rates = f"{number(measured.tokens_per_s)} {rate}, {number(measured.tokens_per_s_per_device)} per device"
    if measured.flops_per_s_per_device is not None:
        rates += f", {number(measured.flops_per_s_per_device / 1e12)} TFLOP/s per device"
    if measured.mfu is not None:
        rates += f", MFU {100 * measured.mfu:.1f} %"
        rates += " (the peak that the cluster's description has is too low)" if measured.mfu > 1 else ""
    return [
        Text(
            f"step: {seconds(measured.step_time_s)}, mean of {len(measured.step_times_s)} steps{dropped}; "
            f"95 % interval {seconds(interval.low)} to {seconds(interval.high)}; "
            f"median {seconds(measured.median_step_time_s)}"
        ),
        Text(f"speed: {rates}"),
        *(Text(f"hardware: {_kind(kind)}") for kind in measured.hardware),
        *time_notes("this trial", measured),
    ]
