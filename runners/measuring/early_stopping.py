"""A run may stop early once it is surely slower than the best one known, however often that was asked.

Looking after every step at a 95 % interval would stop an equally fast plan in more than 5 % of runs, the more the
longer they are. This is a sequential sign test instead: of a plan whose median is at most the incumbent's, each step is
slower than the incumbent with probability p <= 1/2; the likelihood of all p > 1/2 alike against p = 1/2 is then a
supermartingale, which ever reaches 1 / error with probability `error` at most (Ville 1939; Robbins 1970). Exact for
independent steps of any distribution. Not covered: noise that lasts for many steps, and differences between runs;
whoever names the incumbent leaves room for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

from meshtune.runners.measuring.median_interval import MIN_SAMPLES, median_interval

# Half of the 5 % that may go wrong; the other half is for warm-up steps that slipped through.
ERROR = 0.025


def evidence_of_slower(slower: int, steps: int) -> float:
    """How much likelier `slower` of `steps` are under a slower plan (any p > 1/2 alike) than under an equal one.

    2**n times the mean of p**k (1-p)**(n-k) over p in (1/2, 1), by the incomplete beta function for integers.
    """
    return sum(comb(steps + 1, i) for i in range(slower + 1)) / ((steps + 1) * comb(steps, slower))


def is_surely_slower(samples: Sequence[float], incumbent_s: float) -> bool:
    """True when these step times are slower than the incumbent's: wrong in at most `ERROR` of runs, all looks together.

    Also asks that the 95 % interval of the median lies wholly above, so that people see why.
    """
    if len(samples) < MIN_SAMPLES:
        return False
    slower = sum(sample > incumbent_s for sample in samples)
    if evidence_of_slower(slower, len(samples)) < 1 / ERROR:
        return False
    return median_interval(samples).low > incumbent_s
