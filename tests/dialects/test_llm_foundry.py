"""llm-foundry read from its start and its YAML file: what it says, what it leaves open, and what trials get."""

from __future__ import annotations

import pytest
import yaml
from config_lab import Trials, changed, launch, questions
from dialect_cases import cases, stored_for

from meshtune.runners.programs.config_program import ConfigProgram
from meshtune.runners.programs.dialects.base import CannotRead, Imported
from meshtune.runners.programs.dialects.omegaconf import overridden, resolved
from meshtune.runners.programs.log_patterns import Patterns

PROGRAM = ConfigProgram("meshtune.runners.programs.llm_foundry")
LOG = PROGRAM.table.lists["log"]
GIVEN = stored_for(__name__)["given"]

CONFIG = GIVEN["config"]
NAME = "yamls/pretrain/mpt-7b.yaml"
LENGTH = {
    "max_duration": ("63900ba", "15ba"),
    "log_to_console": (..., True),
    "progress_bar": (..., False),
    "console_log_interval": (..., "1ba"),
    "callbacks.speed_monitor.window_size": (10, 1),
    "callbacks.memory_monitor": (..., {}),
    "save_folder": ("s3://bucket/run", ...),
}


def start(*words: str, config: str = CONFIG, **more) -> Imported:
    return PROGRAM.read_launch(launch("train/train.py", NAME, *words, files={NAME: config}, **more))


def test_a_start_says_model_plan_and_batch(stored):
    imported = start()
    assert imported.model == stored["model"]
    expected = {"zero_stage": 3, "recompute": "full", "dp": 16, "micro_batch_size": 8, "grad_accum_steps": 8}
    assert imported.plan == {"tp": 1, "pp": 1, **expected}
    assert imported.global_batch_size == 1024
    assert imported.workload["dtype"] == "bfloat16"
    assert questions(imported) == []


def test_the_baseline_is_the_users_configuration_and_a_plan_changes_its_keys_alone():
    trials = Trials(start())
    assert changed(yaml.safe_load(CONFIG), trials.config("train.yaml")) == LENGTH
    # What OmegaConf reads as a float is written as the user wrote it.
    assert "lr: 1e-4\n" in trials.job().files["train.yaml"]
    other = next(plan for plan in trials.space if plan.zero_stage == 2 and plan.micro_batch_size == 4)
    assert changed(yaml.safe_load(CONFIG), trials.config("train.yaml", other)) == LENGTH | {
        "device_train_microbatch_size": (8, 4),
        "fsdp_config.sharding_strategy": ("FULL_SHARD", "SHARD_GRAD_OP"),
        **({} if other.recompute == "full" else {"fsdp_config.activation_checkpointing": (True, False)}),
    }
    assert {plan.zero_stage for plan in trials.space} == {0, 2, 3}
    assert {(plan.tp, plan.pp, plan.cp, plan.ep) for plan in trials.space} == {(1, 1, 1, 1)}
    job = trials.job()
    assert job.command[-3:] == ("python", "train/train.py", "/jobs/x/train.yaml")
    assert (job.env["LOCAL_WORLD_SIZE"], job.processes) == ("8", 16)


def test_a_mesh_of_replicas_and_shards_is_the_plans():
    mesh = [f"fsdp_config.data_parallel_{name}_degree={size}" for name, size in (("replicate", 2), ("shard", -1))]
    imported = start(*mesh, "fsdp_config.sharding_strategy=HYBRID_SHARD")
    assert (imported.plan["zero_stage"], imported.plan["zero_group"], questions(imported)) == (3, 8, [])
    trials = Trials(imported, space={"zero_group": [0, 4, 8]})
    for group, sizes in ((8, [2, 8]), (4, [4, 4]), (0, [1, 16])):
        plan = next(plan for plan in trials.space if (plan.zero_stage, plan.zero_group) == (2, group))
        config = trials.config("train.yaml", plan)["fsdp_config"]
        assert [config[f"data_parallel_{name}_degree"] for name in ("replicate", "shard")] == sizes


def test_words_of_the_start_are_laid_over_the_file():
    imported = start(
        "variables.width=2048", "model.n_heads=16", "fsdp_config.activation_checkpointing=false", "run_name=a"
    )
    assert (imported.model["hidden"], imported.model["heads"], imported.plan["recompute"]) == (2048, 16, "none")
    own = imported.workload["configs"]["train.yaml"]["base"]
    assert own["model"]["d_model"] == "${variables.width}"
    assert own["run_name"] == "a"
    with pytest.raises(CannotRead, match="'--wide' is no key=value"):
        start("--wide")
    asked = questions(start("save_folder=\x01$OUT\x02"))
    assert len(asked) == 1
    assert asked[0].startswith("workload.command: line 3: what save_folder=$OUT stands for is not known here")


