"""A rank that is slower than its peers is named, noise and imbalanced stages are not."""

from __future__ import annotations

import random

import pytest

from meshtune.runners.step_breakdown import find_straggler


def times(generator: random.Random, level: float, steps: int = 5) -> list[float]:
    return [level * (1 + generator.expovariate(1 / 0.1)) for _ in range(steps)]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_slow_rank_is_named_with_its_ratio(ranks):
    generator = random.Random(ranks)
    for slow in range(ranks):
        own = [times(generator, 2.0 if rank == slow else 1.0) for rank in range(ranks)]
        found = find_straggler(own, [0] * ranks)
        assert found is not None
        assert found.rank == slow
        assert 1.6 < found.ratio < 2.4
        assert str(found).startswith(f"rank {slow} takes ")


@pytest.mark.parametrize("ranks", [2, 8])
def test_equal_ranks_with_skewed_noise_are_hardly_ever_blamed(ranks):
    generator = random.Random(7)
    blamed = sum(
        find_straggler([times(generator, 1.0) for _ in range(ranks)], [0] * ranks) is not None for _ in range(1000)
    )
    assert blamed < 10


def test_one_hiccup_names_nobody():
    assert find_straggler([[1.0, 1.0, 9.0, 1.0, 1.0], [1.0] * 5], [0, 0]) is None


def test_a_stage_with_more_work_is_no_straggler_but_a_slow_rank_in_it_is():
    stages = [0, 0, 1, 1]
    assert find_straggler([[1.0] * 3, [1.0] * 3, [2.0] * 3, [2.0] * 3], stages) is None
    found = find_straggler([[1.0] * 3, [1.0] * 3, [2.0] * 3, [3.0] * 3], stages)
    assert found is not None
    assert (found.rank, found.ratio) == (3, 1.5)
