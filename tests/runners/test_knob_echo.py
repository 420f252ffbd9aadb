"""What a job says of the knobs that it was told: what its process sees, what its log tells, what its script passes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from places import TINY, cluster

from meshtune.runners.base import JobState, JobStatus
from meshtune.runners.outcome import Measurement, Outcome, Verdict, read_result, write_result
from meshtune.runners.processes.gang import log_path
from meshtune.runners.programs.workloads.base import JobRequest
from meshtune.runners.registry import create_workload
from meshtune.runners.report import DIRECTORY
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.knob import Knob
from meshtune.search_spaces.plan import Plan

CLUSTER = cluster()
FP8 = Knob(name="fp8", values=("off", "mxfp8", "tensorwise"), argument="--fp8-recipe {value}", omit="off")
FLAG = Knob(name="flag", values=(False, True), argument="--overlap", omit=False)
CHANNELS = Knob(name="channels", values=(4, 8), env="CHANNELS", words={"8": "eight"})
BUDGET = Knob(name="budget", values=(0.5, 1.0), config="budget")
KNOBS = (FP8, FLAG, CHANNELS, BUDGET)
TOLD = {"fp8": "mxfp8", "flag": True, "channels": 8, "budget": 0.5}
NOTHING = {"fp8": "off", "flag": False, "channels": 4, "budget": 0.5}
SCRIPT = """
import sys
from meshtune.runners.report import report
report([0.1] * 9{more})
"""


def workload(**options):
    configs = {"c.json": {"format": "json"}}
    command = [sys.executable, "train.py"]
    return create_workload("command", {"command": command, "configs": configs, "steps": 6, **options})


def written(folder: Path, values, **options):
    """The job of these values, its files in the folder."""
    plan = Plan(knobs=values)
    spec = workload(**options).materialize(
        JobRequest("t", TINY, plan, CLUSTER, folder, seed=0, time_limit_s=9, knobs=KNOBS)
    )
    for name, text in spec.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return spec


def echoed(folder: Path, command, env, script="train.py", more=""):
    (folder / script).write_text(SCRIPT.format(more=more), encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "CHANNELS")}
    subprocess.run(command, cwd=folder, env={**clean, **env, DIRECTORY: str(folder)}, check=True, timeout=60)
    return read_result(folder).measurement.knobs


@pytest.mark.parametrize("values", [TOLD, NOTHING], ids=["told", "omitted"])
def test_a_reporter_says_by_itself_what_it_sees_of_arguments_and_variables(values, tmp_path):
    spec = written(tmp_path, values)
    # Of a key of a file it can say nothing.
    assert echoed(tmp_path, spec.command, spec.env) == {name: values[name] for name in values if name != "budget"}


def test_what_was_lost_on_the_way_is_a_null(tmp_path):
    written(tmp_path, TOLD)
    command = [sys.executable, "train.py"]
    assert echoed(tmp_path, command, {}) == {"fp8": None, "flag": None, "channels": None}


def test_another_value_is_said_as_the_knob_has_it(tmp_path):
    written(tmp_path, TOLD)
    command = [sys.executable, "train.py", "--fp8-recipe=mxfp8", "--fp8-recipe=tensorwise", "--overlap"]
    assert echoed(tmp_path, command, {"CHANNELS": "4"}) == {"fp8": "tensorwise", "flag": True, "channels": 4}


def test_a_program_that_was_started_by_the_commands_own_knows_nothing_of_arguments(tmp_path):
    written(tmp_path, TOLD)
    assert echoed(tmp_path, [sys.executable, "inner.py", "x"], {"CHANNELS": "eight"}, "inner.py") == {"channels": 8}


def test_what_the_script_says_counts_more(tmp_path):
    spec = written(tmp_path, TOLD)
    more = ', knobs={"fp8": "off", "budget": 0.25, "odd": float("nan"), "none": None}'
    assert echoed(tmp_path, spec.command, spec.env, more=more) == {
        "fp8": "off",
        "flag": True,
        "channels": 8,
        "budget": 0.25,
        "odd": "nan",
        "none": None,
    }


def test_arguments_count_that_a_script_has_taken_away(tmp_path):
    spec = written(tmp_path, TOLD)
    (tmp_path / "train.py").write_text("")
    folder = tmp_path / "inner"
    script = SCRIPT.replace("import sys", "import sys; del sys.argv[1:]").format(more="")
    folder.mkdir()
    (folder / "train.py").write_text(script, encoding="utf-8")
    env = {**os.environ, **spec.env, "RANK": "0"}
    subprocess.run(spec.command, cwd=folder, env=env, check=True, timeout=60)
    assert read_result(tmp_path).measurement.knobs["fp8"] == "mxfp8"


def test_threads_of_which_a_knob_says_nothing_are_as_meshtune_sets_them(tmp_path):
    threads = Knob(name="threads", values=("auto", 1, 2), env="OMP_NUM_THREADS", omit="auto")
    plan = Plan(knobs={"threads": "auto"})
    spec = workload().materialize(
        JobRequest("t", TINY, plan, CLUSTER, tmp_path, seed=0, time_limit_s=9, knobs=[threads])
    )
    for name, text in spec.files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert echoed(tmp_path, spec.command, {"OMP_NUM_THREADS": "1"}) == {"threads": "auto"}
    assert echoed(tmp_path, spec.command, {"OMP_NUM_THREADS": "2"}) == {"threads": 2}


LOG = {"step_time_s": r"took ([\d.]+)", "knob_fp8": r"recipe=(\w+)", "knob_budget": r"budget: ([\d.]+)"}


@pytest.mark.parametrize(
    ("values", "said", "expected"),
    [
        (TOLD, "recipe=mxfp8\nbudget: 0.50", {"fp8": "mxfp8", "budget": "0.50"}),
        (TOLD, "recipe=none\nrecipe=tensorwise", {"fp8": "tensorwise", "budget": None}),
        (NOTHING, "budget: 0.5", {"fp8": "off", "budget": 0.5}),
    ],
    ids=["as told", "another, and nothing", "omitted"],
)
def test_a_log_says_what_its_patterns_read(values, said, expected, tmp_path):
    written(tmp_path, values, log=LOG)
    lines = [*said.splitlines(), *["took 0.5"] * 6]
    log_path(tmp_path, 0).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    outcome = workload(log=LOG).read(tmp_path, JobStatus(state=JobState.SUCCEEDED))
    assert outcome.measurement.knobs == expected


def test_a_pattern_of_a_knob_needs_a_group():
    with pytest.raises(InvalidValue, match=r"log.knob_fp8: has no group around the value"):
        workload(log={"step_time_s": "(.)", "knob_fp8": "recipe"})


def test_a_result_file_keeps_the_null_of_a_knob(tmp_path):
    knobs = {"a": None, "b": True, "c": 1, "d": 0.5, "e": "x"}
    measured = Measurement(step_times_s=(1.0,), tokens_per_step=1, devices=1, knobs=knobs)
    write_result(tmp_path, Outcome(verdict=Verdict.OK, measurement=measured))
    document = json.loads((tmp_path / "result.json").read_text())
    assert (document["measurement"]["knobs"], "profile" in document["measurement"]) == (knobs, False)
    assert read_result(tmp_path).measurement.knobs == knobs
