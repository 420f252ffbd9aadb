"""How quotes and explanations look on a terminal: Rich tables and lines from values."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from meshtune.tuner.campaign.interval import Estimate
from meshtune.tuner.campaign.units import gibibytes, number, percent, seconds
from meshtune.tuner.cli.render.display import new_table
from meshtune.tuner.prediction.explain_plan import Explanation
from meshtune.tuner.prediction.predict import Prediction
from meshtune.tuner.prediction.quote import Fit, Quote, Span

# Parts of a step that round to nothing are left out.
LEAST_SHARE = 0.005


def quote_page(quote: Quote) -> list[Table | Text]:
    """Everything of a quote, from top to bottom."""
    counts, cost = quote.counts, quote.cost
    rejected = sorted(counts.broken.items(), key=lambda item: -item[1])
    page: list[Table | Text] = [
        Text(f"{quote.name}: {quote.model} on {quote.devices} x {quote.device}, {quote.framework}", style="bold"),
        Text(
            f"{counts.combinations} combinations, {counts.legal} legal plans; rules reject (they overlap): "
            f"{', '.join(f'{name} {count}' for name, count in rejected) or 'nothing'}"
        ),
        Text(f"expected to fit: {_fit(quote.fit)}"),
    ]
    page.append(best_table(quote.best))
    page += _missing(quote)
    page.append(Text(ranked_by(known=not quote.missing)))
    steps = "steps until its time limit at most" if cost.steps is None else f"{cost.steps[0]} to {cost.steps[1]} steps"
    page.append(
        Text(
            f"cost: {cost.trials} trials of {steps} and {seconds(cost.startup_s)} to start, "
            f"{_span_s(cost.trial_s)} each: {_span_s(cost.wall_s)} of wall time, "
            f"{number(cost.device_hours.low)} to {number(cost.device_hours.high)} device-hours"
        )
    )
    page += [Text(sentence) for sentence in cost.ends_before]
    page.append(Text(f"basis: {quote.basis}"))
    return page


def best_table(best: Sequence[Prediction]) -> Table:
    """The plans predicted best, with where their steps' time goes; without speeds, their memory alone."""
    known = best[0].speed is not None
    table = new_table("Predicted best" if known else "Predicted to need the least memory")
    table.add_column("#", justify="right")
    table.add_column("setting", overflow="fold")
    for name in ("step (95 %)", "tokens/s", "TFLOP/s/device", "MFU") if known else ():
        table.add_column(name, justify="right")
    for name in ("peak memory", "of device", "P(fits)"):
        table.add_column(name, justify="right")
    if known:
        table.add_column("time by part, %", overflow="fold")
    for position, one in enumerate(best, start=1):
        cells = [str(position), one.plan.key]
        if one.speed is not None:
            cells += [interval_s(one.speed.step_s), number(one.speed.tokens_per_s.value)]
            cells += [number(one.speed.tflops_per_device), percent(one.speed.mfu)]
        peak = one.peak_bytes.value
        cells += [gibibytes(int(peak)), percent(peak / one.device_bytes), percent(one.fits)]
        cells += [] if one.speed is None else [shares(one)]
        table.add_row(*cells)
    return table


def explanation_page(found: Explanation) -> list[Table | Text]:
    """Everything about one plan, from top to bottom."""
    page: list[Table | Text] = [Text(f"{found.plan.key}: {'illegal' if found.violations else 'legal'}", style="bold")]
    page += [Text(f"  {one.constraint}: {one.message}; {one.reason}") for one in found.violations]
    own = found.prediction
    if own is None:
        return [*page, Text(f"no prediction: {found.unpredicted}"), Text(f"basis: {found.basis}")]
    parts = ", ".join(f"{part} {gibibytes(int(size))}" for part, size in own.memory_parts.items() if size > 0)
    page += [
        Text(
            f"memory: {gibibytes(int(own.peak_bytes.value))} ({gibibytes(int(own.peak_bytes.low))} to "
            f"{gibibytes(int(own.peak_bytes.high))}) of {gibibytes(own.device_bytes)}, P(fits) {percent(own.fits)}"
        ),
        Text(f"  {parts}"),
    ]
    place = "would be" if found.violations else "is"
    rank = f"it {place} number {found.rank} of {found.of} legal plans; {ranked_by(known=own.speed is not None)}"
    if own.speed is None:
        return [*page, Text(rank), Text(f"basis: {found.basis}")]
    page += [
        Text(
            f"step: {interval_s(own.speed.step_s)}, {number(own.speed.tokens_per_s.value)} tokens/s, "
            f"MFU {percent(own.speed.mfu)}"
        ),
        Text(f"  {', '.join(f'{part} {seconds(one)}' for part, one in own.speed.parts_s.items() if one > 0)}"),
        Text(rank),
    ]
    if found.plan == found.best.plan:
        page.append(Text("nothing is predicted better"))
    else:
        page += _comparison(found, own)
    return [*page, Text(f"basis: {found.basis}")]


def ranked_by(*, known: bool) -> str:
    """What the order of predictions means."""
    return "ranked by tokens/s x P(fits)" if known else "ranked by memory alone, since no times can be predicted"


def interval_s(value: Estimate) -> str:
    return _interval(seconds(value.value), seconds(value.low), seconds(value.high))


def interval_percent(value: Estimate) -> str:
    return _interval(percent(value.value), percent(value.low), percent(value.high))


def shares(one: Prediction) -> str:
    """Where the time of a step goes, the largest part first."""
    if one.speed is None:
        return ""
    ordered = sorted(one.speed.shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{part} {100 * share:.0f}" for part, share in ordered if share >= LEAST_SHARE)


def _comparison(found: Explanation, own: Prediction) -> list[Table | Text]:
    best = found.best
    lines = [f"against the predicted best, {best.plan.key}, of {interval_s(best.speed.step_s) if best.speed else '?'}:"]
    lines += [f"  {difference}" for difference in found.differences] or ["  no part differs"]
    memory = own.peak_bytes.value - best.peak_bytes.value
    lines.append(
        f"  {gibibytes(int(abs(memory)))} {'more' if memory > 0 else 'less'} memory, P(fits) {percent(own.fits)} "
        f"against {percent(best.fits)}"
    )
    return [Text(line) for line in lines]


def _missing(quote: Quote) -> list[Text]:
    if not quote.missing:
        return []
    return [Text("no times can be predicted:"), *(Text(f"  {problem}") for problem in quote.missing)]


def _fit(fit: Fit) -> str:
    return (
        f"{fit.expected:.1f} plans; P(fits) at least 90 %: {fit.sure}, 50 to 90 %: {fit.likely}, "
        f"10 to 50 %: {fit.unlikely}, below 10 %: {fit.hopeless}"
    )


def _interval(value: str, low: str, high: str) -> str:
    """The unit stands once where all three share it."""
    words = [text.split(" ") for text in (value, low, high)]
    if all(len(pair) == 2 and pair[1] == words[0][1] for pair in words):
        low, high = words[1][0], words[2][0]
    return f"{value} ({low} - {high})"


def _span_s(span: Span) -> str:
    low, high = seconds(span.low), seconds(span.high)
    return low if low == high else f"{low} to {high}"
