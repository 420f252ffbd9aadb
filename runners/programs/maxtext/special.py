"""What no row of MaxText's table can say: its axes inside and between slices, each a number, or -1 for the rest.

Line references are to maxtext 0.2.4 (e591f30c), src/maxtext/."""

from __future__ import annotations

from math import prod

from meshtune.runners.programs.reading import Reading
from meshtune.runners.programs.rows import VALUES
from meshtune.runners.programs.table import table_of

_KINDS = {kind: axes.split() for kind, axes in table_of("meshtune.runners.programs.maxtext").lists["axes"].items()}


def axes(reading: Reading) -> None:
    """Degrees, and nodes (slices) and devices of each, where no axis is the rest: configs/base.yml."""
    sizes: dict[str, dict[str, int]] = {"ici": {}, "dcn": {}}
    for level, rest in (("ici", "fsdp"), ("dcn", "data")):
        for axis in (axis for kind in _KINDS.values() for axis in kind):
            value = reading.get(f"{level}_{axis}_parallelism")
            sizes[level][axis] = value if isinstance(value, int) else -1 if axis == rest else 1
    fields = reading.fields
    for level, field in (("ici", "devices_per_node"), ("dcn", "nodes")):
        own, known = sizes[level], prod(size for size in sizes[level].values() if size > 0)
        open_ = [axis for axis, size in own.items() if size < 0]
        if field in fields and open_:
            own[open_[0]] = max(1, fields[field] // known)
        elif not open_ or known > 1:
            fields[field] = known
            for axis in open_:
                own[axis] = 1
                reading.ask("", f"{level}_{axis}_parallelism takes what is left: are there {known} {field} in all?")
    degrees = {kind: prod(max(1, sizes[level][axis]) for level in sizes for axis in of) for kind, of in _KINDS.items()}
    fields |= {name: degrees[name] for name in ("tp", "pp", "cp")}
    if degrees["ep"] > 1:
        reading.ask("", f"expert axes of {degrees['ep']}: fill in baseline.ep and workload.fixed.ep")
    if degrees["cp"] > 1:
        strategy = str(reading.get("context_parallel_strategy") or "all_gather")
        fields["context"] = strategy if strategy in VALUES["context"] else None
    whole = degrees["fsdp"] > 1 or min(sizes["ici"]["fsdp"], sizes["dcn"]["fsdp"]) < 0
    sharded = reading.get("shard_optimizer_over_data") is True
    fields["zero_stage"] = 3 if whole else 1 if sharded else 0
    if degrees["data"] > 1 and whole:
        reading.put("zero_groups", degrees["data"], "ici_data_parallelism", "dcn_data_parallelism")


def batch(reading: Reading) -> None:
    """per_device_batch_size counts rows for each device, of whatever axis."""
    said = reading.get("per_device_batch_size")
    group = prod(reading.fields[name] for name in ("tp", "pp", "cp"))
    rows = (12 if said is None else said) * group if isinstance(said, int | float | None) else 0
    if rows < 1 or rows != int(rows):
        reading.ask("baseline.micro_batch_size", f"per_device_batch_size {said}: how many rows has a pass?")
        reading.fields["micro_batch_size"] = None
        return
    reading.put("micro_batch_size", int(rows), "per_device_batch_size")
    if group > 1:
        reading.kept["micro_batch_size"] = int(rows)
