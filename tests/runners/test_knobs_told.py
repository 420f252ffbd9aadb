"""Knobs as each workload tells its jobs of them, and what cannot be told, all at once."""

from __future__ import annotations

import json
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from places import TINY, cluster

from meshtune.runners.processes.gang import meeting_here, rank_environment
from meshtune.runners.programs.workloads.base import JobRequest, read_context
from meshtune.runners.programs.workloads.knobs import names_of
from meshtune.runners.registry import create_workload
from meshtune.runners.trainer.job import OPTIONS, TrainerJob, TrainerOptions, parse_job
from meshtune.search_spaces.knob import Knob
from meshtune.search_spaces.knobs import KnobSet
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.presets import knob_catalogs

CLUSTER = cluster(1, 2)
FP8 = Knob(name="fp8", values=("off", "mxfp8"), argument="--fp8-recipe {value}", omit="off")
FLAG = Knob(name="flag", values=(False, True), argument="--overlap", omit=False)
CHANNELS = Knob(name="channels", values=(4, 8), env="NCCL_MIN_NCHANNELS")
SPARE = Knob(
    name="spare", values=("default", "grow"), env="PYTORCH_ALLOC_CONF", words={"grow": "expandable_segments:True"}
)
BUDGET = Knob(name="budget", values=(0.5, 1.0), config="a.memory_budget")


def job_of(kind, options, tmp_path, *knobs, **values):
    """The job of a plan with these values, the others at their first."""
    plan = Plan(dp=2, knobs={knob.name: knob.values[0] for knob in knobs} | values)
    workload = create_workload(kind, options)
    told = workload.materialize(JobRequest("t", TINY, plan, CLUSTER, tmp_path, seed=0, time_limit_s=9, knobs=knobs))
    assert workload.problems_with_knobs(KnobSet(knobs)) == []
    return told


def problems_of(kind, options, *knobs):
    workload = create_workload(kind, options)
    return [str(problem) for problem in workload.problems_with_knobs(KnobSet(knobs))]


COMMAND = {"command": ["train", "--tp={tp}"]}


def test_a_command_is_told_by_arguments_variables_and_keys(tmp_path):
    options = {**COMMAND, "env": {"A": "b"}, "configs": {"c.yaml": {"format": "yaml", "base": {"a": {"x": 1}}}}}
    knobs = (FP8, FLAG, CHANNELS, SPARE, BUDGET)
    job = job_of("command", options, tmp_path, *knobs, fp8="mxfp8", flag=True, channels=8, spare="grow")
    assert job.command == ("train", "--tp=1", "--fp8-recipe", "mxfp8", "--overlap")
    assert {
        "A": "b",
        "NCCL_MIN_NCHANNELS": "8",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    }.items() <= job.env.items()
    assert yaml.safe_load(job.files["c.yaml"]) == {"a": {"x": 1, "memory_budget": 0.5}}
    (tmp_path / "brief.json").write_text(job.files["brief.json"])
    context = read_context(tmp_path)
    assert context.command == ("train", "--tp=1")
    assert (context.knobs["fp8"].text, context.knobs["fp8"].texts) == ("mxfp8", {"mxfp8": "mxfp8"})
    assert context.knobs["flag"].texts == {"": True}


def test_what_is_omitted_or_inactive_is_told_nothing(tmp_path):
    plain = job_of("command", COMMAND, tmp_path)
    assert job_of("command", COMMAND, tmp_path, FP8, FLAG).command == plain.command
    workload = create_workload("command", COMMAND)
    knobs = (FP8, CHANNELS)
    job = workload.materialize(
        JobRequest("t", TINY, Plan(dp=2), CLUSTER, tmp_path, seed=0, time_limit_s=9, knobs=knobs)
    )
    assert (job.command, job.env) == (plain.command, plain.env)


def test_a_shell_text_gets_its_arguments_quoted_at_its_end(tmp_path):
    knob = Knob(name="note", values=("a", "b"), argument="--note {value}", words={"b": "it's; here"})
    job = job_of("command", {"command": "exec train --tp {tp}\n"}, tmp_path, knob, note="b")
    assert job.command == ("sh", "-c", "exec train --tp 1 --note 'it'\"'\"'s; here'")


