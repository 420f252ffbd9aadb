"""Whether a training fits, on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import floor
from typing import Any

from rich.table import Table
from rich.text import Text

from meshtune.tuner.campaign.units import gibibytes, interval_s, number, percent, seconds
from meshtune.tuner.cli.render.terminal import new_table
from meshtune.tuner.prediction.fit import Fit, Setting
from meshtune.tuner.prediction.memory_needs import LOADED, OFFLOADED, SURE
from meshtune.tuner.prediction.predict import Prediction

WORDS = {"load": "loading", "first_step": "first step", "steady": "later steps", "checkpoint": "writing a checkpoint"}
WORDS |= {"generation": "generation", "log_probs": "log-probabilities"}
# In the diagram, of the phase that fails.
LETTERS = {"generation": "g", "log_probs": "p", "steady": "u"}


def fit_parts(fit: Fit) -> Iterator[Table | Text]:
    best, enough = fit.best, fit.enough
    rows = f"rows of up to {fit.seq_len:,} tokens"
    yield Text(f"{_model(best)}, {rows}, on {fit.cluster}: {best.training}", style="bold")
    if fit.given is not None:
        yield from _setting("your setting", fit.given)
    if not fit.fits:
        yield Text(f"\nnothing fits with P(fits) {percent(SURE)}", style="red")
    name = "the fastest that is safe" if fit.fits else "the nearest"
    same = fit.given is not None and fit.given.prediction.plan_key == best.prediction.plan_key
    yield from [Text(f"\n{name}: your setting", style="bold")] if same else _setting(name, best)
    if enough is not None:
        parts = filter(None, [_peak(enough), _time(enough), enough.effect])
        yield Text(f"it would fit with {enough.words}: {', '.join(parts)}", style="bold")
    elif not fit.fits:
        yield Text("no change that is known would make it fit", style="bold")
    if (most := fit.largest_micro_batch) is not None:
        yield Text(f"largest micro-batch: {most.prediction.plan.micro_batch_size:,}: {_peak(most)}: {most.words}")
    if (most := fit.longest_sequence) is not None:
        yield Text(f"longest sequence: {most.seq_len:,}: {_peak(most)}: {most.words}")
    if fit.diagram:
        yield _diagram(fit)
        yield Text("g, p, u: generation, log-probabilities, update (later steps) may not fit; ~: rows wait; *: fastest")
    if fit.changes:
        yield _changes(fit)
    yield from (Text(f"note: {note}") for note in fit.notes)
    yield Text(f"basis: {fit.basis}")


def largest_parts(found: Mapping[str, Setting | None], on: str) -> Iterator[Table | Text]:
    yield Text(f"The largest model that fits on {on}, by method", style="bold")
    for method, one in found.items():
        if one is None:
            yield Text(f"\n{method}: no preset fits", style="bold")
        else:
            yield from _setting(f"{method}, {_model(one)}", one)


def prediction_lines(own: Prediction) -> list[str]:
    """Memory of a device and of a host, and a step's time, as far as they are known, with their parts."""
    peak, speed = own.peak_bytes, own.speed
    hosts = {OFFLOADED: own.host_optimizer_bytes, LOADED: own.host_loading_bytes}
    lines = [
        f"memory: {gibibytes(int(peak.value))} ({gibibytes(int(peak.low))} to {gibibytes(int(peak.high))}) "
        f"of {gibibytes(own.device_bytes)}, P(fits) {_chance(own.p_fits)}",
        f"  {_sizes(own.memory_parts_bytes)}",
        *(f"{words}: {gibibytes(int(size))}" for words, size in hosts.items() if size > 0),
    ]
    if speed is not None:
        times = [f"{part} {seconds(one)}" for part, one in speed.parts_s.items() if one > 0]
        tokens = f"{number(speed.tokens_per_s.value)} tokens/s, MFU {percent(speed.mfu)}"
        lines += [f"step: {interval_s(speed.step_s)}, {tokens}", f"  {', '.join(times)}"]
    return lines


def _chance(p_fits: float) -> str:
    """Rounded down, as less than 90 % is not safe."""
    return percent(p_fits if p_fits < 0.1 else floor(100 * p_fits) / 100)


def _sizes(parts: Mapping[Any, float]) -> str:
    return ", ".join(f"{part} {gibibytes(int(size))}" for part, size in parts.items() if size > 0)


def _setting(name: str, setting: Setting) -> Iterator[Text]:
    yield Text(f"\n{name}: {setting.words}   ({setting.prediction.plan_key})", style="bold")
    phases = {WORDS[phase]: size for phase, size in setting.phases_bytes.items()}
    yield Text(f"with rows of {setting.seq_len:,} tokens: {_sizes(phases)}")
    yield from map(Text, prediction_lines(setting.prediction))
    if (own := setting.generated) is not None:
        for phase, chance in own.p_fits.items():
            free = max(0.0, 1 - setting.phases_bytes[phase] / setting.prediction.device_bytes)
            takes = f", {seconds(own.phases_s[phase])}" if own.phases_s else ""
            yield Text(f"{WORDS[phase]}: P(fits) {_chance(chance)}, {percent(free)} of the memory free{takes}")
        idle = f"; idle: training {percent(own.training_idle)}, engines {percent(own.engines_idle)}"
        apart = idle * (own.training_idle + own.engines_idle > 0)
        yield Text(f"rows in flight in an engine: {number(own.in_flight)} of {number(own.wanted)}{apart}")
    price, energy = setting.price_per_1e9_tokens, setting.wh_per_1e9_tokens
    costs = [] if price is None else [f"price {number(price)}"]
    costs += [] if energy is None else [f"{number(energy / 1000)} kWh"]
    if costs:
        yield Text(f"{', '.join(costs)} per 1e9 tokens")


def _model(setting: Setting) -> str:
    return f"{setting.model}, {setting.parameters / 1e9:.3g}e9 weights"


def _peak(setting: Setting) -> str:
    return f"{gibibytes(int(setting.prediction.peak_bytes.value))}, P(fits) {_chance(setting.prediction.p_fits)}"


def _time(change: Setting) -> str:
    return "" if change.time_share is None else f"{round(100 * change.time_share) or 0:+d} %"


def _diagram(fit: Fit) -> Table:
    """P(fits) of the phase that fits least, with its letter where that is not safe."""
    sizes = sorted({cell.micro_batch for cell in fit.diagram})
    heads = [str(size) for size in sizes]
    table = new_table("P(fits) by the engine's share and the micro-batch", "share", *heads, right=heads)
    cells = {(cell.share, cell.micro_batch): cell for cell in fit.diagram}
    for share in sorted({cell.share for cell in fit.diagram}):
        row = []
        for cell in (cells[share, size] for size in sizes):
            marks = LETTERS[cell.phase] * (cell.p_fits < SURE) + "~" * cell.waits + "*" * (cell == fit.fastest_cell)
            row.append(f"{_chance(cell.p_fits)} {marks}".rstrip())
        table.add_row(f"{share:g}", *row)
    return table


def _changes(fit: Fit) -> Table:
    own = "your setting" if fit.given is not None else "it"
    numbers = ("peak", "freed", "P(fits)", "step")
    table = new_table(f"What to change in {own}, each alone", "change", *numbers, "", right=numbers)
    for one in fit.changes:
        sizes = (gibibytes(int(size)) for size in (one.prediction.peak_bytes.value, one.gain_bytes))
        table.add_row(one.words, *sizes, _chance(one.prediction.p_fits), _time(one), one.effect)
    return table
