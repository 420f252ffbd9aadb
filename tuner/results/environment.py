"""The names by which a job script reads a plan, and the values that it may read there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from meshtune.search_spaces.knob_values import word
from meshtune.search_spaces.plan import PLAN_FIELDS, Plan
from meshtune.search_spaces.presets import knob_catalogs

if TYPE_CHECKING:
    from meshtune.search_spaces.knob import Knob

# Of every answer, whatever the plan.
ENVIRONMENT_NAMES = tuple(
    f"MESHTUNE_{name.upper()}" for name in (*PLAN_FIELDS, "global_batch_size", "measured", "source")
)
# Of the knobs of a plan, by their names in upper case.
KNOB_PREFIX = "MESHTUNE_KNOB_"
KNOB_VARIABLE = re.compile(rf"{KNOB_PREFIX}[A-Z][A-Z0-9_]{{0,39}}")
# What may reach a command line or a script.
SAFE_VALUE = re.compile(r"[A-Za-z0-9_.:/-]+")


def catalog_variables() -> set[str]:
    """The variables that knobs of catalogs set. A campaign may name any; what a loader or a shell obeys is not given to
    other people's jobs."""
    return {str(entry["env"]) for catalog in knob_catalogs().values() for entry in catalog.values() if "env" in entry}


def knob_environment(knobs: Iterable[Knob], plan: Plan) -> tuple[dict[str, str], list[str]]:
    """MESHTUNE_KNOB_NAME for every knob of the plan, and the variable that a knob sets where a catalog has that
    variable; and the names of those left out, whose values have characters that no script is given."""
    known = catalog_variables() if plan.knobs else set[str]()
    values = {f"{KNOB_PREFIX}{name.upper()}": word(value) for name, value in plan.knobs.items()}
    for knob in knobs:
        if knob.env in known and knob.name in plan.knobs and (given := knob.told(plan.knobs[knob.name])) is not None:
            values[str(knob.env)] = word(given)
    unsafe = [name for name, value in values.items() if not SAFE_VALUE.fullmatch(value)]
    return {name: value for name, value in values.items() if name not in unsafe}, unsafe