def test_a_placeholder_keeps_the_type_of_a_knob_and_is_empty_where_nothing_is_told(tmp_path):
    workers = Knob(name="workers", values=(2, 4))
    offload = Knob(name="offload", values=("none", "cpu"), omit="none")
    sets = {"data.workers": "{workers}", "optimizer.device": "{offload}"}
    options = {
        "command": ["train", "{workers}", "x{offload}"],
        "env": {"OFFLOAD": "{offload}"},
        "files": {"n.txt": "{workers}{offload}{steps}"},
        "configs": {"c.json": {"format": "json", "set": sets, "base": {"optimizer": {"device": "as it was"}}}},
    }
    job = job_of("command", options, tmp_path, workers, offload, workers=4)
    assert (job.command, job.env["OFFLOAD"], job.files["n.txt"]) == (("train", "4", "x"), "", "415")
    assert json.loads(job.files["c.json"]) == {"data": {"workers": 4}, "optimizer": {"device": "as it was"}}
    told = job_of("command", options, tmp_path, workers, offload, offload="cpu")
    assert json.loads(told.files["c.json"])["optimizer"] == {"device": "cpu"}


def test_everything_that_a_command_cannot_be_told_is_said_at_once():
    options = {
        "command": "train --fp8-recipe=x --tp {tp}",
        "env": {"NCCL_MIN_NCHANNELS": "1"},
        "configs": {"a.yaml": {"format": "yaml", "set": {"a": "{tp}"}}, "b.args": {"format": "args"}},
    }
    knobs = [
        FP8,
        CHANNELS,
        Knob(name="rank", values=(1, 2), env="RANK"),
        Knob(name="ours", values=(1, 2), env="MESHTUNE_STEPS"),
        Knob(name="nowhere", values=(1, 2)),
        Knob(name="steps", values=(1, 2)),
        Knob(name="set_already", values=(1, 2), config="a.yaml:a.b"),
        Knob(name="no_file", values=(1, 2), config="a.b.c"),
        Knob(name="deep", values=(1, 2), config="b.args:x.y"),
        Knob(name="compile", values=(True, False), option="compile"),
        Knob(name="devices", values=(1, 2)),
    ]
    assert problems_of("command", options, *knobs) == [
        "fp8.argument: --fp8-recipe already stands in workload.command",
        "channels.env: NCCL_MIN_NCHANNELS is set by workload.env, too",
        "rank.env: RANK is set by meshtune for every process of a job",
        "ours.env: MESHTUNE_STEPS is set by meshtune for every process of a job",
        "nowhere: is told to nobody: give it argument, env or config, or write {nowhere} into the command",
        "set_already.config: a.b of a.yaml is set by workload.configs.a.yaml.set, too (a)",
        "no_file.config: 'a.b.c' says no file: give FILE:KEY with one of a.yaml, b.args",
        "compile.option: is for the built-in trainer (workload torch), not for command",
        "steps: {steps} stands for something else: choose another name",
        "deep.config: b.args has arguments, and no keys below others as x.y",
    ]
    assert problems_of("command", {"command": "for x in a; do train; done"}, FP8) == [
        "fp8.argument: cannot be appended to a command that ends in 'done': write {fp8} where it belongs"
    ]
    assert problems_of("command", COMMAND, BUDGET) == [
        "budget.config: the workload command writes no configuration file here"
    ]


def test_a_placeholder_that_is_no_knob_is_a_mistake_of_the_workload():
    workload = create_workload(
        "command", {"command": ["{tpp}", "{fp8}"], "log": {"step_time_s": "(.)", "knob_x": "(.)"}}
    )
    unknown = "is no placeholder; did you mean 'tp'?; a brace of its own is written twice"
    assert [str(problem) for problem in workload.problems_with_names(KnobSet([FP8]))] == [
        "log.knob_x: is of no knob of the spec",
        f"command.0: {{tpp}} {unknown}",
    ]


@pytest.mark.parametrize("kind", ["megatron", "deepspeed", "torchtitan", "torch"])
def test_a_knob_without_a_way_is_told_to_nobody(kind):
    options = {"script": "/t.py"} if kind == "deepspeed" else {}
    (told,) = problems_of(kind, options, Knob(name="x", values=(1, 2)))
    assert told.startswith("x: is told to nobody: give it one of env")


