"""A plan as torchtitan's TOML and flags: what is said, what is refused by name, and that it is read back."""

from __future__ import annotations

import shlex
import tomllib
from functools import cache

import pytest
from dialect_cases import cases, stored_for
from hypothesis import given, settings
from hypothesis import strategies as st
from places import cluster
from torchtitan_lab import read_text

from meshtune.runners.programs.dialects.base import CannotExpress, CannotRead
from meshtune.runners.programs.torchtitan.options import Release, TorchtitanOptions, capabilities_of
from meshtune.runners.programs.torchtitan.workload import render
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.columns import SpaceContext
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import ContextParallel, Plan, Recompute, Schedule
from meshtune.search_spaces.space import Bounds, Space

GIVEN = stored_for(__name__)["given"]

MODEL = ModelSpec(name="m", layers=16, hidden=512, heads=16, ffn=2048, vocab=1024, seq_len=256, experts=8, top_k=2)
CLUSTER = cluster(2, 8, "cuda", memory_bytes=2**36)
BATCH = 64
BOUNDS = Bounds(
    tp=(1, 2, 4),
    pp=(1, 2, 4),
    cp=(1, 2),
    ep=(1, 2, 4),
    etp=(0, 1),
    zero_group=(0, 2, 4),
    vpp=(1, 2, 4),
    micro_batch_size=(1, 2),
    recompute=tuple(Recompute),
    recompute_interval=(1, 2),
    schedule=tuple(Schedule),
    sequence_parallel=(True, False),
    context=tuple(ContextParallel),
)
TOML, FLAGS = Release.TOML, Release.FLAGS


@cache
def space(release: Release) -> Space:
    able = capabilities_of(TorchtitanOptions(release=release))
    return Space(BOUNDS, SpaceContext(model=MODEL, cluster=CLUSTER, global_batch_size=BATCH, capabilities=able))


def text(plan: Plan, release: Release, **options) -> str:
    (written,) = render(MODEL, plan, CLUSTER, {"release": release, **options}).values()
    return written


def toml(plan: Plan, **options) -> dict:
    return tomllib.loads(text(plan, TOML, **options))


def flags(plan: Plan, **options) -> dict[str, str]:
    """Each flag with its value, empty for a switch; the last line under an empty name."""
    *lines, last = text(plan, FLAGS, **options).splitlines()
    words = [shlex.split(line) for line in lines]
    assert len({word[0] for word in words}) == len(words)
    return {word[0]: " ".join(word[1:]) for word in words} | {"": last}


def test_a_pipelines_plan_is_said_in_toml(stored):
    plan = Plan(tp=2, pp=2, dp=4, micro_batch_size=2, grad_accum_steps=8, zero_stage=3, recompute="full")
    assert toml(plan) == stored["toml"]


def test_a_plan_is_said_in_flags_and_recomputation_stands_last():
    said = flags(Plan(tp=2, pp=2, dp=4, grad_accum_steps=4, zero_stage=3, sequence_parallel=False))
    assert said["--parallelism.tensor_parallel_degree"] == "2"
    assert said["--parallelism.no_enable_sequence_parallel"] == ""
    assert said["--training.disable_cuda_graphs"] == ""
    assert said[""] == "activation-checkpoint:none"
    plain = flags(Plan(dp=16, zero_stage=3, recompute="selective"))
    assert plain["--parallelism.enable_sequence_parallel"] == ""
    assert "--training.disable_cuda_graphs" not in plain
    assert plain[""] == "activation-checkpoint:selective"


@cases
def test_parts_of_a_plan_have_their_words_in_toml(plan, words):
    assert words.items() <= toml(Plan(**plan))["parallelism"].items()


@pytest.mark.parametrize(("recompute", "interval", "option"), [("full", 2, "2"), ("selective", 1, "op")])
def test_recomputation_of_some_is_an_option_of_selective(recompute, interval, option):
    plan = Plan(dp=16, zero_stage=3, recompute=recompute, recompute_interval=interval)
    assert toml(plan)["activation_checkpoint"] == {"mode": "selective", "selective_ac_option": option}


