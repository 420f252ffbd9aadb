"""A plan as a ds_config: what is said, what is refused by name, and that reading it back gives the same plan."""

from __future__ import annotations

import json
from functools import cache

import pytest
from dialect_cases import cases, stored_for
from hypothesis import given, settings
from hypothesis import strategies as st
from launches import launch_of
from places import cluster

from meshtune.runners.programs.deepspeed.options import DeepSpeedOptions, capabilities_of, render
from meshtune.runners.programs.deepspeed.reader import (
    is_file,
    is_program,
    read_file_text,
    read_launch,
    read_settings,
)
from meshtune.runners.programs.dialects.base import CannotExpress, CannotRead
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.columns import SpaceContext
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import ContextParallel, Plan, Recompute
from meshtune.search_spaces.space import Bounds, Space


def parse(text):
    return read_settings(json.loads(text), {})[0]


GIVEN = stored_for(__name__)["given"]

MODEL = ModelSpec(name="m", layers=16, hidden=512, heads=16, ffn=2048, vocab=1024, seq_len=256)
CLUSTER = cluster(2, 8, "cuda", memory_bytes=2**36)
BATCH = 64
BOUNDS = Bounds(
    tp=(1, 2, 4),
    pp=(1, 2),
    cp=(1, 2, 4),
    zero_group=(0, 4),
    micro_batch_size=(1, 2, 4),
    recompute=(Recompute.NONE, Recompute.FULL),
    sequence_parallel=(True, False),
    context=tuple(ContextParallel),
)
PIPELINE = {"pipeline_module": True, "arguments": ["--stages {pp}"]}


@cache
def space() -> Space:
    able = capabilities_of(DeepSpeedOptions())
    return Space(BOUNDS, SpaceContext(model=MODEL, cluster=CLUSTER, global_batch_size=BATCH, capabilities=able))


def config(plan: Plan, **options) -> dict:
    return json.loads(render(MODEL, plan, CLUSTER, options)["ds_config.json"])


def problems(plan: Plan, **options) -> list[str]:
    with pytest.raises(CannotExpress) as caught:
        render(MODEL, plan, CLUSTER, options)
    return [problem.message for problem in caught.value.problems]


def test_a_plan_is_said_in_deepspeeds_words(stored):
    assert config(Plan(dp=16, micro_batch_size=2, grad_accum_steps=3, zero_stage=2)) == stored["config"]


def test_the_users_own_settings_stay_but_for_what_the_plan_says(tmp_path):
    own = {
        "train_batch_size": 7,
        "zero_optimization": {"stage": 3, "overlap_comm": True},
        "tensor_parallel": {"autotp_size": 8, "preset_model": "llama"},
        "sequence_parallel_size": 2,
        "data_parallel_size": 2,
        "optimizer": {"type": "AdamW"},
    }
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(own))
    for given_as in (own, str(path)):
        said = config(Plan(dp=16, zero_stage=1), config=given_as, dtype="float16")
        assert said["zero_optimization"] == {"stage": 1, "overlap_comm": True}
        assert said["tensor_parallel"] == {"preset_model": "llama"}
        assert said["optimizer"] == {"type": "AdamW"}
        assert (said["train_batch_size"], said["bf16"], said["fp16"]) == (16, {"enabled": False}, {"enabled": True})
        assert not {"sequence_parallel_size", "data_parallel_size"} & set(said)


def test_tensor_and_context_parallelism_are_sizes_of_the_mesh():
    said = config(Plan(cp=4, dp=4, context="ulysses", zero_stage=3))
    assert (said["sequence_parallel_size"], said["data_parallel_size"], said["train_batch_size"]) == (4, 4, 4)
    said = config(Plan(tp=2, dp=8, sequence_parallel=False), config={"train_batch_size": 8})
    assert said["tensor_parallel"] == {"autotp_size": 2}
    assert "train_batch_size" not in said  # DeepSpeed's own would count every tensor rank


