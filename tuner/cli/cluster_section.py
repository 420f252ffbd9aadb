"""A spec's `cluster` section of what a probe has measured, and what is told of the measurements."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from rich.console import Group
from rich.table import Table
from rich.text import Text

from meshtune.runners.documents import plain, read_value
from meshtune.runners.trainer_answers import TRIAD, Exchange, LinkFit, NoFit, Pattern, Probed, Rate, Tier, best_rates
from meshtune.runners.untrusted_text import SLOW_LIMITS, UnreadableText, read_file
from meshtune.search_spaces.checks import raising
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind, DeviceSpec
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.fitting import explained
from meshtune.search_spaces.physics.framework_profiles import TRAINER
from meshtune.tuner.campaign.units import gibibytes
from meshtune.tuner.cli.common import WrongCall
from meshtune.tuner.cli.render.terminal import new_table
from meshtune.tuner.specs.document import InvalidSpec, parse_yaml
from meshtune.tuner.specs.read import read_model

LINKS = {Tier.NODE: "node_link", Tier.NETWORK: "network_link"}
# More than repeats agree in.
DIGITS = 4


def require_writable(output: Path, *, force: bool) -> None:
    """Make sure that the file can be written, before anything is measured. Raises WrongCall, OSError."""
    if output.exists() and not output.is_file():
        raise WrongCall(f"{output}: is no ordinary file")
    if output.exists() and not force:
        raise WrongCall(f"{output}: is there already; --force replaces it")
    draft = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        draft.touch()
    except OSError as error:
        raise WrongCall(f"{output}: cannot be written: {error.strerror}") from None
    finally:
        with suppress(OSError):
            draft.unlink()


def model_named(text: str) -> ModelSpec:
    """The model of a preset's name, or of a file: a spec's section `model`, or a whole document that has it. Raises
    WrongCall."""
    with raising(WrongCall, f"--model {text}", UnreadableText, InvalidSpec):
        if not (file := Path(text)).is_file():
            return read_model(text)
        document = parse_yaml(read_file(file, SLOW_LIMITS.max_bytes))
        section = document.get("model", document) if isinstance(document, dict) else document
        return read_model(section)


def cluster_section(probed: Probed, name: str, memory_bytes: int | None) -> dict[str, Any]:
    """The section, complete and checked. memory_bytes: of one device, None: as probed. Raises InvalidValue."""
    triad = next(rate for rate in probed.memory if rate.what == TRIAD)
    best = {rate.what: rate.per_s for rate in best_rates(probed.matmul)}
    sustained = {rate.what: min(rate.per_s, best[rate.what]) for rate in probed.sustained}
    section: dict[str, Any] = {
        "name": name,
        "nodes": probed.nodes,
        "devices_per_node": probed.devices_per_node,
        "device": {
            "name": probed.device,
            "kind": str(probed.kind),
            "memory_bytes": memory_bytes or probed.memory_bytes,
            # A data sheet says more; here it is the most that was seen.
            "peak_flops": _rounded(best),
            "sustained_flops": _rounded(best | sustained),
            "memory_bandwidth_bytes_per_s": _rounded(triad.per_s),
        },
    }
    for tier, link in LINKS.items():
        exchange = probed.exchange(Pattern.ALL_REDUCE, tier)
        fit = None if exchange is None else _fit(exchange)
        if isinstance(fit, LinkFit):
            section[link] = {
                "latency_s": _rounded(fit.alpha_s),
                "bandwidth_bytes_per_s": _rounded(fit.bandwidth_bytes_per_s),
                "measured": True,
            }
    device = read_value(ClusterSpec, section).device
    if probed.rates:
        section["device"]["measured"] = {dtype: _rates(probed, device, dtype) for dtype in probed.rates}
        read_value(ClusterSpec, section)
    return section


def _rates(probed: Probed, device: DeviceSpec, dtype: str) -> dict[str, Any]:
    """The rates of training in one number format, complete; products of an accelerator at the speed that lasts."""
    rates, runs = probed.rates[dtype], probed.runs[dtype]
    if probed.model is not None:
        rates = explained(device, probed.model, TRAINER[dtype], rates, runs)
    if device.kind is not DeviceKind.CPU:
        lasts = device.sustained_flops[dtype] / device.peak_flops[dtype]
        slowed = (
            replace(one, forward_flops=one.forward_flops * lasts, backward_flops=one.backward_flops * lasts)
            for one in rates.products
        )
        rates = replace(rates, products=tuple(slowed))
    return {name: value for name, value in _rounded(asdict(rates)).items() if value}


def source(probed: Probed) -> str:
    """One line: what measured it, where, when and with which versions."""
    versions = ", ".join(f"{name} {each}" for name, each in probed.software.items())
    size = f"{probed.nodes} x {probed.devices_per_node} {probed.kind} devices"
    return (
        f"meshtune cluster probe {version('meshtune')}, {probed.seconds:.0f} s on {size}, host {probed.host}, "
        f"{probed.measured_at}; {versions}"
    )


def render_yaml(probed: Probed, section: dict[str, Any]) -> str:
    """A document whose only key is `cluster`, to be pasted into a spec; what cannot stand there is comment."""
    notes = (f"source: {source(probed)}", *_link_notes(probed))
    comments = "".join(f"# {note}\n" for note in notes)
    return comments + yaml.safe_dump(
        {"cluster": section}, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120
    )


def as_document(probed: Probed, section: dict[str, Any]) -> dict[str, Any]:
    """Everything, as plain JSON values: the section, its source, the fits and what they were fitted from."""
    fits = []
    for exchange in probed.exchanges:
        fit = _fit(exchange)
        fitted = asdict(fit) if isinstance(fit, LinkFit) else {"no_fit": str(fit)}
        fits.append({"pattern": str(exchange.pattern), "tier": str(exchange.tier), "ranks": exchange.ranks, **fitted})
    return {"cluster": section, "source": source(probed), "fits": fits, "measured": plain(probed)}


def tables(probed: Probed) -> Group:
    """The rates, the links, and the messages that they were fitted from."""
    title = f"{probed.device}: one of {probed.devices_per_node} per node, all at work"
    numbers = ("size", "per rank", "slowest rank", "fastest rank", "spread", "samples")
    rates = new_table(title, "what", right=numbers, spare=("samples", "fastest rank", "spread"))
    best = best_rates(probed.matmul)
    for rate in probed.matmul:
        _add(rates, rate, f"matmul {rate.what}", str(rate.size), "FLOP/s", bold=rate in best)
    for rate in probed.memory:
        _add(rates, rate, f"memory {rate.what}", gibibytes(rate.size), "B/s", bold=rate.what == TRIAD)
    if not probed.exchanges:
        return Group(rates, Text("one device: no links"))
    return Group(rates, _messages_table(probed), *map(Text, _link_notes(probed)))


def _messages_table(probed: Probed) -> Table:
    names = [f"{_pattern(exchange)}, {exchange.tier}" for exchange in probed.exchanges]
    table = new_table("Messages: the slowest rank's time, and its spread", right=("size", *names), spare=names[:0:-1])
    columns = [{message.size_bytes: message for message in exchange.messages} for exchange in probed.exchanges]
    for size in sorted({size for column in columns for size in column}):
        exchanges = [column.get(size) for column in columns]
        cells = (f"{_si(each.time_s, 's')} +-{each.spread:.0%}" if each else "-" for each in exchanges)
        table.add_row(gibibytes(size), *cells)
    return table


def _link_notes(probed: Probed) -> Iterator[str]:
    for exchange in probed.exchanges:
        fit = _fit(exchange)
        words = (
            f"{_si(fit.alpha_s, 's')} per hop, {_si(fit.bandwidth_bytes_per_s, 'B/s')}, "
            f"worst residual {fit.worst_residual:.0%}"
            if isinstance(fit, LinkFit)
            else f"left out, {fit}"
        )
        name = LINKS[exchange.tier] + (" between two" if exchange.pattern is Pattern.POINT_TO_POINT else "")
        yield f"{name}: {words} ({_pattern(exchange)}, {len(exchange.messages)} sizes)"


def _fit(exchange: Exchange) -> LinkFit | NoFit:
    try:
        return exchange.fit()
    except NoFit as error:
        return error


def _pattern(exchange: Exchange) -> str:
    name = str(exchange.pattern).replace("_", "-")
    return f"{name} of {exchange.ranks}" if exchange.pattern is Pattern.ALL_REDUCE else name


def _add(table: Table, rate: Rate, what: str, size: str, unit: str, *, bold: bool) -> None:
    rates = (_si(each, unit) for each in (rate.per_s, rate.lowest_per_s, rate.highest_per_s))
    table.add_row(what, size, *rates, f"+-{rate.spread:.0%}", str(rate.samples), style="bold" if bold else "")


def _rounded(value: Any) -> Any:
    """With its numbers to DIGITS digits, those inside of it too."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _si(value: float, unit: str) -> str:
    """Three digits with a decimal prefix, as 12.3 us."""
    value = float(f"{value:.3g}")
    prefixes = ((12, "T"), (9, "G"), (6, "M"), (3, "k"), (0, ""), (-3, "m"), (-6, "u"))
    power, prefix = next((each for each in prefixes if value >= 10 ** each[0]), prefixes[-1])
    return f"{value / 10**power:#.3g}".rstrip(".") + f" {prefix}{unit}"