def test_deepspeed_is_told_by_its_configuration_and_its_scripts_arguments(tmp_path):
    offload = Knob(name="offload", values=("none", "cpu"), config="zero_optimization.offload_optimizer.device")
    job = job_of("deepspeed", {"script": "/t.py"}, tmp_path, offload, FP8, CHANNELS, offload="cpu", fp8="mxfp8")
    config = json.loads(job.files["ds_config.json"])["zero_optimization"]
    assert config == {"stage": 0, "offload_optimizer": {"device": "cpu"}}
    assert job.command[-2:] == ("--fp8-recipe", "mxfp8")
    assert job.env["NCCL_MIN_NCHANNELS"] == "4"
    told = problems_of(
        "deepspeed",
        {"script": "/t.py", "arguments": ["--fp8-recipe x"], "env": {"NCCL_MIN_NCHANNELS": "1"}},
        FP8,
        CHANNELS,
        Knob(name="stage", values=(1, 2), config="zero_optimization.stage"),
        Knob(name="printed", values=(1, 2), config="steps_per_print"),
        Knob(name="tensor", values=(1, 2), config="tensor_parallel.autotp_size"),
    )
    assert told == [
        "fp8.argument: --fp8-recipe already stands in workload.arguments",
        "channels.env: NCCL_MIN_NCHANNELS is set by workload.env, too",
        "stage.config: zero_optimization.stage of ds_config.json is set by the plan, too",
        "printed.config: steps_per_print of ds_config.json is set by every trial, too",
        "tensor.config: tensor_parallel.autotp_size of ds_config.json is set by the plan, too",
    ]


def test_megatron_is_told_by_arguments_and_by_what_its_script_exports(tmp_path):
    queues = Knob(name="queues", values=(1, 8), env="CUDA_DEVICE_MAX_CONNECTIONS")
    job = job_of("megatron", {}, tmp_path, FP8, FLAG, queues, fp8="mxfp8", flag=True, queues=8)
    assert "    --fp8-recipe mxfp8\n    --overlap\n" in job.files["launch.sh"]
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=8\n" in job.files["launch.sh"]
    assert job.env["CUDA_DEVICE_MAX_CONNECTIONS"] == "8"
    told = problems_of(
        "megatron",
        {"arguments": ["--fp8-recipe x"]},
        FP8,
        Knob(name="bits", values=(False, True), argument="--bf16", omit=False),
        Knob(name="length", values=(1, 2), argument="--train-iters {value}"),
        Knob(name="hydra", values=(1, 2), argument="model.x={value}"),
        BUDGET,
    )
    assert told == [
        "fp8.argument: --fp8-recipe already stands in workload.arguments",
        "bits.argument: --bf16 already stands in what follows from the plan",
        "length.argument: --train-iters already stands in every trial",
        "hydra.argument: must begin with the name of an argument, such as --recompute-num-layers",
        "budget.config: the workload megatron writes no configuration file here",
    ]


def test_megatron_deepspeed_is_told_by_its_configuration(tmp_path):
    bucket = Knob(name="bucket", values=(1000, 2000), config="zero_optimization.reduce_bucket_size")
    job = job_of("megatron", {"flavour": "megatron-deepspeed"}, tmp_path, bucket, bucket=2000)
    assert json.loads(job.files["ds_config.json"])["zero_optimization"] == {"reduce_bucket_size": 2000, "stage": 0}


TITAN = (
    Knob(name="compiled", values=(False, True), config="compile.enable"),
    Knob(name="stop", values=(True, False), config="activation_checkpoint.early_stop"),
    Knob(name="recipe", values=("rowwise", "tensorwise"), config="quantize.linear.float8.recipe_name"),
    Knob(name="parts", values=("model", "model,loss"), argument="--compile.components {value}"),
)


def test_torchtitan_is_told_by_its_file(tmp_path):
    job = job_of("torchtitan", {"release": "v0.2"}, tmp_path, *TITAN, compiled=True)
    config = tomllib.loads(job.files["torchtitan.toml"])
    assert (config["compile"], config["activation_checkpoint"]["early_stop"]) == ({"enable": True}, True)
    assert config["quantize"]["linear"]["float8"]["recipe_name"] == "rowwise"
    assert job.command[-2:] == ("--compile.components", "model")


def test_torchtitan_without_a_file_is_told_by_flags_of_which_those_of_a_subcommand_are_last(tmp_path):
    job = job_of("torchtitan", {"arguments": ["--module llama3"]}, tmp_path, *TITAN, compiled=False, stop=False)
    words = list(job.command)
    at = words.index("activation-checkpoint:none")
    assert words[at + 1 :] == ["--activation_checkpoint.no_early_stop"]
    before = words[:at]
    assert {"--compile.no_enable", "--quantize.linear.float8.recipe_name=rowwise"} < set(before)
    assert before[before.index("--compile.components") + 1] == "model"
    assert job.files["torchtitan.args"].endswith("activation-checkpoint:none\n--activation_checkpoint.no_early_stop\n")


