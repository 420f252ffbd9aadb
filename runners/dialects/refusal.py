"""Why a program cannot run a plan: the rules that its capabilities make, on one plan, as problems."""

from __future__ import annotations

from meshtune.search_spaces.checks import Problem
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.constraints import CONSTRAINTS
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space_context import Capabilities, SpaceContext, Violation


def unsupported(model: ModelSpec, plan: Plan, cluster: ClusterSpec, able: Capabilities) -> list[Problem]:
    """What of the plan the program has no words for; whether the plan fits model and cluster is not asked."""
    setting = SpaceContext(model=model, cluster=cluster, global_batch_size=None, capabilities=able)
    asked = [rule for rule in CONSTRAINTS if rule.name == "zero" or rule.name.startswith("trainer-")]
    columns = columns_of([plan])
    broken = [rule for rule in (*asked, *able.rules) if not rule.holds(columns, setting).all()]
    return [Problem("plan", str(Violation(rule.name, rule.numbers(plan, setting), rule.reason))) for rule in broken]
