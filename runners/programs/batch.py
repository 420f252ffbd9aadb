"""Batch and devices of a training: what follows from what is said, and what contradicts itself.

    nodes * devices_per_node = devices
    tp * pp * cp * dp = devices
    micro_batch_size * grad_accum_steps * dp = global_batch_size

Any of these numbers that is not said follows where the others of its line are known. zero_group and etp follow from
what programs say in their place (`DERIVED`); `zero_nodes`: ZeRO shards over the devices of a node."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from meshtune.runners.programs.reading import DERIVED, Reading, path_of

_LINES = (
    (("nodes", "devices_per_node"), "devices"),
    (("tp", "pp", "cp", "dp"), "devices"),
    (("micro_batch_size", "grad_accum_steps", "dp"), "global_batch_size"),
)


def solve(reading: Reading, unsaid: Mapping[str, int]) -> None:
    """Put the numbers that follow into the reading, with a question for each contradiction and for what stays open.

    unsaid: what the program takes where neither a word nor the other numbers say it (grad_accum_steps: 1)."""
    numbers = reading.fields
    if reading.devices is not None:
        numbers.setdefault("devices", reading.devices)
    asked: set[str] = set()
    _follow(reading, asked)
    for name, value in unsaid.items():
        if name not in numbers and not reading.is_asked(path_of(name)):
            numbers[name] = value
            _follow(reading, asked)
    numbers.pop("devices", None)
    degree, mixed = numbers.pop("expert_tp", None), numbers.get("model.experts") or (numbers.get("ep") or 1) > 1
    if mixed and degree and degree != numbers.get("tp"):
        numbers["etp"] = degree
    experts = 0 if "etp" not in numbers else (numbers.get("tp") or 1) // (numbers["etp"] * (numbers.get("ep") or 1))
    if numbers.get("dp", 2) * numbers.get("cp", 1) == 1 and (numbers.get("zero_stage") or 0) > (experts > 1):
        # Nothing but experts is sharded over one rank: the only stage that a space has there.
        if said := reading.said.get("zero_stage"):
            reading.note(f"{said} over one data-parallel rank is the same setting as stage 0, which the spec has")
        numbers["zero_stage"] = 0
    _group(reading)


def _group(reading: Reading) -> None:
    """The ranks that ZeRO shards over, where they are not all."""
    numbers, names = reading.fields, [name for name, axis in DERIVED.items() if axis == "zero_group"]
    in_node = numbers.pop("zero_nodes", None)
    groups, ranks, shards = (numbers.pop(name, None) for name in names)
    # One node is one group.
    devices, alone = numbers.get("devices_per_node"), in_node and numbers.get("nodes") == 1
    if in_node and not (alone and devices in (None, 1)):
        reading.kept["zero_group"] = devices
    elif in_node:
        reading.note("ZeRO shards over a node's devices: on more nodes than one, write workload.fixed.zero_group")
    if numbers.get("zero_stage") == 0 or alone or not (in_node or ranks or shards or (groups or 1) > 1):
        return
    dp, cp = numbers.get("dp"), numbers.get("cp") or 1
    whole = dp * cp if dp else None
    if in_node:
        ranks = devices
    elif shards:
        ranks = shards * cp
    elif not ranks and whole and whole % groups == 0:
        ranks = whole // groups
    told = ", ".join(reading.said[name] for name in (["zero_stage"] if in_node else names) if name in reading.said)
    twice = groups and shards and groups * shards != dp
    if whole is None or ranks in (None, 1) or whole % ranks or twice:
        unfit = "one of one rank shards nothing" if ranks == 1 else f"they do not share out dp * cp = {whole} evenly"
        why = "dp is not known here" if whole is None else unfit
        told = f"{told or 'its sharding strategy'}: ZeRO shards over groups of ranks, and {why}; how large is one"
        places = ", here, in workload.fixed and, beside 0, in space" if in_node else ""
        reading.ask(path_of("zero_group"), f"{told}{places}?")
        numbers["zero_group"] = None
    elif ranks < whole:
        numbers["zero_group"] = ranks


def _follow(reading: Reading, asked: set[str]) -> None:
    numbers, before = reading.fields, -1
    while before != len(numbers):
        before = len(numbers)
        for factors, product in _LINES:
            known = [name for name in factors if numbers.get(name) is not None]
            value = prod(numbers[name] for name in known)
            total = numbers.get(product)
            if len(known) == len(factors) and total is None:
                numbers[product] = value
            elif total is not None and len(known) >= len(factors) - 1:
                share, rest = divmod(total, value)
                missing = next((name for name in factors if name not in known), "")
                if rest or not share or (not missing and share != 1):
                    _contradiction(reading, known, product, asked, whole=not missing)
                elif missing:
                    numbers[missing] = share


def _contradiction(reading: Reading, known: list[str], product: str, asked: set[str], *, whole: bool) -> None:
    path = "cluster.nodes" if product == "devices" else product
    if path in asked:
        return
    asked.add(path)
    numbers = reading.fields
    words = " * ".join(f"{name}({numbers[name]})" for name in known if numbers[name] != 1) or "1"
    fault = "is not" if whole else "does not divide"
    sources = [reading.said[name] for name in (*known, product) if reading.said.get(name)]
    told = f" ({', '.join(dict.fromkeys(sources))})" if sources else ""
    reading.ask(path, f"{words} {fault} {product}({numbers[product]}){told}: which is right?")
