"""Statistics of step times: intervals of the mean and of the median, the end of warm-up, early stopping; and the steps
that a job takes. All cost a sort at the most.

Step times are skewed and have outliers. The mean is what a training takes, so it is the measure of a plan; where steps
are told from noise (is it tight, is it slower), the median is asked, and no normality is assumed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, combinations
from math import atan, ceil, cos, erf, exp, fsum, pi, sin, sqrt
from statistics import median

from meshtune.runners.base import JobSpec

# What anybody can have measured, of a step or a part of it, in seconds.
MIN_STEP_S, MAX_STEP_S = 1e-9, 1e9
CONFIDENCE = 0.95
MIN_SAMPLES = 6  # 1 - 2 / 2**6 = 0.969; with 5 samples even the full range covers the median with 0.9375 only
# Of more samples than this the normal approximation is as good, and exact integers have thousands of digits.
MAX_EXACT = 1000
NORMAL = 1.959964  # the quantile of 97.5 %


@dataclass(frozen=True, slots=True)
class Interval:
    """[low, high] in the unit of the samples; coverage is the true confidence, at least 0.95 from 6 samples on."""

    low: float
    high: float
    coverage: float


def median_interval(samples: Sequence[float]) -> Interval:
    """The narrowest order-statistic interval around the median with at least 95 % coverage.

    Exact and distribution-free: of n independent samples the number below the median is binomial(n, 1/2), so the j-th
    smallest and j-th largest enclose it with a known probability (David and Nagaraja 2003, section 7.1). With fewer
    than 6 samples no such interval exists: the full range comes back with the coverage it has. Of more than MAX_EXACT
    samples the ranks are those of the normal approximation. Raises ValueError for no samples."""
    if not samples:
        raise ValueError("no samples, so no interval")
    ordered = sorted(samples)
    n = len(ordered)
    if n > MAX_EXACT:
        rank = int((n - 1 - NORMAL * sqrt(n)) / 2)
        return Interval(ordered[rank], ordered[n - 1 - rank], erf((n - 1 - 2 * rank) / sqrt(2 * n)))
    # Of the 2^n ways in which the samples fall on the two sides of the median, `outside` have at most `candidate` below
    # it: exact integers, since 2^-n is no float from 1075 samples on.
    outside, ways = 0, 1
    rank, coverage = 0, max(0.0, 1.0 - 2 / 2**n)
    for candidate in range((n - 1) // 2 + 1):
        outside += ways
        if 1.0 - 2 * outside / 2**n < CONFIDENCE:
            break
        rank, coverage = candidate, 1.0 - 2 * outside / 2**n
        ways = ways * (n - candidate) // (candidate + 1)
    return Interval(ordered[rank], ordered[n - 1 - rank], coverage)


def mean_interval(samples: Sequence[float]) -> Interval:
    """Student's 95 % interval of the mean of positive samples; of one sample itself, which covers nothing. Of skewed
    samples it covers less, and of what differs between runs nothing. Raises ValueError for no samples."""
    n = len(samples)
    middle = fsum(samples) / n if n else 0.0
    if n < 2:
        return Interval(min(samples), max(samples), 0.0)
    deviation = sqrt(fsum((sample - middle) ** 2 for sample in samples) / (n - 1))
    reach = two_sided_quantile(CONFIDENCE, min(n - 1, MAX_EXACT)) * deviation / sqrt(n)
    # As near as the other end where both are near; no mean lies below zero.
    return Interval(middle * exp(-reach / middle), middle + reach, CONFIDENCE)


def at_mean_tokens(times_s: Sequence[float], tokens: Sequence[float]) -> tuple[list[float], float]:
    """The times of steps at the mean of their tokens, with the pace of all steps for the tokens between; and that mean.
    What has no tokens goes on with the rows of the step before, and is part of it. The mean of the times stays; they
    scatter as the ratio does, so that the interval of the mean is that of tokens per second (Cochran, Sampling
    Techniques, 1977, chapter 6). As they are, where that leaves no time of a step."""
    steps: list[tuple[float, float]] = []
    for taken, count in zip(times_s, tokens, strict=True):
        before, whose = steps.pop() if steps and not count else (0.0, count)
        steps.append((before + taken, whose))
    pace_s, mean = sum(times_s) / sum(tokens), sum(tokens) / len(steps)
    moved = [taken + pace_s * (mean - count) for taken, count in steps]
    return (moved if min(moved) >= MIN_STEP_S else [taken for taken, _ in steps]), mean


def is_tight(samples: Sequence[float], precision: float) -> bool:
    """True when the 95 % interval of the median lies within +- `precision` (relative) of the median."""
    if len(samples) < MIN_SAMPLES:
        return False
    interval, middle = median_interval(samples), median(samples)
    return max(interval.high - middle, middle - interval.low) <= precision * middle


WINDOW = 6
TREND = 1.3  # standard deviations of Kendall's S without a trend: 7 of the 15 pairs of 6 steps


def is_settled(window: Sequence[float], tolerance: float) -> bool:
    """True when the first step does not stand out by more than `tolerance`, and there is no trend larger than that.

    Two rank tests: the first step is slower than all but one of the others, or faster than all (a spike); Kendall's S,
    the pairs in one order minus those in the other, is beyond `TREND` (a ramp; of noise alone, 1 window in 7 either
    way). They are sharp on purpose: dropping a good step costs that step (half a step per run, on average), keeping a
    bad one costs truth. Not seen: a drift that is slow against a window; it keeps the interval of the median wide."""
    if len(window) < 3:
        return True
    first, others = window[0], sorted(window[1:])
    if first > others[-2] * (1 + tolerance) or first < others[0] * (1 - tolerance):
        return False
    half = len(window) // 2
    early, late = median(window[:half]), median(window[half:])
    if abs(early - late) <= tolerance * late:
        return True
    spaced = window[:: 1 + len(window) // 64]  # looked at after every step, which hundreds of steps must not delay
    n = len(spaced)
    order = sum((later > earlier) - (later < earlier) for earlier, later in combinations(spaced, 2))
    return abs(order) < TREND * sqrt(n * (n - 1) * (2 * n + 5) / 18)


def window_of(times: Sequence[float], window: int, seconds: float) -> Sequence[float]:
    """The fewest first steps that are at least `window` and take at least `seconds`; empty while there are too few."""
    for length, taken_s in enumerate(accumulate(times), start=1):
        if length >= window and taken_s >= seconds:
            return times[:length]
    return times[:0]


def warmup_length(
    times: Sequence[float], *, most: int, window: int, tolerance: float, seconds: float = 0.0
) -> int | None:
    """How many of the first steps are warm-up, at most `most`; None while too few steps are known to say.

    A step is warm-up while the window that begins with it is not settled. A truncation point that looks ahead is what
    Geweke (1992) and MSER (White 1997) choose too; theirs compare means and variances, which one outlier moves. An
    answer is final: more steps do not change it.

    seconds: a window takes at least so long, since an accelerator's clock falls for a second or two once it is warm,
    which six short steps do not see; and warm-up ends with the step that brings it to so many, since what is cold
    in the beginning is warm by then, however few steps that are."""
    for start in range(most):
        view = window_of(times[start:], window, seconds)
        if not view:
            return None
        if is_settled(view, tolerance):
            return start
        if 0 < seconds <= sum(times[: start + 1]):
            return start + 1
    return most


# Half of the 5 % that may go wrong; the other half is for warm-up steps that slipped through.
ERROR = 0.025


def evidence_of_slower(slower: int, steps: int) -> float:
    """How much likelier `slower` of `steps` are under a slower plan (any p > 1/2 alike) than under an equal one.

    2**n times the mean of p**k (1-p)**(n-k) over p in (1/2, 1), by the incomplete beta function for integers: its sum
    from the largest term on, each a multiple of the one before."""
    term = total = 1 / (steps + 1 - slower)
    for i in range(slower, 0, -1):
        term *= i / (steps + 2 - i)
        total += term
    return total


def is_surely_slower(samples: Sequence[float], incumbent_s: float) -> bool:
    """A sequential sign test: whether these step times are slower than the incumbent's. Wrong in at most `ERROR` of
    runs, however often it is asked; looks at a 95 % interval after every step would be wrong in more than 5 %.

    Of a plan whose median is at most the incumbent's, each step is slower than the incumbent with probability p <= 1/2.
    The likelihood of all p > 1/2 alike against p = 1/2 is then a supermartingale, which ever reaches 1 / ERROR with
    probability ERROR at most (Ville 1939; Robbins 1970). Exact for independent steps of any distribution; not covered
    are noise that lasts for many steps, and differences between runs, for which whoever names the incumbent leaves
    room. The 95 % interval of the median must lie wholly above too, so that people see why."""
    if len(samples) < MIN_SAMPLES:
        return False
    slower = sum(sample > incumbent_s for sample in samples)
    if evidence_of_slower(slower, len(samples)) < 1 / ERROR:
        return False
    return median_interval(samples).low > incumbent_s


def probability_within(t: float, degrees: int) -> float:
    """The probability that Student's t lies between -t and t: Abramowitz and Stegun 26.7.3 and 26.7.4."""
    angle = atan(t / sqrt(degrees))
    term = cos(angle) if degrees % 2 else 1.0
    total = term if degrees > 1 else 0.0
    for k in range(3 if degrees % 2 else 2, degrees - 1, 2):
        term *= cos(angle) ** 2 * (k - 1) / k
        total += term
    return 2 / pi * (angle + sin(angle) * total) if degrees % 2 else sin(angle) * total


