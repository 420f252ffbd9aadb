"""Whether a training fits, on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.table import Table
from rich.text import Text

from meshtune.tuner.campaign.units import gibibytes, interval_s, number, percent
from meshtune.tuner.cli.render.terminal import new_table
from meshtune.tuner.prediction.fit import Effect, Fit, Setting
from meshtune.tuner.prediction.memory_needs import SURE

WORDS = {"load": "loading", "first_step": "first step", "steady": "later steps", "checkpoint": "writing a checkpoint"}


def fit_parts(fit: Fit) -> Iterator[Table | Text]:
    best, enough = fit.best, fit.enough
    title = (
        f"{best.model}, {best.parameters / 1e9:.3g}e9 weights, rows of up to {fit.seq_len:,} tokens, on {fit.cluster}"
    )
    yield Text(f"{title}: {best.training}", style="bold")
    if fit.given is not None:
        yield from _setting("your setting", fit.given)
    if not fit.fits:
        yield Text(f"\nnothing fits with P(fits) {percent(SURE)}", style="red")
    yield from _setting("the fastest that is safe" if fit.fits else "the nearest", best)
    if enough is not None:
        parts = filter(None, [_peak(enough), _time(enough), _effect(enough)])
        yield Text(f"it would fit with {enough.words}: {', '.join(parts)}", style="bold")
    elif not fit.fits:
        yield Text("no change that is known, nor more devices, would make it fit", style="bold")
    if (most := fit.largest_micro_batch) is not None:
        yield Text(f"largest micro-batch: {most.prediction.plan.micro_batch_size:,}: {_peak(most)}: {most.words}")
    if (most := fit.longest_sequence) is not None:
        yield Text(f"longest sequence: {most.seq_len:,}: {_peak(most)}: {most.words}")
    if fit.changes:
        yield _changes(fit)
    yield from (Text(f"note: {note}") for note in fit.notes)
    yield Text(f"basis: {fit.basis}")


def largest_parts(found: Mapping[str, Setting | None], on: str) -> Iterator[Table | Text]:
    yield Text(f"The largest model that fits on {on}, by method", style="bold")
    for method, one in found.items():
        if one is None:
            yield Text(f"{method}: no preset fits")
        else:
            yield Text(f"{method}: {_model(one)}: {_peak(one)}")
            yield Text(f"  {one.words}\n  {speed_text(one)}")


def _setting(name: str, setting: Setting) -> Iterator[Text]:
    own, peak = setting.prediction, setting.prediction.peak_bytes
    yield Text(f"\n{name}: {setting.words}   ({own.plan_key})", style="bold")
    yield Text(
        f"peak {gibibytes(int(peak.value))} ({gibibytes(int(peak.low))} to {gibibytes(int(peak.high))}) of "
        f"{gibibytes(own.device_bytes)}, P(fits) {percent(own.p_fits)}, with rows of {setting.seq_len:,} tokens"
    )
    phases = {WORDS[name]: size for name, size in setting.phases_bytes.items()}
    for sizes in (phases, own.memory_parts_bytes):
        yield Text("  " + ", ".join(f"{part} {gibibytes(int(size))}" for part, size in sizes.items() if size > 0))
    if own.host_optimizer_bytes:
        yield Text(f"  host memory of a node for what is offloaded: {gibibytes(int(own.host_optimizer_bytes))}")
    yield Text(f"  {speed_text(setting)}")


def speed_text(setting: Setting) -> str:
    """Step, tokens and what these cost, as far as they are known."""
    if (speed := setting.prediction.speed) is None:
        return "no speed: a rate of these devices is unknown"
    price, energy = setting.price_per_1e9_tokens, setting.wh_per_1e9_tokens
    costs = [] if price is None else [f"price {number(price)}"]
    costs += [] if energy is None else [f"{number(energy / 1000)} kWh"]
    words = [f"step {interval_s(speed.step_s)}", f"{number(speed.tokens_per_s.value)} tokens/s", *costs]
    return ", ".join(words) + " per 1e9 tokens" * bool(costs)


def _model(setting: Setting) -> str:
    return f"{setting.model}, {setting.parameters / 1e9:.3g}e9 weights"


def _peak(setting: Setting) -> str:
    return f"{gibibytes(int(setting.prediction.peak_bytes.value))}, P(fits) {percent(setting.prediction.p_fits)}"


def _time(change: Setting) -> str:
    return "" if change.time_share is None else f"{round(100 * change.time_share) or 0:+d} %"


def _effect(change: Setting) -> str:
    return "" if change.effect is Effect.NONE else str(change.effect)


def _changes(fit: Fit) -> Table:
    own = "your setting" if fit.given is not None else "it"
    numbers = ("peak", "freed", "P(fits)", "step")
    table = new_table(f"What to change in {own}, each alone", "change", *numbers, "", right=numbers)
    for one in fit.changes:
        sizes = (gibibytes(int(size)) for size in (one.prediction.peak_bytes.value, one.gain_bytes))
        table.add_row(one.words, *sizes, percent(one.prediction.p_fits), _time(one), _effect(one))
    return table
