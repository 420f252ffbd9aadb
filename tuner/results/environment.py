"""The names by which a job script reads a plan."""

from meshtune.search_spaces.plan import PLAN_FIELDS

# Of every answer, whatever the plan.
ENVIRONMENT_NAMES = tuple(
    f"MESHTUNE_{name.upper()}" for name in (*PLAN_FIELDS, "global_batch_size", "measured", "source")
)
