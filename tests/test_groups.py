"""Tests that share something costly are one worker's: the groups of tests/conftest.py reach pytest-xdist."""

from __future__ import annotations

import pytest


@pytest.mark.slow
def test_the_group_of_a_test_is_known_to_pytest_xdist(request: pytest.FixtureRequest) -> None:
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("the tests are not dealt out by their groups")
    # pytest-xdist 3.8 tells a group by the name, which pytest 9.2 does not let it change: then nothing is grouped.
    assert request.node.nodeid.endswith("@test_groups")
