"""The spec of a campaign that measures two plans of another campaign with another program, and nothing else.

The user's document says how the program runs (`workload`, and `runner`, `trial` and others where they differ). The
question stays the other campaign's: model, devices and batch are taken from there, and may be repeated, not changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshtune.runners.documents import plain
from meshtune.search_spaces.checks import Checks, Problem, problems_as
from meshtune.search_spaces.knobs import sized
from meshtune.search_spaces.plan import AXES, Plan
from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.campaign.spec import FREE, CampaignSpec
from meshtune.tuner.specs.document import InvalidSpec
from meshtune.tuner.specs.read import parse_spec


def confirming_document(
    document: object, source: CampaignSpec, winner: Plan, rival: Plan, home: Home | None
) -> dict[str, Any]:
    """The spec's document: the rival is the baseline, the winner the only other plan; both run again in turns.
    source: of the campaign that measured both. Of the plans the layouts are measured: knobs are the first program's.
    Raises InvalidSpec, also where the program cannot run one of them."""
    if not isinstance(document, Mapping) or document.get("workload") is None:
        raise InvalidSpec([Problem("workload", "is missing: say how the other program is started")])
    cluster, own = sized(source.cluster, winner), sized(source.cluster, rival)
    if cluster != own or winner.layout == rival.layout:
        differ = "the sizes of their jobs" if cluster != own else "knobs alone, which are the first program's"
        raise InvalidSpec([Problem("space", f"the plan and the one that it is compared with differ in {differ}")])
    winner, rival = winner.layout, rival.layout
    batch = winner.global_batch_size if winner.global_batch_size == rival.global_batch_size else FREE
    derived = () if batch == FREE else ("grad_accum_steps",)
    asked = {
        "name": f"confirm {source.name}"[:100],
        "model": plain(source.model),
        "cluster": plain(cluster),
        "global_batch_size": batch,
        "runner": {"kind": source.runner.kind, **source.runner.options},
        "trial": plain(source.trial),
        "project": source.project,
        "seed": source.seed,
        **{key: value for key, value in document.items() if value is not None},
    }
    values = plain(winner)
    asked |= {
        "space": {
            "tp_across_nodes": source.space.tp_across_nodes,
            **{axis.name: [values[axis.name]] for axis in AXES if axis.bounded and axis.name not in derived},
        },
        "baseline": plain(rival),
        "search": "grid",
        "budget": _with(asked.get("budget", {}), trials=2),
        "trial": _with(asked["trial"], racing=False),
        "parallel": 1,
        "confirm": 1,
        "pareto": False,
        "warm_start": False,
    }
    # Without the baseline first: under another question that would be the mistake that is told.
    spec, space = parse_spec({**asked, "baseline": None}, home)
    with problems_as(InvalidSpec):
        checks, asked_batch = Checks(), source.global_batch_size
        same = replace(spec.model, name=source.model.name) == source.model
        checks.require(same, "model", f"is not that of the campaign, {source.model.name}; leave it out")
        here, there = (
            (one.nodes, one.devices_per_node, one.device.kind, one.device.memory_bytes)
            for one in (spec.cluster, cluster)
        )
        others = f"has other devices than the campaign's, {cluster.name}; leave it out"
        checks.require(here == there, "cluster", others)
        same = spec.global_batch_size in (None, asked_batch) or asked_batch is None
        batches = f"is {spec.global_batch_size}, the campaign's is {asked_batch}; leave it out"
        checks.require(same, "global_batch_size", batches)
        checks.done()
    parse_spec(asked, home)
    if broken := space.explain(winner):
        raise InvalidSpec([Problem("space", f"the plan {winner.key} cannot run there: {each}") for each in broken])
    return asked


def _with(section: object, **values: Any) -> object:
    """The section with these values; what is no section is left for reading to refuse."""
    return {**section, **values} if isinstance(section, Mapping) else section