def test_groups_that_are_sharded_over_are_those_of_mics_and_copies_of_weights_are_not():
    said = config(Plan(dp=16, zero_stage=3, zero_group=8), config={"zero_optimization": {"mics_shard_size": 4}})
    assert said["zero_optimization"] == {"stage": 3, "mics_shard_size": 8}
    assert "mics_shard_size" not in config(Plan(dp=16, zero_stage=3), config=said)["zero_optimization"]
    sizes = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}
    own = {**sizes, "bf16": {"enabled": True}}
    imported = read_file_text("", json.dumps({**own, "zero_optimization": {"stage": 3, "mics_shard_size": 8}}))
    assert (imported.plan["dp"], imported.plan["zero_group"]) == (16, 8)
    assert "config" not in imported.workload
    for without in ({"stage": 3, "mics_shard_size": -1}, {"stage": 2, "mics_shard_size": 8}):
        off = read_file_text("", json.dumps({**own, "zero_optimization": without}))
        assert "zero_group" not in off.plan
    copies = {"stage": 3, "zero_hpz_partition_size": 8}
    second = read_file_text("", json.dumps({**own, "zero_optimization": copies}))
    assert "zero_group" not in second.plan
    assert second.workload["config"]["zero_optimization"] == {"zero_hpz_partition_size": 8}
    assert any("a second copy of the weights" in note for note in second.notes)


def test_a_pipeline_modules_recomputation_is_an_interval():
    plan = {"pp": 2, "dp": 8, "grad_accum_steps": 2}
    assert config(Plan(**plan), **PIPELINE)["pipeline"] == {"activation_checkpoint_interval": 0}
    full = Plan(**plan, recompute="full")
    assert config(full, **PIPELINE)["pipeline"] == {"activation_checkpoint_interval": 1}
    assert "pipeline" not in config(full, **PIPELINE | {"arguments": ["--stages {pp} --recompute {recompute}"]})


@pytest.mark.parametrize(
    ("plan", "options", "rule"),
    [
        ({"pp": 2, "dp": 8}, {}, "deepspeed-pp"),
        ({"tp": 2, "dp": 8}, {}, "deepspeed-sequence-parallel"),
        ({"tp": 2, "cp": 2, "dp": 4, "context": "ulysses", "sequence_parallel": False}, {}, "deepspeed-tp-alone"),
        ({"tp": 2, "pp": 2, "dp": 4, "sequence_parallel": False}, PIPELINE, "deepspeed-pipeline-module"),
        ({"cp": 2, "pp": 2, "dp": 4, "context": "ulysses"}, PIPELINE, "deepspeed-pipeline-module"),
        ({"pp": 2, "dp": 8, "zero_stage": 2}, PIPELINE, "zero"),
        ({"cp": 2, "dp": 8, "context": "ring"}, {}, "trainer-cp"),
        ({"dp": 16, "recompute": "full"}, {}, "trainer-recompute"),
        ({"dp": 16, "recompute": "selective"}, PIPELINE, "trainer-recompute"),
        ({"dp": 16, "ep": 2}, {}, "trainer-ep"),
        ({"dp": 16, "zero_stage": 2, "zero_group": 8}, {}, "trainer-zero-group"),
    ],
)
def test_what_deepspeed_has_no_words_for_is_refused_by_name(plan, options, rule):
    (told,) = problems(Plan(**plan), **options)
    assert f"({rule}: " in told


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_reading_what_was_written_gives_the_same_plan(data):
    plan = space()[data.draw(st.integers(0, len(space()) - 1))]
    imported, ranks = read_settings(json.loads(render(MODEL, plan, CLUSTER)["ds_config.json"]), {})
    assert imported.workload == {"kind": "deepspeed", "dtype": "bfloat16"}
    # Under AutoTP neither the batch nor dp is said; both follow from the devices.
    known = {"dp": plan.dp} if plan.tp > 1 else {}
    assert Plan(**{**imported.plan, **known, "zero_group": ranks or 0}) == plan
    assert imported.global_batch_size == (BATCH if plan.tp == 1 else None)
    assert [("mics_shard_size" in note) for note in imported.notes] == [True] * (plan.zero_group > 0)


AUTO = GIVEN["auto"]


def asked(imported) -> list[str]:
    return [question.path for question in imported.questions]


def test_what_is_auto_in_a_file_is_asked_for_and_no_number_format_is_assumed():
    imported = parse(json.dumps(AUTO))
    assert dict(imported.plan) == {"tp": 1, "pp": 1, "cp": 1, "zero_stage": 3}
    assert imported.global_batch_size is None
    assert imported.workload == {
        "kind": "deepspeed",
        "dtype": None,
        "config": {"zero_optimization": {"overlap_comm": True}, "optimizer": {"type": "AdamW"}},
    }
    assert asked(imported) == ["global_batch_size", "baseline.micro_batch_size", "workload.dtype"]
    assert asked(parse("{}")) == ["workload.dtype"]
    assert "'auto'" in imported.questions[0].text


