"""Uneven routing: how far the loads of experts, and of the ranks that share them, are from equal.

Skewed routing: which share of all copies of tokens each expert of a layer gets, the same in every layer.

The imbalance is the load of the busiest expert over the mean, which is how routers are measured (Ma et al. 2026, arXiv
2605.20982: it hardly depends on ep). The others follow Zipf's law, which one number fixes: the r-th gets r ** -s. That
form is a choice, as is the order of the experts: scattered, so that neighbours on a rank are not alike. In trained
models other experts are busy in every layer, so memory of the fullest rank is at its worst here."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from statistics import NormalDist
from zlib import crc32

from meshtune.search_spaces.checks import StrEnum


class Routing(StrEnum):
    """What keeps the experts' loads apart or together. EVEN: each gets as many copies of tokens, by their places.
    RANDOM: random choices (Megatron's `--moe-router-force-load-balancing`). LEARNED: a loss or a bias keeps a learnt
    router near balance. UNCHECKED: nothing does."""

    EVEN = "even"
    RANDOM = "random"
    LEARNED = "learned"
    UNCHECKED = "unchecked"


# Deviations of experts' loads, in those of a router that is kept near balance (`Constants.router_spread`). UNCHECKED: a
# learnt router starts at 1.5 of them, and later took 2.2 times the step of a forced one (marin-community/marin issue
# 7668), which is some 8; the mean of both in logarithms.
UNEVEN = {Routing.EVEN: 0.0, Routing.RANDOM: 0.0, Routing.LEARNED: 1.0, Routing.UNCHECKED: 3.0}


def busiest_of(ranks: int) -> float:
    """How many deviations the largest of so many normal loads is above their mean (Blom 1958)."""
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


# Beyond this exponent the second expert of two gets nothing that a float64 notices beside the first.
_STEEPEST = 64.0
_HALVINGS = 80


@lru_cache(maxsize=64)
def skewed_shares(experts: int, imbalance: float) -> tuple[float, ...]:
    """By the expert's number; the sum is 1, the largest imbalance / experts. imbalance: from 1 to `experts`."""
    flat, steep = 0.0, _STEEPEST
    for _ in range(_HALVINGS):
        middle = (flat + steep) / 2
        if experts / sum(rank**-middle for rank in range(1, experts + 1)) < imbalance:
            flat = middle
        else:
            steep = middle
    loads = [rank**-flat for rank in range(1, experts + 1)]
    busiest_first = sorted(range(experts), key=lambda number: crc32(str(number).encode()))
    by_number = dict(zip(busiest_first, loads, strict=True))
    return tuple(by_number[number] / sum(loads) for number in range(experts))


@lru_cache(maxsize=1024)
def rank_loads(experts: int, imbalance: float, ranks: int) -> tuple[float, ...]:
    """How many times the mean each of the ranks gets that share the experts in order. Where they do not divide them
    the last one may have fewer."""
    shares, width = skewed_shares(experts, imbalance), -(-experts // ranks)
    return tuple(ranks * sum(shares[start : start + width]) for start in range(0, experts, width))


@lru_cache(maxsize=64)
def systematic_edges(experts: int, top_k: int, imbalance: float) -> tuple[float, ...]:
    """Where on a line from 0 to top_k each expert's piece begins but the first one's, each as long as its share: a
    token with u in [0, 1) goes to those at u, u + 1, ... (systematic sampling, Madow 1949). They are top_k different
    ones as long as no piece is longer than 1: imbalance <= experts / top_k."""
    return tuple(accumulate(top_k * share for share in skewed_shares(experts, imbalance)))[:-1]
