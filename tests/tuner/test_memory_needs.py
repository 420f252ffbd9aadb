"""Recomputation is open where memory asks for it, and where nothing fits what is named would help."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial

import command_lab
import pytest
import yaml

from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.physics.estimate import estimate_memory
from meshtune.search_spaces.plan import Plan, Recompute
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.campaign import CampaignState, Home
from meshtune.tuner.campaign.spec import document_of
from meshtune.tuner.prediction import memory_needs as module
from meshtune.tuner.prediction.memory_needs import memory_needs
from meshtune.tuner.prediction.predict import Basis, training_of
from meshtune.tuner.prediction.quote import make_quote
from meshtune.tuner.service.driving.loop import Driver, drive_one
from meshtune.tuner.service.service import Service
from meshtune.tuner.specs.read import read_spec
from meshtune.tuner.store import Store

pytestmark = pytest.mark.slow

SPEC = {
    "model": {"preset": "llama3-70b", "seq_len": 8192},
    "cluster": {"preset": "dgx-h100", "nodes": 8},
    "global_batch_size": 512,
}
EVERY = tuple(Recompute)
WORDS = {"format": "json", "base": {}, "set": {"remat": {"{recompute}": {"none": False, "full": True}}}}
SMALL = {"name": "small", "kind": "cuda", "memory_bytes": 2**30}
MANY = {"global_batch_size": 10**6 + 1, "workload": "torchtitan"}
SCRIPT = {"kind": "command", "command": "train.py {recompute} {pp} {tp} {micro_batch_size} {zero_stage}"}


def read(**over):
    return read_spec({**SPEC, **over}, None)


def test_recomputation_is_open_where_no_plan_surely_fits_without_it():
    spec, space = read()
    assert spec.space.recompute == space.dimensions["recompute"] == EVERY
    quote = make_quote(spec, space, Basis())
    assert quote.memory_needs == (
        "recomputation: open, since no plan without it fits with 90 %; 1600 combinations more",
    )
    assert quote.fit.sure > 50
    best = quote.best[0]
    assert (best.p_fits > 0.9, best.speed.tokens_per_s.value > 50_000, best.plan.recompute) == (True, True, "full")


def test_it_is_open_where_the_plans_that_fit_are_much_slower_without_it():
    spec, space = read(workload={"kind": "simulated", "framework": "fsdp"}, runner="simulated")
    assert spec.space.recompute == (Recompute.NONE, Recompute.FULL)
    why, loading = memory_needs(space, training_of(spec))
    assert loading.startswith("host memory of a node to load")
    assert re.fullmatch(
        r"recomputation: open, since the best plan's speed x P\(fits\) is \d\d % higher with it; 560 .*", why
    )


@pytest.mark.parametrize(("device", "told"), [("cpu", [r"[\d.]+ GiB"]), ("nvme", []), ("none", [])])
def test_hosts_hold_an_optimizer_of_theirs_in_one_number_where_plans_agree(device, told):
    config = {"zero_optimization": {"offload_optimizer": {"device": device}}}
    workload = {"kind": "deepspeed", "script": "train.py", "directory": ".", "config": config}
    spec, space = read(model="llama3-8b", workload=workload, space={"tp": [1], "zero_stage": [3]})
    words = [words for words in memory_needs(space, training_of(spec)) if "offloaded" in words]
    assert len(words) == len(told)
    assert all(re.fullmatch(rf"host memory of a node for the offloaded optimizer: {each}", words[0]) for each in told)


@pytest.mark.parametrize(
    "over",
    [
        {"space": {"recompute": ["none"]}},
        {"model": "llama3-8b"},
        {"model": "gpt-micro", "cluster": {"preset": "local-cpu"}, "global_batch_size": 16},
        {"workload": "megatron"},
        {"workload": SCRIPT},
        {"workload": {"kind": "deepspeed", "script": "train.py", "directory": "."}, "space": {"tp": [1], "pp": [1]}},
    ],
    ids=["stated", "ample", "a laptop", "fits without", "of a script", "none to open"],
)
def test_elsewhere_it_stays_closed(over):
    assert read(**over)[0].space.recompute == (Recompute.NONE,)


def test_a_large_space_is_judged_by_an_even_sample():
    spec, space = read(space={"recompute_interval": list(range(1, 13)), "vpp": [1, 2, 4, 8, 16]})
    assert (spec.space.recompute, len(space) > module.MAX_JUDGED) == (EVERY, True)
    assert [words.partition(";")[0] for words in memory_needs(space, training_of(spec))] == [
        "recomputation: open, since no plan without it fits with 90 %"
    ]


def test_a_script_whose_configuration_has_words_for_it_gets_those():
    command = SCRIPT["command"].replace("{recompute}", "a.json")
    spec, _ = read(workload={"kind": "command", "command": command, "configs": {"a.json": WORDS}})
    assert spec.space.recompute == (Recompute.NONE, Recompute.FULL)


def test_a_stored_spec_has_its_space_whatever_the_physics_says_later(monkeypatch):
    spec, space = read()
    monkeypatch.setattr(module, "SURE", 0.0)
    monkeypatch.setattr(module, "GAIN", 10.0)
    assert read()[0].space.recompute == (Recompute.NONE,)
    again, same = read_spec(document_of(spec), None)
    assert (again, same.counts) == (spec, space.counts)


@pytest.mark.parametrize(
    ("over", "first"),
    [
        ({"space": {"recompute": ["none"]}}, "space.recompute: [none, selective, full] would: 112 plans"),
        (
            {"space": {"recompute": ["none"], "tp": [1], "zero_stage": [0], "micro_batch_size": [4]}},
            "space.micro_batch",
        ),
        ({"cluster": {"preset": "dgx-h100", "nodes": 1}}, "cluster.nodes: 4 (32 devices) would: 16 plans"),
        ({"workload": "megatron", "model": "llama3-405b"}, "cluster.nodes: "),
        # Opened together its axes are too many to be tried on more nodes.
        (
            {"model": "mixtral-8x7b", "cluster": {"preset": "dgx-h100", "nodes": 1}, "global_batch_size": 64},
            "cluster.nodes: 2 (16 devices) would: 33 plans",
        ),
        (
            {"model": "mixtral-8x22b", "cluster": {"preset": "dgx-a100", "nodes": 4}, "space": {"zero_stage": [1]}},
            "cluster.nodes: 8 (64 devices), space.zero_stage: [0, 1, 2, 3] would: 18 plans",
        ),
        ({"model": "llama3-8b", "space": {"zero_stage": [0], "pp": [1], "recompute": ["none"], "tp": [1]}}, "space."),
    ],
)
def test_where_nothing_fits_every_change_that_is_named_lets_as_many_plans_fit_as_it_says(over, first):
    spec, space = read(**over)
    quote = make_quote(spec, space, Basis())
    assert quote.fit.sure == 0
    head, *changes = [words for words in quote.memory_needs if not words.startswith("recomputation")]
    assert re.match(
        r"no plan fits with 90 %: the least memory is [\d.]+ GiB of 80.00 GiB, P\(fits\) .* %, with tp", head
    )
    assert changes[0].startswith(first)
    for words in changes:
        change, count = re.fullmatch(r"(.*) would: (\d+) plans? fits? with 90 %", words).groups()
        document = document_of(spec)
        for section, key, value in re.findall(r"(\w+)\.(\w+): (\[[^]]*\]|\d+)", change):
            document[section][key] = yaml.safe_load(value)
        fit = make_quote(*read_spec(document, None), Basis()).fit
        assert fit.sure == int(count) > 0, words


def test_groups_that_shard_too_little_are_named():
    _, space = read(space={"tp": [1], "pp": [1], "zero_stage": [3], "recompute": ["full"]}, workload="torchtitan")
    able = replace(space.context.capabilities, zero_groups=frozenset({3}))
    space = Space(replace(space.bounds, zero_group=(8,)), replace(space.context, capabilities=able))
    spec, _ = read(workload="torchtitan")
    _, first, *_ = memory_needs(space, training_of(spec))
    assert first.startswith("space.zero_group: [0, 8] would: ")


def test_a_model_that_no_number_of_devices_holds_is_said_to_be_that():
    shapes = {"layers": 1, "hidden": 2**17, "heads": 1, "ffn": 2**20, "vocab": 2**20, "seq_len": 2**20}
    spec, space = read(model=shapes, space={"tp": [1], "pp": [1], "zero_stage": [0]}, workload="megatron")
    assert memory_needs(space, training_of(spec))[-1].endswith(" would, nor up to 1024 times the nodes")


@pytest.mark.parametrize(
    ("over", "words"),
    [
        (
            {"workload": {"kind": "deepspeed", "script": "train.py", "directory": "."}},
            "no axis would, nor up to 1024 times the nodes; the workload is told no {recompute}",
        ),
        (
            {"cluster": {"preset": "dgx-h100", "nodes": 1}, "space": {"recompute_interval": list(range(1, 17))}},
            "changes are tried in up to 16384 combinations, not in 26880: bound the space",
        ),
        (
            {
                "cluster": {"name": "many", "nodes": 1, "devices_per_node": 10**6 + 1, "device": SMALL},
                "space": {"tp": [1], "pp": [1]},
                **MANY,
            },
            "no axis would, nor up to 1024 times the nodes",
        ),
    ],
    ids=["nothing to open", "too large", "more devices than an axis may have"],
)
def test_where_no_change_can_be_named_the_reason_is(over, words):
    spec, space = read(**over)
    *_, head, last = memory_needs(space, training_of(spec))
    assert (head.startswith("no plan fits with 90 %: the least memory is "), last) == (True, words)


def test_the_command_line_says_it(tmp_path):
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    said = partial(command_lab.said, tmp_path)
    assert "\nrecomputation: open, since no plan without it fits with 90 %; 1600 " in said("spaces", "spec.yaml")
    assert "\nrecomputation: open, since " in said("estimate", "spec.yaml")


@pytest.mark.parametrize("stated", [True, False])
def test_a_simulated_campaign_of_a_70b_finds_plans_that_fit(tmp_path, stated):
    over = {"workload": {"kind": "simulated", "framework": "trainer"}, "runner": {"kind": "simulated", "seed": 1}}
    over |= {"budget": {"trials": 4}, "confirm": 0, "trial": {"time_limit_s": 21600}}
    with Store.open("sqlite://") as store:
        service = Service(store, Home(tmp_path / "home"))
        id = service.create({**SPEC, **over, **({"space": {"recompute": ["none"]}} if stated else {})}).id
        drive_one(Driver(service), service, id, lambda: None)
        campaign, trials = store.campaign(id), store.trials(id)
        service.close()
    assert campaign.state is CampaignState.COMPLETED
    assert [str(trial.verdict) for trial in trials] == ["oom" if stated else "ok"] * 4


def test_the_memory_of_hosts_is_named_where_it_is_much_or_holds_the_optimizer():
    whole = {"workload": {"kind": "simulated", "framework": "fsdp"}, "runner": "simulated"}
    config = {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}
    offloads = {"kind": "deepspeed", "script": "train.py", "directory": ".", "config": config}
    found = []
    for over in ({**whole, "model": "llama3-8b"}, whole, {"workload": offloads}):
        spec, space = read(**over)
        found.append([words for words in memory_needs(space, training_of(spec)) if words.startswith("host memory")])
    assert found[0] == []
    # 70.55e9 weights of 4 bytes, eight times; a DGX H100 has 2 TB.
    assert found[1] == ["host memory of a node to load, where every rank reads the whole checkpoint: 2102.66 GiB"]
    # 70.55e9 weights of 16 bytes over eight nodes, at least: whole over the data ranks, or over the nodes' ranks.
    assert re.fullmatch(r"host memory of a node for the offloaded optimizer: 13\d\.\d\d GiB", found[2][0])


@pytest.mark.parametrize("device", ["cpu", "nvme"])
def test_why_tells_the_memory_of_hosts_of_one_plan(tmp_path, device):
    config = {"zero_optimization": {"offload_optimizer": {"device": device}}}
    workload = {"kind": "deepspeed", "script": "train.py", "directory": ".", "config": config}
    spec = {**SPEC, "model": {"preset": "llama3-8b", "seq_len": 4096}, "workload": workload}
    (tmp_path / "train.py").touch()
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    asked = ("estimate", "spec.yaml", "--why", "tp=1,dp=64,zero_stage=3,mbs=1")
    found = json.loads(command_lab.said(tmp_path, *asked, "--json"))["prediction"]
    # 8.03e9 weights: 16 bytes of each over eight nodes, and 2 of each for eight ranks.
    assert found["host_optimizer_bytes"] == pytest.approx(16 * 8.03e9 / 8 if device == "cpu" else 0, rel=0.001)
    assert found["host_loading_bytes"] == pytest.approx(8 * 2 * 8.03e9, rel=0.001)
    words = [line for line in command_lab.said(tmp_path, *asked).splitlines() if line.startswith("host memory")]
    offloaded = ["host memory of a node for the offloaded optimizer: 14.96 GiB"] if device == "cpu" else []
    loaded = "host memory of a node to load, where every rank reads the whole checkpoint: 119.66 GiB"
    assert words == [*offloaded, loaded]


def test_settings_of_a_program_reach_the_predicted_memory():
    def peak(workload, plan, **over):
        spec, _ = read(workload=workload, **over)
        return float(estimate_memory(training_of(spec), columns_of([Plan(**plan)])).peak_bytes[0])

    sharded = {"dp": 64, "zero_stage": 3, "recompute": "full"}
    dense = {"model": {"preset": "llama3-8b", "seq_len": 8192}}
    deepspeed = {"kind": "deepspeed", "script": "train.py", "directory": "."}
    configs = [{"zero_optimization": {"reduce_bucket_size": size}} for size in (5e7, 1e9)]
    small, large = (peak({**deepspeed, "config": config}, sharded, **dense) for config in configs)
    assert large - small == pytest.approx(2 * (1e9 - 5e7))
    titan = [{"kind": "torchtitan", "arguments": words} for words in ([], ["--compile.enable"])]
    cast, fused = (peak(workload, sharded | {"micro_batch_size": 4}, **dense) for workload in titan)
    assert cast - fused > 8 * 4 * 8192 * 128256
    codes = ("fsdp", "fsdp-fused-loss", "torchtitan-compiled", "torchtitan-chunked")
    commands = [{**SCRIPT, "framework": code} for code in codes]
    whole, liger, compiled, chunked = (
        peak(command, sharded | {"micro_batch_size": 4}, **dense) for command in commands
    )
    assert whole - liger > 8 * 4 * 8192 * 128256
    assert compiled > chunked
    mixture = {"model": {"preset": "qwen3-30b-a3b", "seq_len": 8192}}
    again, kept = (
        peak(command, {"dp": 64, "zero_stage": 3, "recompute": "selective", "micro_batch_size": 4}, **mixture)
        for command in (commands[2], commands[0])
    )
    assert again < kept / 1.5
