"""The language of conditions: what holds, what is refused and where."""

from typing import Any

import numpy as np
import pytest

from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.conditions import MAX_CHARACTERS, Domain, parse_condition
from meshtune.search_spaces.plan import Recompute

DOMAINS = {
    "tp": Domain(),
    "nodes": Domain(),
    "recompute": Domain(tuple(Recompute)),
    "sequence_parallel": Domain((False, True)),
    "fp8": Domain(("off", "tensorwise", "mxfp8"), first=1),
    "channels": Domain(("auto", 4, 8, 16), first=1),
}
# Three plans: the second one's knobs are inactive.
COLUMNS = {
    "tp": np.array([1, 4, 8]),
    "nodes": np.array([1, 2, 8]),
    "recompute": np.array([0, 1, 2]),
    "sequence_parallel": np.array([0, 1, 1]),
    "fp8": np.array([1, 0, 3]),
    "channels": np.array([1, 0, 4]),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tp > 1", [False, True, True]),
        ("1 < tp", [False, True, True]),
        ("tp >= 4 and tp <= 4", [False, True, False]),
        ("tp == nodes", [True, False, True]),
        ("recompute == selective", [False, True, False]),
        ("recompute != selective", [True, False, True]),
        ("recompute in [selective, 'full']", [False, True, True]),
        ("sequence_parallel", [False, True, True]),
        ("not sequence_parallel", [True, False, False]),
        ("sequence_parallel == false", [True, False, False]),
        ("tp == 1 or recompute == full and nodes > 2", [True, False, True]),
        ("(tp == 1 or recompute == full) and nodes > 2", [False, False, True]),
        ("not (tp == 1)", [False, True, True]),
        ("fp8 != off", [False, False, True]),
        ("fp8 == off", [True, False, False]),
        ("channels > 4", [False, False, True]),
        ("channels == auto", [True, False, False]),
        ("channels < tp", [False, False, False]),
        ("channels > tp", [False, False, True]),
        ("tp in [1, 8]", [True, False, True]),
    ],
)
def test_a_condition_holds_plan_by_plan_and_never_for_an_inactive_knob(text: str, expected: list[bool]) -> None:
    condition = parse_condition(text, DOMAINS)
    assert condition.holds(COLUMNS.__getitem__, 3).tolist() == expected


def test_the_names_of_a_condition_are_those_that_it_looks_at() -> None:
    assert parse_condition("tp > 1 and (fp8 == off or tp == 8)", DOMAINS).names == ("tp", "fp8")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zero_stge == 1", "at character 1 of 'zero_stge == 1': 'zero_stge' is no field of a plan and no knob"),
        ("tp > 1 and recmpute == full", "at character 12 of 'tp > 1 and recmpute == full': 'recmpute' is no field"),
        ("recompute == selectve", "at character 14 of 'recompute == selectve': 'selectve' is no value of recompute"),
        ("recompute > none", "only numbers have an order"),
        ("tp == four", "tp is a number, not 'four'"),
        ("tp", "tp is neither true nor false: compare it"),
        ("tp > ", "a name or a value is expected, not 'the end'"),
        ("(tp > 1", "')' is expected, not 'the end'"),
        ("tp > 1 tp", "'tp' is not expected here"),
        ("tp % 2 == 0", "'%' is not understood"),
        ("__import__('os')", "'__import__' is no field of a plan"),
        ("fp8 in off", "'[' is expected"),
        ("fp8 < tp", "fp8 is no number"),
        ("(" * 30 + "tp > 1" + ")" * 30, "is nested deeper than 20"),
        ("tp > 1 or " * MAX_CHARACTERS, f"more than {MAX_CHARACTERS}"),
    ],
)
def test_a_mistake_is_told_with_its_place(text: str, message: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        parse_condition(text, DOMAINS)
    assert message in str(refused.value)


def test_columns_may_hold_more_than_a_database_does() -> None:
    columns: dict[str, Any] = {"tp": np.array([2**70], dtype=object)}
    assert parse_condition("tp > 1", DOMAINS).holds(columns.__getitem__, 1).tolist() == [True]
