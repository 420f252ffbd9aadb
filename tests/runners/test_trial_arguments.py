"""What a trial adds to the user's start, and takes from it, is in trials alone."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from places import TINY, cluster

from meshtune.runners.programs.workloads.base import JobRequest
from meshtune.runners.programs.workloads.command import CommandWorkload
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.knob import Knob
from meshtune.search_spaces.knobs import KnobSet
from meshtune.search_spaces.plan import Plan

PLAN = Plan(dp=4, micro_batch_size=2, grad_accum_steps=2)


def job(real=False, **options):
    return CommandWorkload(options).materialize(
        JobRequest("t", TINY, PLAN, cluster(1, 4), Path("/job"), seed=0, time_limit_s=9, real=real)
    )


def words(command, real=False, **arguments):
    made = job(real, command=command, trial_arguments=arguments)
    return list(made.command) if isinstance(command, list) else shlex.split(made.command[2])


OWN = ["python", "train.py", "--mbs", "{micro_batch_size}", "--out=/data/run", "--resume", "--eval", "a", "b", "x.y=1"]
TOLD = ["python", "train.py", "--mbs", "2"]


@pytest.mark.parametrize("command", [OWN, shlex.join(OWN).replace("'", "")])
@pytest.mark.parametrize(
    ("arguments", "trial"),
    [
        ({}, "--out=/data/run --resume --eval a b x.y=1"),
        ({"--out": "{directory}/out"}, "--out=/job/out --resume --eval a b x.y=1"),
        ({"--resume": None, "--eval": None}, "--out=/data/run x.y=1"),
        ({"--resume": False}, "--out=/data/run --eval a b x.y=1"),
        ({"--eval": True}, "--out=/data/run --resume --eval x.y=1"),
        ({"--eval": 3}, "--out=/data/run --resume --eval 3 x.y=1"),
        ({"--eval": 0}, "--out=/data/run --resume --eval 0 x.y=1"),
        ({"x.y": "{steps}"}, "--out=/data/run --resume --eval a b x.y=15"),
        ({"--max-steps": "{steps}", "z": 1}, "--out=/data/run --resume --eval a b x.y=1 --max-steps 15 z=1"),
        ({"--seed": "-1", "--quiet": True}, "--out=/data/run --resume --eval a b x.y=1 --seed -1 --quiet"),
    ],
)
def test_the_words_of_a_trial_take_the_place_of_the_users(command, arguments, trial):
    assert words(command, **arguments) == [*TOLD, *trial.split()]
    assert words(command, real=True, **arguments) == [*TOLD, *OWN[4:]]


def test_a_word_stays_one_in_a_text_for_a_shell():
    assert words("train 'a b' --out $HOME", **{"--out": "{directory}/my out"}) == [
        "train",
        "a b",
        "--out",
        "/job/my out",
    ]
    made = job(command="a=1\nexec train \\\n  --out $a", trial_arguments={"--out": None})
    assert made.command == ("sh", "-c", "a=1\nexec train")


def test_a_real_launch_has_no_reporter_and_no_file_of_a_trial():
    config = {"format": "json", "base": {"a": 1}, "set": {"b": "{dp}"}, "trial": {"a": None, "c.d": "{steps}"}}
    for command in (
        ["python", "-m", "meshtune.runners.report", "-m", "mine"],
        "python -m meshtune.runners.report -m mine",
    ):
        options = {"command": command, "configs": {"x.json": config}, "env": {"A": "1"}}
        trial, real = job(**options), job(real=True, **options)
        assert "meshtune.runners.report" in " ".join(trial.command)
        assert " ".join(real.command).removeprefix("sh -c ") == "python -m mine"
        assert json.loads(trial.files["x.json"]) == {"b": 4, "c": {"d": 15}}
        assert {name: json.loads(text) for name, text in real.files.items()} == {"x.json": {"a": 1, "b": 4}}
        assert (dict(real.env), "brief.json" in trial.files) == ({"A": "1"}, True)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"command": ["t"], "trial_arguments": {"--mbs": "{micro_batch_size}"}},
            "trial_arguments.--mbs: {micro_batch_size} sta",
        ),
        ({"command": ["t", "--a", "{dp}"], "trial_arguments": {"--a": 1}}, "trial_arguments: takes {dp} away"),
        ({"command": ["t"], "trial_arguments": {"--a": "{dir}"}}, "trial_arguments.--a: {dir} is no placeholder"),
        ({"command": ["t"], "trial_arguments": {"--a": {"b": 1}}}, "trial_arguments.--a: must be"),
        ({"command": "t | tee x", "trial_arguments": {"--a": 1}}, "trial_arguments: need a list"),
        (
            {"command": ["t"], "configs": {"c": {"format": "yaml", "set": {"a.b": "{tp}"}, "trial": {"a": None}}}},
            "trial_arguments: takes {tp} away",
        ),
    ],
)
def test_what_a_plan_needs_is_not_the_trials_alone(options, told):
    try:
        problems = CommandWorkload(options).problems_with_names(KnobSet())
    except InvalidValue as error:
        problems = error.problems
    assert told in "; ".join(map(str, problems))


def test_a_knob_is_not_told_by_a_trials_words():
    knobs = KnobSet([Knob(name="a", values=(1, 2)), Knob(name="b", values=(1, 2), argument="--b {value}")])
    workload = CommandWorkload({"command": ["t"], "trial_arguments": {"--x": "{a}", "--b": 3}})
    told = "; ".join(map(str, workload.problems_with_knobs(knobs)))
    assert "{a} stands in workload.trial_arguments.--x" in told
    assert "--b already stands in workload.trial_arguments" in told
