"""Whether a training fits, on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from meshtune.tuner.campaign.units import gibibytes, number, percent
from meshtune.tuner.cli.render.predictions import interval_s
from meshtune.tuner.cli.render.terminal import new_table
from meshtune.tuner.prediction.fit import Effect, Fit, LargestModel, Setting

WORDS = {"load": "loading", "first_step": "first step", "steady": "later steps", "checkpoint": "writing a checkpoint"}


def fit_parts(fit: Fit) -> Iterator[Table | Text]:
    title = f"{fit.model}, {fit.parameters / 1e9:.3g}e9 weights, rows of up to {fit.seq_len:,} tokens, on {fit.cluster}"
    yield Text(f"{title}: {fit.training}", style="bold")
    if fit.given is not None:
        yield from _setting("your setting", fit.given, fit)
    if fit.fits:
        yield from _setting("the fastest that is safe", fit.best, fit)
    else:
        yield Text(f"nothing fits with P(fits) {percent(fit.sure)}", style="red")
        yield from _setting("the nearest", fit.best, fit)
        enough = fit.enough
        told = "no change that is known, nor more devices, would make it fit"
        if enough is not None:
            time = "" if enough.time_share is None else f", {_time(enough.time_share)} a step"
            note = f"; {enough.effect}" * (enough.effect is not Effect.NONE)
            told = f"it would fit with {enough.words}: {gibibytes(int(enough.peak_bytes))}{time}{note}"
        yield Text(told, style="bold")
    for name, most in (("largest micro-batch", fit.micro_batch_size), ("longest sequence", fit.seq_len_most)):
        if most is not None:
            chance = percent(most.setting.p_fits)
            yield Text(f"{name}: {most.value:,} (P(fits) {chance}), with {most.setting.words}")
    if fit.changes:
        yield _changes(fit)
    yield from (Text(f"note: {note}") for note in fit.notes)
    yield Text(f"basis: {fit.basis}")


def _setting(name: str, setting: Setting, fit: Fit) -> Iterator[Table | Text]:
    peak = setting.peak_bytes
    rows = f", with rows of {setting.seq_len:,} tokens" * (setting.seq_len != fit.seq_len)
    yield Text(f"\n{name}: {setting.words}   ({setting.plan_key})", style="bold")
    yield Text(
        f"peak {gibibytes(int(peak.value))} ({gibibytes(int(peak.low))} to {gibibytes(int(peak.high))}) of "
        f"{gibibytes(fit.device_bytes)}, P(fits) {percent(setting.p_fits)}{rows}"
    )
    yield Text("  " + ", ".join(f"{WORDS[name]} {gibibytes(int(size))}" for name, size in setting.phases_bytes.items()))
    parts = {part: size for part, size in setting.parts_bytes.items() if size > 0}
    yield Text("  " + ", ".join(f"{part} {gibibytes(int(size))}" for part, size in parts.items()))
    if setting.host_bytes:
        yield Text(f"  host memory of a node for what is offloaded: {gibibytes(int(setting.host_bytes))}")
    yield Text("  " + speed_text(setting))


def speed_text(setting: Setting) -> str:
    """Step, tokens and what these cost, as far as they are known."""
    if setting.step_s is None or setting.tokens_per_s is None:
        return "no speed: a rate of these devices is unknown"
    words = [f"step {interval_s(setting.step_s)}", f"{number(setting.tokens_per_s.value)} tokens/s"]
    price, energy = setting.price_per_1e9_tokens, setting.wh_per_1e9_tokens
    words += [f"price {number(price)}"] if price is not None else []
    words += [f"{number(energy / 1000)} kWh"] if energy is not None else []
    return ", ".join(words) + " per 1e9 tokens" * (price is not None or energy is not None)


def _time(share: float) -> str:
    return f"{round(100 * share) or 0:+d} %"


def _changes(fit: Fit) -> Table:
    own = "your setting" if fit.given is not None else "it"
    numbers = ("peak", "freed", "P(fits)", "step")
    table = new_table(f"What to change in {own}, each alone", "change", *numbers, "", right=numbers)
    for one in fit.changes:
        step = "" if one.time_share is None else _time(one.time_share)
        sizes = (gibibytes(int(one.peak_bytes)), gibibytes(int(one.gain_bytes)), percent(one.p_fits))
        table.add_row(one.words, *sizes, step, "" if one.effect is Effect.NONE else str(one.effect))
    return table


def largest_parts(found: Sequence[LargestModel], on: str) -> Iterator[Table | Text]:
    yield Text(f"The largest model that fits on {on}, by method", style="bold")
    for one in found:
        if one.model is None or one.parameters is None or one.setting is None:
            yield Text(f"{one.method}: no preset fits")
            continue
        setting, size = one.setting, f"{one.parameters / 1e9:.3g}e9 weights"
        peak = f"{gibibytes(int(setting.peak_bytes.value))}, P(fits) {percent(setting.p_fits)}"
        yield Text(f"{one.method}: {one.model}, {size}: {peak}")
        yield Text(f"  {setting.words}")
        yield Text(f"  {speed_text(setting)}")