def test_more_than_two_chunks_per_rank_are_said_as_layers_per_stage():
    plan = Plan(pp=2, dp=8, vpp=4, schedule="interleaved", grad_accum_steps=8, zero_stage=3)
    assert toml(plan)["parallelism"]["pipeline_parallel_layers_per_stage"] == 2
    two = Plan(pp=2, dp=8, vpp=2, schedule="interleaved", grad_accum_steps=8, zero_stage=3)
    own = {"pipeline_parallel_layers_per_stage": 3, "module_fqns_per_model_part": [["a"]]}
    assert not set(own) & set(toml(two, config={"parallelism": own})["parallelism"])


def test_the_users_own_settings_stay_but_for_what_the_plan_says(tmp_path):
    own = '[model]\nname = "llama3"\n[training]\nseq_len = 9\nmax_norm = 2.0\n'
    own += "[activation_checkpoint]\nearly_stop = true\n"
    path = tmp_path / "own.toml"
    path.write_text(own)
    for config in (str(path), tomllib.loads(own)):
        said = toml(Plan(dp=16, zero_stage=3), config=config)
        assert said["model"] == {"name": "llama3"}
        assert (said["training"]["seq_len"], said["training"]["max_norm"]) == (256, 2.0)
        assert said["activation_checkpoint"] == {"early_stop": True, "mode": "none"}
    arguments = ["--module llama3", "--training.seq_len 9", "--parallelism.enable_sequence_parallel", "--x 'a b'"]
    plan = Plan(tp=2, dp=8, zero_stage=3, sequence_parallel=False)
    said = flags(plan, arguments=arguments)
    assert (said["--module"], said["--training.seq_len"], said["--x"]) == ("llama3", "256", "a b")
    assert "--parallelism.enable_sequence_parallel" not in said
    other = flags(Plan(tp=2, dp=8, zero_stage=3), arguments=["--parallelism.no_enable_sequence_parallel"])
    assert "--parallelism.no_enable_sequence_parallel" not in other


@pytest.mark.parametrize(
    ("plan", "release", "rule"),
    [
        ({"dp": 16, "zero_stage": 1}, FLAGS, "zero"),
        ({"tp": 2, "dp": 8}, TOML, "torchtitan-ddp-alone"),
        ({"pp": 2, "dp": 8}, TOML, "torchtitan-ddp-alone"),
        ({"tp": 4, "pp": 4}, TOML, "torchtitan-mixed-precision"),
        ({"cp": 2, "dp": 8}, FLAGS, "torchtitan-cp-shards"),
        ({"ep": 2, "dp": 16}, FLAGS, "torchtitan-ep-shards"),
        ({"tp": 2, "ep": 2, "dp": 8, "zero_stage": 3}, FLAGS, "torchtitan-etp"),
        ({"tp": 4, "etp": 2, "ep": 2, "dp": 4, "zero_stage": 3}, TOML, "torchtitan-etp"),
        ({"tp": 2, "etp": 1, "dp": 8, "zero_stage": 3}, TOML, "torchtitan-etp"),
        ({"cp": 4, "ep": 2, "dp": 4, "zero_stage": 3}, Release.TOML_0_2_0, "torchtitan-ep-borrows"),
        ({"cp": 4, "dp": 4, "zero_stage": 3, "zero_group": 2}, FLAGS, "zero-group-contexts"),
        ({"tp": 2, "dp": 8, "zero_stage": 3, "sequence_parallel": False}, TOML, "trainer-sequence-parallel"),
        ({"cp": 2, "dp": 8, "zero_stage": 3, "context": "ring"}, FLAGS, "trainer-cp"),
        ({"cp": 2, "dp": 8, "zero_stage": 3, "context": "ulysses"}, TOML, "trainer-cp"),
        (
            {"dp": 16, "zero_stage": 3, "recompute": "full", "recompute_interval": 2},
            FLAGS,
            "trainer-recompute-interval",
        ),
        (
            {"dp": 16, "zero_stage": 3, "recompute": "selective", "recompute_interval": 2},
            TOML,
            "torchtitan-selective-interval",
        ),
        ({"tp": 16, "cp": 16, "dp": 1, "zero_stage": 3}, TOML, "torchtitan-sequence"),
    ],
)
def test_what_torchtitan_has_no_words_for_is_refused_by_name(plan, release, rule):
    with pytest.raises(CannotExpress, match=rf"^torchtitan {release} cannot run this plan: .*\({rule}: "):
        render(MODEL, Plan(**plan), CLUSTER, {"release": release})


