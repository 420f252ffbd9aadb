"""Published settings of reinforcement learning: legal, fitting, and in the right order."""

from __future__ import annotations

import pytest
from rl_published import PAGE, Predicted, order, predict, settings, table


@pytest.fixture(scope="module")
def found() -> list[Predicted]:
    """Each is legal, else it could not be predicted."""
    return [predict(one) for one in settings()]


def test_settings_that_ran_fit_but_for_two(found: list[Predicted]) -> None:
    assert len(found) == 21
    # Megatron's MoE without recomputation, and 20,000 tokens of a 72B a pass: docs/explanation/physics-rl.md.
    assert {one.setting["name"] for one in found if not one.fits} == {"30b-32-h100", "verl-72b-32-h800"}


def test_settings_of_one_model_are_in_the_published_order(found: list[Predicted]) -> None:
    pairs = order(found)
    assert len(pairs) == 13
    wrong = [(one.setting["name"], other.setting["name"]) for one, other, right in pairs if not right]
    # The published step is longer with twice the devices.
    assert wrong == [("235b-64-gb200", "235b-128-gb200")]


def test_the_page_has_these_figures(found: list[Predicted]) -> None:
    assert table(found) in PAGE.read_text()