@pytest.mark.parametrize("release", ["v0.2.0", "v0.2", "v0.3"])
def test_torchtitan_refuses_what_its_plan_or_its_users_flags_say(release):
    told = problems_of(
        "torchtitan",
        {"release": release, "arguments": ["--compile.enable"]},
        TITAN[0],
        Knob(name="degree", values=(1, 2), config="parallelism.tensor_parallel_degree"),
        Knob(name="batch", values=(1, 2), argument="--training.local-batch-size {value}"),
        Knob(name="taken", values=(1, 2), argument="--training.steps {value}"),
    )
    file = "torchtitan.args" if release == "v0.3" else "torchtitan.toml"
    assert told == [
        f"compiled.config: compile.enable of {file} is set by workload.arguments, too",
        f"degree.config: parallelism.tensor_parallel_degree of {file} is set by the plan, too",
        "batch.argument: --training.local-batch-size already stands in the plan",
        "taken.argument: --training.steps already stands in every trial",
    ]


def test_options_of_the_trainer_take_the_place_of_the_specs(tmp_path):
    knobs = (
        Knob(name="fast", values=(False, True), option="compile"),
        Knob(name="threads", values=(1, 2), option="threads"),
        Knob(name="bits", values=("float32", "bfloat16"), option="dtype"),
    )
    job = job_of("torch", {"compile": False}, tmp_path, *knobs, fast=True, bits="bfloat16")
    parsed = parse_job(job.files["job.json"])
    assert (parsed.compile, parsed.threads, parsed.dtype) == (True, 1, "bfloat16")
    assert parsed.knobs["fast"].place == "compile"
    assert "-u" not in job.command


def test_a_trainer_with_variables_of_its_own_is_a_process_of_its_own(tmp_path):
    arenas = Knob(name="arenas", values=("many", 1), env="MALLOC_ARENA_MAX", omit="many")
    assert "-u" not in job_of("torch", {}, tmp_path, arenas).command
    told = job_of("torch", {}, tmp_path, arenas, arenas=1)
    assert (told.command[1], told.env) == ("-u", {"MALLOC_ARENA_MAX": "1"})


def test_the_trainer_refuses_options_and_values_that_it_has_not():
    told = problems_of(
        "torch",
        {},
        Knob(name="one", values=(1, 2), option="prefetched"),
        Knob(name="two", values=(0, 1.5, True, 2), option="threads"),
        Knob(name="three", values=("off", "flash"), option="attention", omit="off"),
        Knob(name="four", values=("fp8", "float32"), option="dtype"),
        FP8,
        Knob(name="omp", values=(1, 2), env="OMP_NUM_THREADS"),
    )
    assert told == [
        "one.option: the workload torch has no option 'prefetched'; did you mean 'prefetch'?",
        "two.values: 0 is no value of the option threads: must be at least 1, not 0",
        "two.values: 1.5 is no value of the option threads: must be an integer, not 1.5",
        "two.values: true is no value of the option threads: must be an integer, not True",
        "four.values: fp8 is no value of the option dtype: must be one of float32, bfloat16, float16",
        "fp8.argument: the workload torch takes no arguments",
        "omp.env: OMP_NUM_THREADS is set by the trainer itself, with `option: threads`, too",
    ]


def test_every_option_of_a_knob_is_one_of_the_job_and_of_the_spec():
    for kind in (TrainerJob, TrainerOptions):
        assert OPTIONS.keys() <= {field.name for field in fields(kind)}


@pytest.mark.parametrize(
    ("kind", "catalog", "options"),
    [
        ("torch", "trainer", {}),
        ("torch", "trainer_cpu", {}),
        ("torch", "trainer_cuda", {}),
        ("torch", "nccl", {}),
        ("megatron", "megatron", {}),
        ("deepspeed", "deepspeed", {"script": "/t.py"}),
        ("torchtitan", "torchtitan", {}),
        ("command", "cpu", {"command": ["t"]}),
    ],
)
def test_a_workload_can_be_told_of_its_catalog(kind, catalog, options):
    for name, entry in knob_catalogs()[catalog].items():
        assert problems_of(kind, options, Knob(**entry | {"name": name, "when": ""})) == []


def test_every_name_in_an_argument_counts():
    assert names_of("--a {value} --b=1 x") == ["--a", "--b"]
    assert names_of("model.x={value}") == ["model.x"]
    assert names_of("{value}") == []


def test_what_meshtune_sets_is_refused_for_every_variable_that_ranks_get(tmp_path: Path):
    spec = job_of("command", COMMAND, tmp_path)
    for name in (*rank_environment(spec, 0, meeting_here(spec)), *(name for name in spec.env)):
        (told,) = problems_of("command", COMMAND, Knob(name="x", values=(1, 2), env=name))
        assert told == f"x.env: {name} is set by meshtune for every process of a job"