@cache
def two_sided_quantile(level: float, degrees: int) -> float:
    """The t between minus and plus which a share `level` of the distribution lies. degrees: at least 1."""
    low, high = 0.0, 1.0
    while probability_within(high, degrees) < level:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if probability_within(middle, degrees) < level else (low, middle)
    return high


# Job files of the built-in trainer and of the simulated workload, for readers that know no workload.
JOB_FILES = ("job.json", "simulated.json")
# That of `runners.watch`: time limit, patterns of a log, variables that the command does not have; and what begins its
# words in the log of a job that tells too few steps.
WATCH_FILE, WATCH_SAYS = "watch.json", "meshtune.runners.watch: "
# Steps in which memory is counted, before the warm-up.
COUNTED_STEPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts:
    """How many steps are taken outside of the timing at least and at most, and how many are timed; see `Measuring`.
    step_s: how long one takes."""

    before: int
    warmup: int
    timed: int
    most_timed: int
    min_seconds: float
    max_seconds: float
    after: int

    def least(self, step_s: float) -> int:
        """Without any warm-up, and the interval tight at once."""
        return self.before + max(self.timed, ceil(self.min_seconds / step_s)) + self.after

    def most(self, step_s: float) -> int:
        """With all of the warm-up, and timed until max_steps or max_seconds, whichever comes first."""
        long = ceil(self.min_seconds / step_s)
        timed = max(long, min(self.most_timed, max(self.timed, ceil(self.max_seconds / step_s))))
        return self.before + min(self.warmup, long or self.warmup) + timed + self.after


def step_counts(spec: JobSpec) -> StepCounts | None:
    """The steps that the job will take; None for a job that does not say."""
    texts = [text for name, text in spec.files.items() if name in JOB_FILES]
    measuring = json.loads(texts[0]).get("measuring") if texts else None  # noqa: TID251  # written here
    if measuring is None:
        return None
    # Warm-up is known to be over only when a whole window of steps came after it; they are timed.
    timed = max(measuring["min_steps"], min(WINDOW, measuring["max_steps"]))
    return StepCounts(
        before=COUNTED_STEPS,
        warmup=measuring["max_warmup_steps"],
        timed=timed,
        most_timed=measuring["max_steps"],
        min_seconds=min(measuring["min_seconds"], measuring["max_seconds"]),
        max_seconds=measuring["max_seconds"],
        after=measuring["profile_steps"],
    )
