"""A user's script is told a plan by its placeholders and of nothing else, and is judged by what it leaves."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from places import TINY, cluster

from meshtune.runners.base import Cause, JobState, JobStatus, Start
from meshtune.runners.outcome import Outcome, Verdict
from meshtune.runners.processes.gang import log_path
from meshtune.runners.programs.log_patterns import NAMES
from meshtune.runners.programs.workloads.base import JobRequest, read_context
from meshtune.runners.programs.workloads.command import PLACEHOLDERS, CommandOptions, CommandWorkload
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.columns import SpaceContext
from meshtune.search_spaces.knob import Knob
from meshtune.search_spaces.knobs import KnobSet
from meshtune.search_spaces.physics.framework_profiles import FRAMEWORKS, MEGATRON_CORE
from meshtune.search_spaces.plan import PLAN_FIELDS, Plan, Recompute, Schedule
from meshtune.search_spaces.space import Bounds, Space

MODEL = replace(TINY, layers=4)
CLUSTER = cluster(2, 2, peak_flops={"bfloat16": 1e12, "float32": 5e11})
TWICE = "a brace of its own is written twice"
PLAN = Plan(tp=2, dp=2, micro_batch_size=2, grad_accum_steps=4, zero_stage=1)


def materialize(directory, **options):
    workload = CommandWorkload({"command": ["train"], **options})
    return workload.materialize(JobRequest("c1-t1-a1", MODEL, PLAN, CLUSTER, directory, seed=7, time_limit_s=90.5))


def test_a_job_is_rendered_as_text_and_nothing_is_written(tmp_path):
    spec = materialize(
        tmp_path / "job",
        command=["{python}", "train.py", "--tp={tp}", "--batch", "{global_batch_size}", "{{}}"],
        env={"DP": "{dp}", "MESHTUNE_STEPS": "mine"},
        files={"notes.txt": "{name} on {nodes}x{devices_per_node}, seed {seed}\n"},
        configs={"c.toml": {"format": "toml", "base": {"a": {"b": 1}}, "set": {"a.tp": "{tp}", "a.len": "{seq_len}"}}},
        start="node",
        steps=9,
        warmup_steps=2,
    )
    assert spec.command == (sys.executable, "train.py", "--tp=2", "--batch", "16", "{}")
    assert (spec.name, spec.nodes, spec.devices_per_node, spec.time_limit_s) == ("c1-t1-a1", 2, 2, 90.5)
    assert (spec.start, spec.processes, spec.directory) == (Start.NODE, 2, tmp_path / "job")
    assert dict(spec.env) == {"DP": "2", "MESHTUNE_DIRECTORY": str(tmp_path / "job"), "MESHTUNE_STEPS": "9"}
    assert spec.files["notes.txt"] == "c1-t1-a1 on 2x2, seed 7\n"
    assert tomllib.loads(spec.files["c.toml"]) == {"a": {"b": 1, "tp": 2, "len": 16}}
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "brief.json").write_text(spec.files["brief.json"])
    context = read_context(tmp_path)
    assert (context.plan, context.devices, context.warmup_steps) == (PLAN, 4, 2)
    assert (context.tokens_per_step, context.peak_flops_per_device) == (16 * 16, 1e12)


def test_every_placeholder_has_a_value(tmp_path):
    spec = materialize(tmp_path, command="; ".join(f"echo {name}={{{name}}}" for name in PLACEHOLDERS))
    told = subprocess.run(spec.command, capture_output=True, text=True, check=True, timeout=60).stdout.split("\n")
    values = dict(line.split("=", 1) for line in told if line)
    assert values.keys() == set(PLACEHOLDERS) > set(PLAN_FIELDS)
    expected = {"tp": "2", "world_size": "4", "recompute": "none", "sequence_parallel": "true", "dtype": "bfloat16"}
    assert expected.items() <= values.items()


@pytest.mark.parametrize(
    ("text", "shell"), [("train", "sh"), ("module load cuda\ntrain", "bash"), ("ml cuda; train", "bash")]
)
def test_a_text_that_calls_module_is_for_bash_whose_functions_these_are(text, shell, tmp_path):
    assert materialize(tmp_path, command=text).command == (shell, "-c", text)


@pytest.mark.parametrize("command", [["sh", "-c", 'pwd; echo "$0" "$1"', "{tp}", "a b"], "pwd; echo {tp} 'a b'"])
def test_a_command_starts_where_it_is_asked_to(command, tmp_path, monkeypatch):
    project = tmp_path / "my project"
    project.mkdir()
    monkeypatch.chdir(tmp_path)
    for folder in (str(project), "my project"):
        spec = materialize(tmp_path / "job", command=command, working_directory=folder)
        done = subprocess.run(spec.command, cwd="/", capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout == f"{project}\n2 a b\n"


@pytest.mark.parametrize(
    ("options", "problems"),
    [
        ({}, {"command: is missing"}),
        ({"command": []}, {"command: must name a program"}),
        ({"command": 5}, {"command: must be a text or a list of arguments, not 5"}),
        (
            {"command": ["train", ["a"]], "env": {"A": None}},
            {"command.1: must be a text or a number, not ['a']", "env.A: must be a text or a number, not None"},
        ),
        ({"command": ["train"], "env": ["A"]}, {"env: must be a mapping of keys, not ['A']"}),
        (
            {
                "command": ["train", "{TPP}"],
                "env": {"A": "{dp.p}"},
                "files": {"a": "{x"},
                "configs": {"c": {"format": "json", "set": {"k.l": "{_pp}"}}},
            },
            {
                f"command.1: {{TPP}} is no placeholder; known: {', '.join(sorted(PLACEHOLDERS))}; {TWICE}",
                f"env.A: {{dp.p}} is no placeholder; did you mean 'pp'?; {TWICE}",
                "files.a: expected '}' before end of string; a brace that stands for itself is written twice",
                f"configs.c.set.k.l: {{_pp}} is no placeholder; did you mean 'pp'?; {TWICE}",
            },
        ),
        ({"command": ["t"], "comand": 1}, {"comand: is not a known key; did you mean 'command'?"}),
        ({"command": ["t"], "steps": 5, "warmup_steps": 5}, {"steps: steps(5) must be more than warmup_steps(5)"}),
        ({"command": ["t"], "start": "rack"}, {"start: must be 'device', 'node' or 'job', not 'rack'"}),
        (
            {
                "command": ["t"],
                "files": {"../x": "", "rank-0.log": "", "brief.json": "", "c": ""},
                "configs": {"c": {"format": "yaml"}},
            },
            {
                "files.../x: must be the plain name of a file in the job's folder",
                "files.rank-0.log: must be the plain name of a file in the job's folder",
                "files.brief.json: is the name of another file there",
                "configs.c: is the name of another file there",
            },
        ),
        (
            {"command": ["t"], "configs": {"c": {"format": "xml", "sets": {}}}},
            {
                "configs.c.format: must be 'yaml', 'json', 'toml' or 'args', not 'xml'",
                "configs.c.sets: is not a known key; did you mean 'set'?",
            },
        ),
        (
            {"command": ["t"], "log": {"step_time": "(.)"}},
            {"log.step_time: is no name of a pattern; did you mean 'step_time_s'?"},
        ),
        ({"command": ["t"], "fixed": {"tpp": 2}}, {"fixed.tpp: is nothing to fix; did you mean 'tp'?"}),
        ({"command": ["t"], "fixed": {"zero_stage": 4}}, {"fixed.zero_stage: must be 0, 1, 2 or 3, not 4"}),
        ({"command": ["{tp}"], "fixed": {"tp": 2}}, {"fixed.tp: cannot be fixed: the command is told it as {tp}"}),
    ],
)
def test_every_wrong_option_is_told_at_once(options, problems):
    with pytest.raises(InvalidValue) as caught:
        CommandWorkload(options)
    assert {str(problem) for problem in caught.value.problems} == problems


def test_every_name_that_may_be_a_knobs_and_is_none_is_told_at_once():
    sets = {"k.l": "{ppp}"}
    options = {"command": ["train", "{tpp}"], "env": {"A": "{dpp}"}, "configs": {"c": {"format": "json", "set": sets}}}
    assert {str(problem) for problem in CommandWorkload(options).problems_with_names(KnobSet())} == {
        f"command.1: {{tpp}} is no placeholder; did you mean 'tp'?; {TWICE}",
        f"env.A: {{dpp}} is no placeholder; did you mean 'pp'?; {TWICE}",
        f"configs.c.set.k.l: {{ppp}} is no placeholder; did you mean 'pp'?; {TWICE}",
    }


EVERYTHING = Bounds(
    tp=(1, 2, 4),
    pp=(1, 2, 4),
    cp=(1, 2),
    vpp=(1, 2),
    micro_batch_size=(1, 2),
    zero_stage=(0, 1, 2, 3),
    recompute=tuple(Recompute),
    recompute_interval=(1, 2),
    schedule=tuple(Schedule),
    sequence_parallel=(True, False),
)


def space(**options) -> Space:
    capabilities = CommandWorkload({"command": ["train"], **options}).capabilities
    return Space(
        EVERYTHING, SpaceContext(model=MODEL, cluster=CLUSTER, global_batch_size=16, capabilities=capabilities)
    )


def varying(plans: Space) -> set[str]:
    return {name for name in PLAN_FIELDS if len({getattr(plan, name) for plan in plans}) > 1}


def test_a_dimension_that_nothing_tells_the_script_of_cannot_vary():
    assert list(space()) == []  # nobody told it of four micro-batches
    plans = space(command=["train", "{grad_accum_steps}"])
    assert list(plans) == [Plan(dp=4, micro_batch_size=1, grad_accum_steps=4)]
    assert varying(space(command="train {tp} {micro_batch_size} {grad_accum_steps}")) == {
        *("tp", "dp", "micro_batch_size", "grad_accum_steps")
    }
    (rule,) = [
        broken
        for broken in plans.explain(Plan(tp=2, dp=2, grad_accum_steps=8))
        if broken.constraint == "command-lacks-tp"
    ]
    assert rule.message == "tp(2), but the command has no {tp} and so always runs 1"


BATCH = "train {micro_batch_size} {grad_accum_steps}"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        # Two of three words for the batch tell the third.
        ({"command": BATCH}, set()),
        ({"command": "train {micro_batch_size} {global_batch_size}"}, set()),
        # What tells the script may stand in any text.
        ({"command": BATCH, "env": {"ZERO": "{zero_stage}"}}, {"zero_stage"}),
        ({"command": BATCH, "files": {"z": "{zero_stage}"}}, {"zero_stage"}),
        ({"command": BATCH, "configs": {"c": {"format": "yaml", "set": {"z": "{zero_stage}"}}}}, {"zero_stage"}),
        (
            {"command": " ".join(f"{{{name}}}" for name in PLAN_FIELDS)},
            set(PLAN_FIELDS)
            - {"ep", "etp", "zero_group", "context", "first_stage_less_layers", "last_stage_less_layers"},
        ),
    ],
)
def test_what_the_script_is_told_may_vary(options, told):
    assert varying(space(**options)) == {"micro_batch_size", "grad_accum_steps"} | told


def test_what_the_script_has_built_in_is_what_it_runs_wherever_it_means_anything():
    told = "train {tp} {pp} {micro_batch_size} {grad_accum_steps}"
    plans = list(space(command=told, fixed={"zero_stage": 3, "sequence_parallel": False, "recompute": "full"}))
    assert {plan.zero_stage for plan in plans if plan.dp > 1} == {3}
    assert {plan.zero_stage for plan in plans if plan.dp == 1} == {0}
    assert {plan.sequence_parallel for plan in plans if plan.tp > 1} == {False}
    assert {plan.sequence_parallel for plan in plans if plan.tp == 1} == {True}
    assert {plan.recompute for plan in plans} == {Recompute.FULL}
    assert {plan.pp for plan in plans} == {1, 2, 4}


def read(directory, state: JobState, **options) -> Outcome:
    status = JobStatus(state=state, reason="rank 0 exited with code 1", exit_code=1)
    return CommandWorkload({"command": ["train"], **options}).read(directory, status)


LOG = {"log": {"step_time_s": r"took ([\d.]+)"}, "steps": 3, "warmup_steps": 1}


def test_8_bits_are_of_the_products_alone():
    workload = CommandWorkload({"command": ["train"], "framework": "fsdp", "dtype": "float8"})
    assert workload.dtype == "float8"
    assert (workload.framework.dtype, workload.framework.product_dtype) == ("bfloat16", "float8")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_script_on_megatron_core_is_predicted_by_its_profile(dtype):
    options = {"command": ["train"], "framework": f"megatron-core-{dtype}"}
    assert CommandWorkload(options).framework is MEGATRON_CORE[dtype]


def test_every_framework_stands_in_the_guide():
    guide = (Path(__file__).parents[2] / "docs/how-to/workloads.md").read_text()
    rows = guide.partition("\n## Frameworks\n")[2].partition("\n## ")[0].splitlines()
    cells = [row.split("|")[1] for row in rows if row.startswith("| `") and row != "| `framework` | training code |"]
    assert sorted(re.findall(r"`(.+?)`", " ".join(cells))) == sorted(FRAMEWORKS)


def test_no_framework_has_a_private_name():
    assert all(name[0].isalpha() for name in FRAMEWORKS)


def test_without_a_result_file_the_log_is_read_where_patterns_are_named(tmp_path):
    (tmp_path / "brief.json").write_text(materialize(tmp_path, steps=3, warmup_steps=1).files["brief.json"])
    log_path(tmp_path, 0).write_text("took 3\ntook 0.5\ntook 0.25\n")
    assert read(tmp_path, JobState.SUCCEEDED, **LOG).measurement.step_times_s == (0.5, 0.25)
    outcome = read(tmp_path, JobState.SUCCEEDED)
    assert (outcome.verdict, outcome.cause) == (Verdict.CRASHED, Cause.USER_BUG)
    assert outcome.reason.startswith("the command ended without an error, but wrote no result.json")


@pytest.mark.parametrize("options", [{}, LOG])
def test_a_failure_is_told_by_the_log_and_what_the_runner_made_is_not(options, tmp_path):
    (tmp_path / "brief.json").write_text(materialize(tmp_path, steps=3, warmup_steps=1).files["brief.json"])
    log_path(tmp_path, 0).write_text("ModuleNotFoundError: No module named 'apex'\n")
    assert read(tmp_path, JobState.FAILED, **options).cause is Cause.USER_BUG
    assert read(tmp_path, JobState.LOST, **options).verdict is Verdict.LOST
    assert read(tmp_path, JobState.CANCELLED, **options).verdict is Verdict.CANCELLED
    (tmp_path / "brief.json").unlink()
    assert read(tmp_path, JobState.FAILED, **options).verdict is Verdict.CRASHED


def test_the_page_tells_every_option_placeholder_and_pattern():
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "workloads.md").read_text(encoding="utf-8")
    options = [field.name for field in fields(CommandOptions)]
    assert [name for name in (*options, *NAMES) if f"`{name}`" not in page] == []
    assert [name for name in PLACEHOLDERS if f"{{{name}}}" not in page] == []


CHECKPOINT = {"{recompute}": {"none": None, "full": "--checkpoint"}}


def test_a_choice_in_a_command_is_no_word_one_or_several(tmp_path):
    batch = {"{micro_batch_size}": {1: None, 2: ["--rows", 2], 4: ["--rows", "{4}"]}}
    stage = {"{zero_stage}": {0: "--plain", 1: "--shard=optimizer"}}
    command = ["train", CHECKPOINT, "--tp", "{tp}", batch, stage]
    workload = CommandWorkload({"command": command, "working_directory": str(tmp_path)})

    def words(**changes: Any) -> list[str]:
        plan = replace(PLAN, **changes)
        return list(
            workload.materialize(JobRequest("t", MODEL, plan, CLUSTER, tmp_path, seed=7, time_limit_s=9.0)).command[4:]
        )

    assert words() == ["train", "--tp", "2", "--rows", "2", "--shard=optimizer"]
    most = words(recompute=Recompute.FULL, micro_batch_size=4, zero_stage=0)
    assert most == ["train", "--checkpoint", "--tp", "2", "--rows", "{4}", "--plain"]
    assert words(micro_batch_size=1) == ["train", "--tp", "2", "--shard=optimizer"]
    with pytest.raises(InvalidValue, match=r"command\.5: zero_stage\(3\) has no word there, which 0, 1 have"):
        words(zero_stage=3)
    setting = SpaceContext(model=MODEL, cluster=CLUSTER, global_batch_size=16, capabilities=workload.capabilities)
    space = Space(Bounds(recompute=tuple(Recompute)), setting)
    assert {plan.recompute for plan in space} == {Recompute.NONE, Recompute.FULL}
    assert {plan.zero_stage for plan in space} == {0, 1}
    told = workload.problems_with_knobs(KnobSet([Knob(name="rows", values=(1, 2), argument="--rows {value}")]))
    assert [str(problem) for problem in told] == ["rows.argument: --rows already stands in workload.command"]


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ({"a": 1, "b": 2}, "command.1: must be a text, a number or a choice such as"),
        ({"recompute": {"none": None}}, "command.1: must be a text, a number or a choice such as"),
        ({"{steps}": {"1": "x"}}, "command.1: {steps} is no axis of a plan"),
        ({"{recompute}": {"most": "x"}}, "command.1: 'most' is no value of {recompute}"),
        ({"{recompute}": {"full": {"a": 1}}}, "command.1.full: must be null, a word or a list of words"),
        (["--tp"], "command.1: must be a text or a number"),
    ],
)
def test_what_is_no_choice_of_a_command_is_told(part, told):
    with pytest.raises(InvalidValue) as refused:
        CommandWorkload({"command": ["train", part]})
    assert told in str(refused.value)


def test_a_choice_of_words_tells_which_values_can_run():
    stages = {"{zero_stage}": {0: "NO_SHARD", 2: "SHARD_GRAD_OP"}}
    config = {"format": "yaml", "set": {"fsdp.strategy": stages, "n": "{micro_batch_size}", "g": "{global_batch_size}"}}
    able = CommandWorkload({"command": ["train"], "configs": {"c.yaml": config}}).capabilities
    space = Space(Bounds(), SpaceContext(model=MODEL, cluster=CLUSTER, global_batch_size=16, capabilities=able))
    assert {plan.zero_stage for plan in space} == {0, 2}
    broken = space.explain(Plan(dp=4, micro_batch_size=4, zero_stage=3))
    told = "zero_stage(3) (command-words-zero_stage: the configuration has words for zero_stage 0, 2 alone)"
    assert [str(violation) for violation in broken] == [told]