@pytest.mark.parametrize("release", Release)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_reading_what_was_written_gives_the_same_plan(release, data):
    plan = space(release)[data.draw(st.integers(0, len(space(release)) - 1))]
    mine = {"model": {"name": "mine", "flavor": "16"}}
    own = {"config": mine} if release.has_file else {"arguments": ["--module mine", "--config 16"]}
    imported = read_text(text(plan, release, **own))
    known, asked = dict(imported.plan), [question.path for question in imported.questions]
    if plan.vpp > 2 and plan.schedule is not Schedule.ZBV:
        # It follows from the layers, which the configuration does not say.
        assert "baseline.vpp" in asked
        known["vpp"] = plan.vpp
    else:
        assert asked == [""]
    assert Plan(**known) == plan
    assert (imported.global_batch_size, dict(imported.model)) == (BATCH, {"seq_len": 256})
    # What 0.2.0 alone has, the seed, is no part of a plan.
    kind = "v0.2" if release.has_file else str(release)
    assert imported.workload == {
        "kind": "torchtitan",
        "release": kind,
        "dtype": "bfloat16",
        "warmup_steps": 8,
        **own,
    }


# torchtitan/models/llama3/train_configs/llama3_8b.toml at v0.2.2, in part.
LLAMA = GIVEN["llama"]


def test_a_configuration_that_leaves_the_devices_open_leaves_dp_open(stored):
    imported = read_text(LLAMA)
    assert dict(imported.plan) == stored["plan"]
    assert imported.workload["config"] == {
        "job": {"dump_folder": "./outputs"},
        "model": {"name": "llama3", "flavor": "8B"},
    }
    assert (imported.model["layers"], imported.model["ffn"], imported.model["seq_len"]) == (32, 14336, 8192)
    assert (imported.global_batch_size, imported.questions) == (None, ())
    assert any("takes the devices that are left" in note for note in imported.notes)


@pytest.mark.parametrize(
    ("policy", "pp", "stage"),
    [("default", 1, 3), ("default", 2, 2), ("always", 2, 3), ("never", 1, 2)],
)
def test_whether_weights_stay_gathered_is_the_stage(policy, pp, stage):
    shards = f'data_parallel_shard_degree = 2\npipeline_parallel_degree = {pp}\nfsdp_reshard_after_forward = "{policy}"'
    assert read_text(f"[parallelism]\n{shards}\n").plan["zero_stage"] == stage


def test_the_users_flags_stay_when_they_speak_of_no_plan():
    imported = read_text(
        "--module llama3\n--config llama3_8b\n--training.steps 5\n--training.local_batch_size 2\n--compile.enable\n"
    )
    assert imported.workload["arguments"] == [
        *("--module llama3", "--config llama3_8b", "--training.steps 5", "--compile.enable"),
    ]
    assert (imported.plan["micro_batch_size"], imported.model["layers"], imported.questions) == (2, 32, ())


@cases
def test_what_cannot_be_read_is_told(text, told):
    with pytest.raises(CannotRead, match=told):
        read_text(text)


@cases
def test_wrong_options_are_told(options, told):
    with pytest.raises(InvalidValue, match=f"^{told}"):
        render(MODEL, Plan(dp=16), CLUSTER, options)
