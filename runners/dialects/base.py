"""The seam to other programs' own words: a Plan written as their arguments or files, and read back from them.

A dialect module has `render(model, plan, cluster, extra) -> Files` and, where its program's scripts can be read,
`parse(text) -> Imported`, which gives the plan of one of render's texts back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshtune.search_spaces.checks import Problem
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.columns import Capabilities, SpaceContext, Violation, columns_of
from meshtune.search_spaces.constraints import CONSTRAINTS
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan

# Texts by file name.
Files = Mapping[str, str]


class CannotExpress(ValueError):
    """The program has no words for this plan; `problems` says which parts, each with what it could do instead."""

    def __init__(self, program: str, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(f"{program} cannot run this plan: " + "; ".join(map(str, problems)))


class CannotRead(ValueError):
    """A launch script or configuration that is not understood; the message names the line or key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What a launch script or configuration says, as parts of a campaign spec; what it does not say is left out.

    model, plan: fields of ModelSpec and of Plan. workload: the spec's section, the user's other arguments in it. notes:
    what was assumed, and what was not understood and is left to the user.
    """

    workload: Mapping[str, Any]
    model: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    global_batch_size: int | None = None
    nodes: int | None = None
    devices_per_node: int | None = None
    notes: tuple[str, ...] = ()


def unsupported(model: ModelSpec, plan: Plan, cluster: ClusterSpec, able: Capabilities) -> list[Problem]:
    """What of the plan the program has no words for; whether the plan fits model and cluster is not asked."""
    setting = SpaceContext(model=model, cluster=cluster, global_batch_size=None, capabilities=able)
    asked = [rule for rule in CONSTRAINTS if rule.name == "zero" or rule.name.startswith("trainer-")]
    columns = columns_of([plan])
    broken = [rule for rule in (*asked, *able.rules) if not rule.holds(columns, setting).all()]
    return [Problem("plan", str(Violation(rule.name, rule.numbers(plan, setting), rule.reason))) for rule in broken]
