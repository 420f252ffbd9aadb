"""Of all that a program's log says at its end, the line that tells why it failed is found."""

from __future__ import annotations

import time

import pytest

from meshtune.runners.base import Cause
from meshtune.runners.failure_texts import LastWords, read_last_words
from meshtune.runners.log_lines import split_lines
from meshtune.runners.programs.log_patterns import Found, Patterns
from meshtune.search_spaces.checks import InvalidValue

PATTERNS = Patterns({"step_time_s": r"step \d+ took ([\d.]+)", "illegal": "is not divisible by"})
TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 80, in <module>
    main()
  File "train.py", line 60, in main
    loss.backward()
  File "torch/_tensor.py", line 623, in backward
    torch.autograd.backward(
"""
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
PEER = "RuntimeError: [pair.cc:537] Read error [127.0.0.1]:4496: Connection reset by peer"


def test_an_exception_is_told_with_its_phase():
    found = read_last_words(f"step 1 took 0.5\n{TRACEBACK}{OOM}\n")
    assert found == LastWords(cause=Cause.OOM, line=OOM, phase="backward")


def test_in_a_log_of_all_ranks_the_one_that_fails_is_told_from_those_that_notice_it():
    tagged = "".join(f"[rank3]: {line}\n" for line in (TRACEBACK + OOM).splitlines())
    found = read_last_words(f"[rank0]: {PEER}\n{tagged}[rank1]: {PEER}\n")
    assert found == LastWords(cause=Cause.OOM, line=OOM, rank=3, phase="backward")
    assert read_last_words(f"[rank0]: {PEER}\n[rank1]: {PEER}\n").cause is Cause.COMMUNICATION


@pytest.mark.parametrize(
    ("after", "cause"),
    [
        ("", Cause.USER_BUG),
        # The missing module was got over: what came later is the reason.
        ("ValueError: heads(3) is odd\n", Cause.CRASH),
        ("step 1 took 0.5\n", None),
        (f"{OOM}\n", Cause.OOM),
        (f"{PEER}\n", Cause.USER_BUG),
    ],
)
def test_a_missing_module_is_the_reason_only_where_the_program_ends_with_it(after, cause):
    found = read_last_words(f"ModuleNotFoundError: No module named 'apex'\n{after}", PATTERNS)
    assert (None if found is None else found.cause) == cause


def test_a_message_that_goes_on_with_what_peers_did_is_an_echo():
    head = "RuntimeError: rank 0 could not finish\n"
    assert read_last_words(head + "ncclRemoteError: remote process exited\n").cause is Cause.COMMUNICATION
    assert read_last_words(head + "a line\nncclRemoteError: remote process exited\n").cause is Cause.CRASH


def test_the_programs_own_refusal_is_an_illegal_setting():
    text = f"{TRACEBACK}AssertionError: heads (3) is not divisible by tp (2)\n"
    assert read_last_words(text, PATTERNS).cause is Cause.ILLEGAL_SETTING
    assert read_last_words(text).cause is Cause.CRASH


def test_source_code_in_a_traceback_says_nothing():
    text = TRACEBACK + "    assert h % tp == 0, 'is not divisible by, CUDA out of memory, Broken pipe'\nKeyError: 'x'\n"
    assert read_last_words(text, PATTERNS) == LastWords(cause=Cause.CRASH, line="KeyError: 'x'")
    # Without a traceback before it, an indented line is the program's own.
    assert read_last_words(" heads is not divisible by tp\n", PATTERNS).cause is Cause.ILLEGAL_SETTING


# Named patterns find the numbers in a program's lines, and wrong ones are told by name.


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
            {"step_time_s: is no regular expression that RE2 takes: missing ): (1"},
        ),
        (
            {"step_time_s": r"(?<=took )(\d+)", "loss": r"(\d)\1"},
            {
                "step_time_s: is no regular expression that RE2 takes: invalid perl operator: (?<= "
                "(it has neither look-around nor back-references)",
                r"loss: is no regular expression that RE2 takes: invalid escape sequence: \1 "
                "(it has neither look-around nor back-references)",
            },
        ),
        ({"step_time_s": "(.{0,900})"}, {"step_time_s: is too large: 8106 instructions of at most 2000"}),
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


def test_no_pattern_takes_more_time_than_the_line_is_long():
    patterns = Patterns({"step_time_s": "^(a+)+$"})
    begun = time.monotonic()
    for line in split_lines([b"a" * 10_000_000 + b"!\n", b"a" * 5000 + b"!\n" * 100], whole=False):
        assert patterns.find("step_time_s", line) is None
    assert time.monotonic() - begun < 1
