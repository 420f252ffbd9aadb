"""Shares of a step over all ranks."""

from __future__ import annotations

import pytest

from meshtune.runners.step_breakdown import Profile
from meshtune.tuner.campaign.trial import time_by_part


def profile(*parts):
    count = len(parts)
    return Profile(
        step_time_s=1.0, parts_s=parts, waiting_s=({},) * count, own_times_s=((1.0,),) * count, stages=(0,) * count
    )


def test_the_parts_are_means_over_the_ranks_and_shares_of_the_step():
    found = time_by_part(profile({"tp": 0.4, "compute": 0.6}, {"compute": 0.8, "bubble": 0.2}))
    assert [part.part for part in found] == ["compute", "tp", "bubble"]
    assert [part.time_s for part in found] == pytest.approx([0.7, 0.2, 0.1])
    assert [part.share for part in found] == pytest.approx([0.7, 0.2, 0.1])


def test_a_part_of_another_workload_comes_last_and_counts():
    found = time_by_part(profile({"data": 1.0, "optimizer": 3.0}))
    assert [(part.part, part.share) for part in found] == [("optimizer", 0.75), ("data", 0.25)]
