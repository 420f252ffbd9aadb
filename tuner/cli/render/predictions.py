"""Quotes, explanations, exact memory, projections and calibrations on a terminal: Rich tables and lines from values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.table import Table
from rich.text import Text

from meshtune.tuner.campaign.units import gibibytes, interval_s, interval_text, number, percent, seconds
from meshtune.tuner.cli.render.display import runs_text, shares_text
from meshtune.tuner.cli.render.fit import prediction_lines
from meshtune.tuner.cli.render.terminal import new_table
from meshtune.tuner.prediction.predict import ExactMemory, Prediction
from meshtune.tuner.prediction.projection import Projection, Row, Scaling, count_nodes
from meshtune.tuner.prediction.quote import PART_WORDS, Explanation, Quote, Range
from meshtune.tuner.results.calibrations import CalibrationView

TITLES = {
    Scaling.WEAK: "Weak scaling: the global batch grows with the devices",
    Scaling.STRONG: "Strong scaling: the global batch stays",
    Scaling.FREE: "The global batch is free",
}
# A constant is told when what is known of it has grown by this share.
MIN_LEARNT = 0.1


def quote_parts(quote: Quote) -> list[Table | Text]:
    space, fit, cost, known = quote.space, quote.fit, quote.cost, quote.fit is not None
    knobs = quote.plans != space.legal
    kind = "layouts" if knobs else "plans"
    rejected = sorted(space.rejected.items(), key=lambda item: -item[1])
    fits = fit and [
        f"expected to fit: {fit.expected:.1f} {kind}; P(fits) at least 90 %: {fit.sure}, 50 to 90 %: {fit.likely}, "
        f"10 to 50 %: {fit.unlikely}, below 10 %: {fit.hopeless}"
    ]
    lines = [
        f"{space.combinations} combinations, {space.legal} legal {kind}; rules reject (they overlap): "
        f"{', '.join(f'{name} {count}' for name, count in rejected) or 'nothing'}",
        *([f"{quote.plans} legal plans with the knobs; predictions are of their defaults"] if knobs else []),
        *(fits or []),
        *quote.memory_needs,
    ]
    counts = " to ".join(dict.fromkeys(map(str, cost.steps or ())))
    steps = f"{counts} steps" if counts else "as many steps as its time limit allows"
    within = "" if cost.device_hours.p50 is None else "; 8 of 10 campaigns are within the brackets"
    missing = [f"  {one.path}: {one.message}" for one in quote.missing]
    below = [
        *(["no times can be predicted:" if known else "nothing is predicted:", *missing] if missing else []),
        *([ranked_by(known=not quote.missing)] if known else []),
        f"cost: {_range(cost.wall_s, seconds)} of wall time and {_range(cost.device_hours, number)} device-hours, for "
        f"{runs_text(cost.first_runs, cost.second_runs).rstrip(',')}{within}",
        f"  each run: {seconds(cost.startup_s)} to start, then {steps}: {_range(cost.trial_s, seconds)} in all",
        *cost.ends_before,
        *quote.limits.words,
        *([f"basis: {quote.basis.words}"] if known else []),
    ]
    title = f"{quote.name}: {quote.model} on {quote.devices} x {quote.device}{f', {quote.framework}' * known}"
    return [Text(title, style="bold"), *map(Text, lines), *([_best_table(quote)] if known else []), *map(Text, below)]


def explanation_parts(why: Explanation) -> list[Table | Text]:
    own, best = why.prediction, why.best
    lines = [f"  {one.constraint}: {one.message}; {one.reason}" for one in why.violations]
    if own is None or best is None:
        lines.append(f"no prediction: {why.unpredicted}")
    else:
        place = "is" if why.legal else "would be"
        kind = "layouts; its knobs are not predicted" if why.plan.knobs else "plans"
        rank = f"it {place} number {why.rank} of {why.of} legal {kind}; {ranked_by(known=own.speed is not None)}"
        lines += [*prediction_lines(own), rank]
        if own.speed is not None:
            same = why.plan.layout == best.plan.layout
            lines += ["nothing is predicted better"] if same else _against_best(why, own, best)
    title = Text(f"{why.plan_key}: {'legal' if why.legal else 'illegal'}", style="bold")
    return [title, *map(Text, lines), *([] if best is None else [Text(f"basis: {why.basis.words}")])]


def exact_memory_parts(exact: ExactMemory) -> list[Table | Text]:
    """A table of the ranks, and whether they fit."""
    plan, device = exact.plan, exact.memory_bytes
    numbers = ("stage", "rank", "peak", "of the device", "lasting", "parameters")
    table = new_table(plan.key, *numbers, "how", right=numbers, spare=("how", "parameters", "lasting"))
    for peak in exact.peaks:
        share = f"{peak.peak_bytes / device:.0%}"
        cells = (peak.stage, peak.rank, gibibytes(peak.peak_bytes), share, gibibytes(peak.lasting_bytes))
        some = peak.micro_batches < plan.grad_accum_steps
        how = [f"{peak.micro_batches} of {plan.grad_accum_steps} micro-batches run"] * some
        how += [*["extrapolated over layers"] * peak.extrapolated, f"{peak.seconds:.1f} s"]
        table.add_row(*map(str, cells), f"{peak.parameters / 1e6:.1f} M", ", ".join(how))
    fullest = max(peak.peak_bytes for peak in exact.peaks)
    verdict = (
        f"{gibibytes(fullest)} of {gibibytes(device)} at the fullest of these ranks: "
        f"{'fits' if fullest <= device else 'does not fit'}, libraries' buffers and the allocator's slack not counted"
    )
    return [table, Text(verdict)]


def ranked_by(*, known: bool) -> str:
    """The order of predictions. known: their times are."""
    return "ranked by tokens/s x P(fits)" if known else "ranked by memory alone, since no times can be predicted"


def _best_table(quote: Quote) -> Table:
    """The plans predicted best, with the parts of their steps; without speeds, their memory alone."""
    known = not quote.missing
    speeds = ("step (95 %)", "tokens/s", "TFLOP/s/device", "MFU") if known else ()
    numbers = (*speeds, "peak memory", "of device", "P(fits)")
    title = "Predicted best" if known else "Predicted to need the least memory"
    parts = ["time by part, %"] if known else []
    spare = ("time by part, %", "TFLOP/s/device", "of device", "MFU", "step (95 %)", "peak memory")
    table = new_table(title, "#", "plan", *numbers, *parts, right=("#", *numbers), spare=spare)
    for position, one in enumerate(quote.best, start=1):
        cells = [str(position), one.plan_key]
        if one.speed is not None:
            cells += [interval_s(one.speed.step_s), number(one.speed.tokens_per_s.value)]
            cells += [number(one.speed.tflops_per_device), percent(one.speed.mfu)]
        peak = one.peak_bytes.value
        cells += [gibibytes(int(peak)), percent(peak / one.device_bytes), percent(one.p_fits)]
        table.add_row(*cells, *([] if one.speed is None else [shares_text(one.speed.shares.items())]))
    return table


def _against_best(why: Explanation, own: Prediction, best: Prediction) -> list[str]:
    time = "?" if best.speed is None else interval_s(best.speed.step_s)
    parts = [
        f"  {seconds(abs(more_s))} {'more' if more_s > 0 else 'less'} {PART_WORDS[part]}"
        for part, more_s in why.differences_s.items()
    ]
    memory = own.peak_bytes.value - best.peak_bytes.value
    return [
        f"against the predicted best, {best.plan_key}, of {time}:",
        *(parts or ["  no part differs"]),
        f"  {gibibytes(int(abs(memory)))} {'more' if memory > 0 else 'less'} memory, P(fits) {percent(own.p_fits)} "
        f"against {percent(best.p_fits)}",
    ]


def _range(span: Range, text: Callable[[float], str]) -> str:
    low, high = text(span.low), text(span.high)
    ends = low if low == high else f"{low} to {high}"
    return ends if span.p50 is None or low == high else f"{text(span.p50)} ({ends})"


def projection_parts(sizes: Projection) -> list[Table | Text]:
    title = f"{sizes.name}: {sizes.model} on {sizes.device}, from {count_nodes(sizes.reference_nodes)}"
    parts: list[Table | Text] = [Text(title, style="bold")]
    if (best := sizes.measured_best) is not None:
        ratio = best.predicted_tokens_per_s / best.tokens_per_s
        sentence = (
            f"measured: trial {best.trial}, {best.plan_key}, {number(best.tokens_per_s)} tokens/s; predicted for it: "
            f"{number(best.predicted_tokens_per_s)} ({100 * ratio:.0f} % of that), so all predictions are scaled by "
            f"{best.factor:.3g}"
        )
        parts.append(Text(sentence))
    for wall in sizes.walls:
        rows = [row for row in sizes.rows if row.scaling is wall.scaling]
        parts += [_table(rows, sizes.tokens), Text(wall.sentence)]
        for note in dict.fromkeys(note for row in rows if (note := row.note or row.reason)):
            alike = [row for row in rows if note in (row.note, row.reason)]
            parts.append(Text(f"{_nodes(alike)}: {note}"))
    each = f"of the layout {sizes.layout}" if sizes.layout else f"the best plan there, {ranked_by(known=True)}"
    parts += [Text(f"each row is {each}"), Text(f"basis: {sizes.basis.words}")]
    return parts


def _nodes(rows: Sequence[Row]) -> str:
    return ", ".join(str(row.nodes) for row in rows[:-1]) + ", " * (len(rows) > 1) + count_nodes(rows[-1].nodes)


def _table(rows: Sequence[Row], tokens: float | None) -> Table:
    sizes = ("nodes", "devices", "batch")
    speeds = ("step (95 %)", "tokens/s", "MFU (95 %)", "P(fits)", "speed-up", "efficiency")
    run = () if tokens is None else (f"days for {tokens:.3g} tokens", "device-hours")
    columns = (*sizes, "plan", *speeds, *run, "time by part, %")
    spare = ("time by part, %", "batch", "MFU (95 %)", "P(fits)", *run[::-1], "devices", "speed-up", "step (95 %)")
    table = new_table(TITLES[rows[0].scaling], *columns, right=(*sizes, *speeds, *run), spare=spare)
    for row in rows:
        batch = "-" if row.global_batch_size is None else str(row.global_batch_size)
        table.add_row(str(row.nodes), str(row.devices), batch, *_cells(row, tokens))
    return table


def _cells(row: Row, tokens: float | None) -> list[str]:
    best = row.best
    if best is None or best.speed is None:
        return ["none"]
    speed = best.speed
    # The interval of MFU is that of the throughput.
    mfu = speed.tokens_per_s.times(speed.mfu / speed.tokens_per_s.value)
    cells = [
        f"{best.plan_key}{' (measured)' * row.measured}",
        interval_s(speed.step_s),
        number(speed.tokens_per_s.value),
    ]
    cells += [interval_text(percent(mfu.value), percent(mfu.low), percent(mfu.high)), percent(best.p_fits)]
    cells += ["-" if row.speedup is None else f"{row.speedup:.2f}"]
    cells += ["-" if row.efficiency is None else percent(row.efficiency)]
    if tokens is not None and row.run is None:
        cells += ["-", "-"]
    elif tokens is not None and row.run is not None:
        days = row.run.days
        cells += [f"{number(days.value)} ({number(days.low)} - {number(days.high)})"]
        cells += [number(row.run.device_hours.value)]
    return [*cells, shares_text(speed.shares.items())]


def calibrations_table(calibrations: Sequence[CalibrationView]) -> Table:
    numbers = ("devices", "trials", "scatter of times")
    columns = ("campaign", "made (UTC)", "device", "framework", "version", "model")
    table = new_table("", *columns, *numbers, right=numbers, spare=("version", "made (UTC)", *numbers, "framework"))
    for one in calibrations:
        cells = (one.campaign, f"{one.created_at:%Y-%m-%d %H:%M}", one.device, one.framework, one.version or "-")
        table.add_row(*cells, one.model, str(one.devices), str(one.trials), percent(one.time_log_sd))
    return table


def calibration_parts(calibration: CalibrationView) -> list[Table | str]:
    """The constants that the trials told something of, and what is left."""
    numbers = ("before", "measured", "known to, before", "now")
    table = new_table("", "constant", *numbers, right=numbers)
    unseen = []
    for one in calibration.constants:
        if one.log_sd > (1 - MIN_LEARNT) * one.default_log_sd:
            unseen.append(one.name)
            continue
        spreads = (percent(one.default_log_sd), percent(one.log_sd))
        table.add_row(one.name, number(one.default), number(one.value), *spreads)
    scatter = f"predictions scatter by {percent(calibration.time_log_sd)} around measured times, "
    scatter += f"{percent(calibration.memory_log_sd)} around measured memory"
    left = [f"not to be seen in these trials, so as before: {', '.join(unseen)}"] if unseen else []
    return [table, scatter, *left]
