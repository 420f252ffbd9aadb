"""Quotes, explanations and exact memory on a terminal: Rich tables and lines from values."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from meshtune.runners.trainer_answers import ExactPeak
from meshtune.tuner.campaign.interval import Estimate
from meshtune.tuner.campaign.units import gibibytes, number, percent, seconds
from meshtune.tuner.cli.render.display import LEAST_SHARE, new_table
from meshtune.tuner.prediction.exact_memory import ExactMemory
from meshtune.tuner.prediction.explain_plan import PART_WORDS, Explanation
from meshtune.tuner.prediction.predict import Prediction
from meshtune.tuner.prediction.quote import Quote, Range


def quote_parts(quote: Quote) -> list[Table | Text]:
    """Everything of a quote, from top to bottom."""
    space, fit, cost = quote.space, quote.fit, quote.cost
    rejected = sorted(space.rejected.items(), key=lambda item: -item[1])
    lines = [
        f"{space.combinations} combinations, {space.legal} legal plans; rules reject (they overlap): "
        f"{', '.join(f'{name} {count}' for name, count in rejected) or 'nothing'}",
        f"expected to fit: {fit.expected:.1f} plans; P(fits) at least 90 %: {fit.sure}, 50 to 90 %: {fit.likely}, "
        f"10 to 50 %: {fit.unlikely}, below 10 %: {fit.hopeless}",
    ]
    steps = "steps until its time limit at most" if cost.steps is None else f"{cost.steps[0]} to {cost.steps[1]} steps"
    below = [
        *(
            ["no times can be predicted:", *(f"  {one.path}: {one.message}" for one in quote.missing)]
            if quote.missing
            else []
        ),
        ranked_by(known=not quote.missing),
        f"cost: {cost.trials} trials of {steps} and {seconds(cost.startup_s)} to start, "
        f"{_range_s(cost.trial_s)} each: {_range_s(cost.wall_s)} of wall time, "
        f"{number(cost.device_hours.low)} to {number(cost.device_hours.high)} device-hours",
        *cost.ends_before,
        f"basis: {quote.basis.words}",
    ]
    title = f"{quote.name}: {quote.model} on {quote.devices} x {quote.device}, {quote.framework}"
    return [Text(title, style="bold"), *map(Text, lines), _best_table(quote), *map(Text, below)]


def explanation_parts(found: Explanation) -> list[Table | Text]:
    """Everything about one plan, from top to bottom."""
    own, best = found.prediction, found.best
    lines = [f"  {one.constraint}: {one.message}; {one.reason}" for one in found.violations]
    if own is None:
        lines.append(f"no prediction: {found.unpredicted}")
    else:
        place = "is" if found.legal else "would be"
        rank = f"it {place} number {found.rank} of {found.of} legal plans; {ranked_by(known=own.speed is not None)}"
        peak = own.peak_bytes
        sizes = [f"{part} {gibibytes(int(size))}" for part, size in own.memory_parts_bytes.items() if size > 0]
        lines += [
            f"memory: {gibibytes(int(peak.value))} ({gibibytes(int(peak.low))} to {gibibytes(int(peak.high))}) "
            f"of {gibibytes(own.device_bytes)}, P(fits) {percent(own.p_fits)}",
            f"  {', '.join(sizes)}",
        ]
        if own.speed is None:
            lines.append(rank)
        else:
            speed = own.speed
            times = [f"{part} {seconds(one)}" for part, one in speed.parts_s.items() if one > 0]
            lines += [
                f"step: {interval_s(speed.step_s)}, {number(speed.tokens_per_s.value)} tokens/s, "
                f"MFU {percent(speed.mfu)}",
                f"  {', '.join(times)}",
                rank,
            ]
            lines += ["nothing is predicted better"] if found.plan == best.plan else _against_best(found, own)
    title = Text(f"{found.plan_key}: {'legal' if found.legal else 'illegal'}", style="bold")
    return [title, *map(Text, lines), Text(f"basis: {found.basis.words}")]


def exact_memory_parts(found: ExactMemory) -> list[Table | Text]:
    """A table of the ranks, and whether they fit."""
    plan, device = found.plan, found.memory_bytes
    table = Table(title=plan.key)
    for name in ("stage", "rank", "peak", "of the device", "lasting", "parameters", "how"):
        table.add_column(name, justify="left" if name == "how" else "right")
    for peak in found.peaks:
        share = f"{peak.peak_bytes / device:.0%}"
        cells = (peak.stage, peak.rank, gibibytes(peak.peak_bytes), share, gibibytes(peak.lasting_bytes))
        how = _how(peak, plan.grad_accum_steps)
        table.add_row(*map(str, cells), f"{peak.parameters / 1e6:.1f} M", how)
    fullest = max(peak.peak_bytes for peak in found.peaks)
    verdict = (
        f"{gibibytes(fullest)} of {gibibytes(device)} at the fullest of these ranks: "
        f"{'fits' if fullest <= device else 'does not fit'}, libraries' buffers and the allocator's slack not counted"
    )
    return [table, Text(verdict)]


def ranked_by(*, known: bool) -> str:
    """The order of predictions. known: their times are."""
    return "ranked by tokens/s x P(fits)" if known else "ranked by memory alone, since no times can be predicted"


def interval_s(value: Estimate) -> str:
    return interval_text(seconds(value.value), seconds(value.low), seconds(value.high))


def interval_text(value: str, low: str, high: str) -> str:
    """The unit stands once where all three share it."""
    words = [text.split(" ") for text in (value, low, high)]
    if all(len(pair) == 2 and pair[1] == words[0][1] for pair in words):
        low, high = words[1][0], words[2][0]
    return f"{value} ({low} - {high})"


def shares(one: Prediction) -> str:
    """The parts of a step by their share of its time, the largest first."""
    if one.speed is None:
        return ""
    ordered = sorted(one.speed.shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{part} {100 * share:.0f}" for part, share in ordered if share >= LEAST_SHARE)


def _best_table(quote: Quote) -> Table:
    """The plans predicted best, with the parts of their steps; without speeds, their memory alone."""
    known = not quote.missing
    table = new_table("Predicted best" if known else "Predicted to need the least memory")
    table.add_column("#", justify="right")
    table.add_column("setting", overflow="fold")
    for name in ("step (95 %)", "tokens/s", "TFLOP/s/device", "MFU") if known else ():
        table.add_column(name, justify="right")
    for name in ("peak memory", "of device", "P(fits)"):
        table.add_column(name, justify="right")
    if known:
        table.add_column("time by part, %", overflow="fold")
    for position, one in enumerate(quote.best, start=1):
        cells = [str(position), one.plan_key]
        if one.speed is not None:
            cells += [interval_s(one.speed.step_s), number(one.speed.tokens_per_s.value)]
            cells += [number(one.speed.tflops_per_device), percent(one.speed.mfu)]
        peak = one.peak_bytes.value
        cells += [gibibytes(int(peak)), percent(peak / one.device_bytes), percent(one.p_fits)]
        table.add_row(*cells, *([] if one.speed is None else [shares(one)]))
    return table


def _against_best(found: Explanation, own: Prediction) -> list[str]:
    best = found.best
    time = "?" if best.speed is None else interval_s(best.speed.step_s)
    parts = [
        f"  {seconds(abs(more_s))} {'more' if more_s > 0 else 'less'} {PART_WORDS[part]}"
        for part, more_s in found.differences_s.items()
    ]
    memory = own.peak_bytes.value - best.peak_bytes.value
    return [
        f"against the predicted best, {best.plan_key}, of {time}:",
        *(parts or ["  no part differs"]),
        f"  {gibibytes(int(abs(memory)))} {'more' if memory > 0 else 'less'} memory, P(fits) {percent(own.p_fits)} "
        f"against {percent(best.p_fits)}",
    ]


def _how(peak: ExactPeak, micro_batches: int) -> str:
    """What of the step ran, and how long that took."""
    parts = [f"{peak.micro_batches} of {micro_batches} micro-batches run"] if peak.micro_batches < micro_batches else []
    return ", ".join([*parts, *(["extrapolated over layers"] if peak.extrapolated else []), f"{peak.seconds:.1f} s"])


def _range_s(span: Range) -> str:
    low, high = seconds(span.low), seconds(span.high)
    return low if low == high else f"{low} to {high}"