def test_replicas_without_fsdp_stay_replicas():
    imported = start("fsdp_config=null")
    assert (imported.plan["zero_stage"], imported.workload["fixed"]["zero_stage"]) == (0, 0)
    assert Trials(imported).config("train.yaml")["fsdp_config"] is None


@cases
def test_what_is_not_understood_is_asked(words, part):
    asked = questions(start(*words))
    assert len(asked) == 1
    assert asked[0].startswith(part)


@cases
def test_shapes_follow_from_the_keys(words, model):
    imported = start(*words)
    assert questions(imported) == []
    assert model.items() <= imported.model.items()


def test_one_file_alone_leaves_the_command_open():
    assert PROGRAM.is_file(NAME, CONFIG)
    assert not PROGRAM.is_file("a.yaml", "model: {name: x}\ntrain_loader: {}\n")
    imported = PROGRAM.read_file_text(NAME, CONFIG)
    assert [question.path for question in imported.questions] == ["workload.command"]
    assert imported.plan["micro_batch_size"] == 8
    assert "dp" not in imported.plan
    trials = Trials(imported, workload__command=["composer", "train.py", "{directory}/train.yaml"])
    assert changed(yaml.safe_load(CONFIG), trials.config("train.yaml")) == LENGTH


def test_a_run_file_says_the_start_too():
    config = {**yaml.safe_load(CONFIG), "global_seed": 17, "icl_max_seq_len": 2048}
    file = {"name": "x", "command": "cd foundry/scripts\ncomposer train/train.py /mnt/p.yaml || exit 1\n"}
    imported = PROGRAM.read_file_text("run.yaml", yaml.safe_dump({**file, "parameters": config}))
    assert imported.questions == ()
    assert imported.workload["command"] == ["python", "train/train.py", "{directory}/train.yaml"]
    assert imported.workload["working_directory"].endswith("foundry/scripts")
    other = PROGRAM.read_file_text("run.yaml", yaml.safe_dump({"command": "make", "parameters": config}))
    assert [question.path for question in other.questions] == ["workload.command"]


def test_starts_are_recognised():
    assert PROGRAM.is_program(launch("train/train.py", NAME, files={NAME: CONFIG}))
    assert PROGRAM.is_program(launch("/opt/llm-foundry/scripts/train/train.py", "a.yaml"))
    assert not PROGRAM.is_program(launch("train.py", NAME, files={NAME: "a: 1"}))
    assert not PROGRAM.is_program(launch("train.py", "--config", NAME, files={NAME: CONFIG}))
    with pytest.raises(CannotRead, match="encoder and a decoder"):
        start("model.name=hf_t5")
    with pytest.raises(CannotRead, match=r"is started with a\.yaml, which cannot be read here"):
        PROGRAM.read_launch(launch("train.py", "a.yaml"))


def test_references_lead_to_values_and_cost_no_more_than_their_length():
    config = {
        "a": {"b": 1, "c": "${.b}", "d": "${a.c}/x${a.b}", "e": "${oc.env:X}", "f": "${a}", "n": "${none}"},
        "g": "${g}",
        "none": None,
    }
    assert resolved(config)["a"] == {"b": 1, "c": 1, "d": "1/x1", "e": "${oc.env:X}", "f": "${a}", "n": None}
    assert resolved(config)["g"] == "${g}"
    many = {f"k{level}": f"${{k{level + 1}}}" * 150 for level in range(20)}
    assert sum(len(text) for text in resolved(many).values()) < 3_000_000
    assert overridden({"a": {"b": 1}}, ("+a.c=[1, x]", "a.b=null"), "here")[0] == {"a": {"b": None, "c": [1, "x"]}}


def test_the_lines_of_its_log_are_read():
    """Written from composer/loggers/console_logger.py and callbacks/speed_monitor.py."""
    patterns = Patterns(LOG)
    lines = [
        "[batch=3/15]:",
        "\t Train time/batch: 2",
        f"\t Train loss/train/total: {10.93:.4f}",
        f"\t Train throughput/device/samples_per_sec: {7.9:.4f}",
        f"\t Train throughput/samples_per_sec: {63.25:.4f}",
        f"\t Train memory/peak_allocated_mem: {41.03:.4f}",
    ]
    found = [(name, patterns.find(name, line).value) for line in lines for name in LOG if patterns.find(name, line)]
    assert found == [("loss", 10.93), ("samples_per_s", 63.25), ("memory_gb", 41.03)]