def test_what_starts_deepspeed_fills_auto_in():
    filled = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "bf16.enabled": True}
    imported, _ = read_settings(AUTO, filled)
    assert imported.questions == ()
    assert (imported.plan["micro_batch_size"], imported.global_batch_size, imported.workload["dtype"]) == (
        2,
        64,
        "bfloat16",
    )


def test_offloading_stays_and_is_told():
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "nvme", "nvme_path": "/n"}}
    imported = parse(json.dumps({"zero_optimization": zero, "bf16": {"enabled": True}}))
    assert [note.split(":")[0] for note in imported.notes] == [
        "zero_optimization.offload_optimizer.device",
        "zero_optimization.offload_param.device",
    ]
    assert imported.workload["config"]["zero_optimization"] == {key: zero[key] for key in zero if key != "stage"}


SETTINGS = GIVEN["settings"]


def test_a_start_of_a_script_of_deepspeeds_own_keeps_script_and_arguments():
    command = "deepspeed --num_gpus 8 train.py --deepspeed --deepspeed_config ds.json --lr 1e-4 --tag '{a}'"
    launch = launch_of(command, files={"ds.json": json.dumps(SETTINGS)}, nodes=2, devices_per_node=8, directory="/w")
    assert is_program(launch)
    imported = read_launch(launch)
    alone = {"tp": 1, "pp": 1, "cp": 1}
    assert imported.plan == {**alone, "micro_batch_size": 2, "grad_accum_steps": 4, "zero_stage": 2, "dp": 16}
    assert (imported.global_batch_size, imported.nodes, imported.devices_per_node) == (128, 2, 8)
    workload = imported.workload
    assert (workload["script"], workload["directory"], workload["dtype"]) == ("train.py", "/w", "float16")
    assert workload["arguments"] == ["--deepspeed_config {config}", "--lr 1e-4", "--tag '{{a}}'"]
    assert asked(imported) == ["model.layers"]
    assert workload["watch"] is True


def test_what_the_batch_and_the_devices_leave_are_stages_of_a_pipeline_which_is_asked():
    settings = {**SETTINGS, "train_batch_size": 16}
    command = "deepspeed --num_gpus 8 train.py --deepspeed_config ds.json"
    imported = read_launch(launch_of(command, files={"ds.json": json.dumps(settings)}, nodes=1, devices_per_node=8))
    assert (imported.plan["dp"], imported.global_batch_size) == (2, 16)
    assert "pp" not in imported.plan
    (question,) = (question.text for question in imported.questions if question.path == "baseline.pp")
    assert "pp(4)" in question


def test_settings_that_are_not_there_are_no_settings():
    launch = launch_of("deepspeed train.py --deepspeed_config ds.json")
    with pytest.raises(CannotRead, match=r"ds\.json, are not there\. Next: make the file"):
        read_launch(launch)
    assert not is_program(launch_of("torchrun pretrain_gpt.py --num-layers 2 --deepspeed_config ds.json"))


def test_a_ds_config_is_known_by_its_keys_and_asks_for_its_script():
    text = json.dumps(SETTINGS)
    assert is_file("a.json", text)
    assert not is_file("a.yaml", text)
    assert not is_file("a.json", '{"hidden_size": 8}')
    imported = read_file_text("a.json", text)
    assert asked(imported) == ["workload.script", "model.layers"]


@cases
def test_what_cannot_be_read_is_told_with_its_line_or_key(text, told):
    with pytest.raises(CannotRead, match=told):
        read_file_text("a.json", text)


@cases
def test_what_is_wrong_in_a_config_is_asked(text, path, told):
    imported = parse(text)
    (question,) = (question for question in imported.questions if question.path == path)
    assert told in question.text
    assert (path == "global_batch_size") <= (imported.global_batch_size is None)


@cases
def test_wrong_options_are_told(options, told):
    with pytest.raises(InvalidValue, match=f"^{told}"):
        render(MODEL, Plan(dp=16), CLUSTER, options)


def test_under_autotp_a_batch_that_is_said_says_nothing_for_it_may_count_every_tensor_rank():
    said = {
        "train_batch_size": 32,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "tensor_parallel": {"autotp_size": 2},
    }
    imported = parse(json.dumps(said))
    assert imported.global_batch_size is None
    assert "dp" not in imported.plan
    assert (imported.plan["tp"], imported.plan["sequence_parallel"]) == (2, False)
