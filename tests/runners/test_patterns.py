"""Named patterns find the numbers in a program's lines, and wrong ones are told by name."""

from __future__ import annotations

import pytest

from meshtune.runners.logs.lines import Found, Patterns
from meshtune.search_spaces.checks import InvalidValue


@pytest.mark.parametrize(
    ("pattern", "line", "value"),
    [
        (r"took ([\d.]+)", "step 3 took 0.25 s", 0.25),
        (r"tps: ([\d,]+)", "tps: 12,345  mfu: 1.2%", 12345.0),
        (r"loss ([\d.eE+-]+)", "loss 1.5E-02", 0.015),
        # An older and a newer form of one line: whichever group took part.
        (r"old (\d+)|new (\d+)", "new 7", 7.0),
        (r"took ([\d.]+)", "nothing of the kind", None),
        (r"took (\S+)", "took ages", None),
        (r"(?P<rank>\d+): (\d+)", "3: 9", 9.0),
        (r"took(?: (\d+))?", "took", None),
    ],
)
def test_the_first_group_that_took_part_is_the_number(pattern, line, value):
    found = Patterns({"step_time_s": pattern}).find("step_time_s", line)
    assert (None if found is None else found.value) == value


def test_a_group_called_rank_says_whose_number_it_is():
    patterns = Patterns({"step_time_s": "x(1)", "memory_mb": r"\[Rank (?P<rank>\d+)\] max: ([\d.]+)"})
    assert patterns.find("memory_mb", "[Rank 12] max: 99.5") == Found(99.5, rank=12)
    assert patterns.find("loss", "loss 1") is None
    assert (patterns.timing, patterns.memory, patterns.source) == ("step_time_s", "memory_mb", "x(1)")


def test_a_program_has_its_own_words_for_a_setting_that_it_refuses():
    patterns = Patterns({"steps_per_s": r"([\d.]+)it/s", "illegal": "must be divisible"})
    assert patterns.refuses("AssertionError: heads must be divisible by tp")
    assert not patterns.refuses("all is well")
    assert not Patterns({"steps_per_s": r"([\d.]+)it/s"}).refuses("must be divisible")


@pytest.mark.parametrize(
    ("patterns", "problems"),
    [
        ({"step_time": "(1)"}, {"step_time: is no name of a pattern; did you mean 'step_time_s'?"}),
        (
            {"step_time_s": "(1"},
            {"step_time_s: is no regular expression: missing ), unterminated subpattern at position 0"},
        ),
        ({"step_time_s": "1"}, {"step_time_s: has no group around the number: '1'"}),
        ({"step_time_s": "(?P<rank>1)"}, {"step_time_s: has no group around the number: '(?P<rank>1)'"}),
        ({"loss": "(1)"}, "not none"),
        ({"step_time_s": "(1)", "tokens_per_s": "(1)"}, "not step_time_s, tokens_per_s"),
        ({"step_time_s": "(1)", "memory_mb": "(1)", "memory_gib": "(1)"}, "not memory_mb, memory_gib"),
    ],
)
def test_wrong_patterns_are_told_by_name(patterns, problems):
    with pytest.raises(InvalidValue) as caught:
        Patterns(patterns)
    told = {str(problem) for problem in caught.value.problems}
    assert told == problems if isinstance(problems, set) else next(iter(told)).endswith(problems)
