"""Reading specs: presets, defaults, and every mistake at once with its path and numbers. Nothing else escapes."""

from __future__ import annotations

import datetime
import math

import pytest

from meshtune.runners.registry import create_workload
from meshtune.runners.trainer.job import Measuring
from meshtune.search_spaces.plan import Plan, Schedule
from meshtune.tuner.campaign.objective import Objective
from meshtune.tuner.campaign.spec import Backend, Budget, TrialLimits
from meshtune.tuner.specs.document import InvalidSpec, parse_yaml
from meshtune.tuner.specs.read import read_spec
from meshtune.tuner.store.rows import decode_spec, encode_spec

MINIMAL = {"model": "gpt-micro", "cluster": "local-cpu", "global_batch_size": 8}
GPU = {
    "name": "node",
    "nodes": 1,
    "devices_per_node": 16,
    "device": {"name": "X", "kind": "cuda", "memory_bytes": 80_000_000_000, "peak_flops": {"bfloat16": 1e15}},
    "network_link": {"latency_s": 5e-6, "bandwidth_bytes_per_s": 5e10},
}
FULL = {
    "name": "full",
    "model": {"preset": "llama-micro", "layers": 8},
    "cluster": GPU,
    "workload": {"kind": "torch", "dtype": "bfloat16", "measuring": {"max_steps": 12}},
    "global_batch_size": 64,
    "space": {"tp": [1, 2], "zero_stage": [0, 1], "schedule": ["1f1b", "gpipe"], "tp_across_nodes": True},
    "baseline": {"tp": 2, "micro_batch_size": 2},
    "objective": "mfu",
    "search": {"kind": "deephyper", "n_initial": 5},
    "runner": {"kind": "local", "slots": 16},
    "budget": {"trials": 9, "device_hours": 1.5},
    "trial": {"time_limit_s": 60, "attempts": 2},
    "parallel": 2,
    "seed": 3,
}


def problems(home, document):
    """path -> message of every problem; a path with several keeps them all, one per line."""
    with pytest.raises(InvalidSpec) as caught:
        read_spec(document, home)
    found: dict[str, str] = {}
    for problem in caught.value.problems:
        found[problem.path] = "\n".join([*([found[problem.path]] if problem.path in found else []), problem.message])
    assert not home.root.exists()
    return found


def only_problem(home, path, **over):
    found = problems(home, {**MINIMAL, **over})
    assert list(found) == [path], found
    return found[path]


def test_a_spec_with_an_open_question_is_refused_with_the_question(home):
    asked = {"open_questions": ["baseline.zero_stage: line 3 names a file that is not there"]}
    told = only_problem(home, "open_questions.0", **asked)
    assert "line 3 names a file that is not there" in told
    assert "delete this line" in told
    assert "must be a list" in only_problem(home, "open_questions", open_questions="zero_stage")
    read_spec({**MINIMAL, "open_questions": []}, home)


def test_a_value_that_an_import_left_empty_is_missing_not_a_default(home):
    assert "not None" in only_problem(home, "baseline.zero_stage", baseline={"zero_stage": None})


# What is read


def test_three_lines_are_a_spec_and_the_rest_has_defaults(home):
    spec, space = read_spec(MINIMAL, home)
    assert spec.name == "campaign"
    assert (spec.model.name, spec.cluster.devices, spec.global_batch_size) == ("gpt-micro", 4, 8)
    assert spec.workload == Backend(kind="torch")
    assert spec.search == Backend(kind="physics")
    assert spec.runner == Backend(kind="local")
    assert (spec.budget, spec.trial) == (Budget(trials=20), TrialLimits(attempts=3))
    assert (spec.objective, spec.baseline, spec.parallel) == (Objective.TOKENS_PER_S_PER_DEVICE, None, 1)
    assert len(space) > 10
    assert not home.root.exists()


def test_a_preset_may_be_overridden_inside_nested_sections_too(home):
    over = {"cluster": {"preset": "dgx-h100", "nodes": 4, "device": {"memory_bytes": 10**11}}}
    spec, _ = read_spec({**MINIMAL, **over, "global_batch_size": 64}, None)
    assert (spec.cluster.nodes, spec.cluster.devices_per_node) == (4, 8)
    assert (spec.cluster.device.memory_bytes, spec.cluster.device.name) == (10**11, "H100-SXM-80GB")
    assert spec.cluster.device.peak_flops["bfloat16"] == 989.4e12


def test_every_key_can_be_given(home):
    spec, space = read_spec(FULL, home)
    assert (spec.model.layers, spec.model.kv_heads) == (8, 4)
    assert spec.cluster.network_link.bandwidth_bytes_per_s == 5e10
    assert spec.space.schedule == (Schedule.ONE_F_ONE_B, Schedule.GPIPE)
    assert spec.baseline == Plan(tp=2, dp=8, micro_batch_size=2, grad_accum_steps=4)
    assert spec.search == Backend(kind="deephyper", options={"n_initial": 5})
    assert spec.runner.options == {"slots": 16}
    assert (spec.parallel, spec.seed, spec.objective) == (2, 3, Objective.MFU)
    assert space.dimensions["tp"] == (1, 2)


def test_a_spec_that_was_stored_before_there_were_prices_is_read(home):
    spec, _ = read_spec(MINIMAL, home)
    stored = encode_spec(spec)
    del stored["cluster"]["device_hour_price"], stored["pareto"]
    assert decode_spec(stored) == spec


def test_the_devices_of_several_nodes_are_no_business_of_the_local_runner(home):
    over = {"cluster": {"preset": "dgx-h100", "nodes": 4}, "global_batch_size": 64}
    only_problem(home, "runner", **over)
    _, space = read_spec({**MINIMAL, **over}, None)
    assert space.context.cluster.devices == 32
    processes = {"cluster": {"preset": "local-cpu", "nodes": 2}, "global_batch_size": 64}
    assert read_spec({**MINIMAL, **processes}, home)[0].cluster.nodes == 2


def test_a_key_with_nothing_after_it_counts_as_left_out(home):
    text = "model: gpt-micro\ncluster: local-cpu\nglobal_batch_size: 8\nspace:\n  # tp: [1, 2]\nbaseline:\nbudget:\n"
    assert read_spec(parse_yaml(text), home)[0] == read_spec(MINIMAL, home)[0]


def test_a_free_global_batch_makes_accumulation_a_dimension(home):
    over = {"global_batch_size": "free", "space": {"grad_accum_steps": [2, 4]}}
    spec, space = read_spec({**MINIMAL, **over}, home)
    assert spec.global_batch_size is None
    assert space.dimensions["grad_accum_steps"] == (2, 4)


def test_a_baseline_may_lie_outside_of_the_bounds(home):
    spec, space = read_spec({**MINIMAL, "space": {"tp": [1]}, "baseline": {"tp": 4}}, home)
    assert spec.baseline == Plan(tp=4, dp=1, grad_accum_steps=8)
    assert spec.baseline not in space


# Every mistake at once


def test_mistakes_in_every_section_are_told_at_once_with_their_paths_and_numbers(home):
    found = problems(
        home,
        {
            "name": "",
            "modle": "x",
            "model": {"preset": "gpt-micro", "heads": 7, "hiden": 3},
            "cluster": {**GPU, "nodes": 0, "device": {**GPU["device"], "kind": "tpu", "memory_bytes": "lots"}},
            "workload": {"kind": "torch", "dtype": "int4", "measuring": {"precision": 2}},
            "global_batch_size": 0,
            "space": {"zero_stage": [4], "tp": [1, 1]},
            "baseline": {"tp": 0, "warp": 1},
            "objective": "fastest",
            "search": {"kind": "randm"},
            "runner": {"kind": "slurm", "partitions": "h100", "cpus_per_device": 0, "exclude": ["a b"]},
            "budget": {"trials": -3, "device_hours": 0},
            "trial": {"time_limit_s": 0, "attempts": 0},
            "parallel": 0,
            "seed": "x",
        },
    )
    assert set(found) >= {
        *("modle", "model.hiden", "cluster.device.kind", "cluster.device.memory_bytes", "workload.dtype"),
        *("workload.measuring.precision", "global_batch_size", "space.zero_stage", "space.tp", "baseline.warp"),
        *("objective", "search.kind", "budget.trials", "budget.device_hours"),
        *("runner.partitions", "runner.cpus_per_device", "runner.exclude"),
        *("trial.time_limit_s", "trial.attempts", "seed"),
    }
    assert found["budget.trials"] == "must be at least 1, not -3"
    assert found["search.kind"] == "no search is called 'randm'; did you mean 'random'?"
    assert found["modle"] == "is not a known key; did you mean 'model'?"


def test_a_spec_that_is_only_looked_at_has_its_runners_options_checked_and_its_baseline_beside_other_mistakes():
    over = {"runner": {"kind": "slurm", "partitions": "h100", "cpus_per_device": 0, "gres": "gpu h100"}}
    over |= {"workload": {"kind": "torch", "dtypes": "float32"}, "baseline": {"tp": 3}}
    with pytest.raises(InvalidSpec) as caught:
        read_spec({**MINIMAL, **over}, None)
    told = [str(problem) for problem in caught.value.problems]
    assert told[:4] == [
        "workload.dtypes: is not a known key; did you mean 'dtype'?",
        "runner.partitions: is not a known key; did you mean 'partition'?",
        "runner.cpus_per_device: must be at least 1, not 0",
        "runner.gres: must be as 'gpu' or 'gpu:h100', not 'gpu h100'",
    ]
    assert "baseline: tp(3) does not divide heads(8)" in told[4:]


@pytest.mark.parametrize("kind", ["recompute", "zero_stage", "ep", "schedule"])
def test_a_baseline_is_not_blamed_for_what_another_training_code_can_do(kind):
    given = {"recompute": "full", "zero_stage": 3, "ep": 1, "schedule": "gpipe"}[kind]
    document = {**MINIMAL, "workload": {"kind": "command"}, "baseline": {"pp": 2, kind: given}}
    with pytest.raises(InvalidSpec) as caught:
        read_spec(document, None)
    assert [problem.path for problem in caught.value.problems] == ["workload.command"]


@pytest.mark.parametrize(
    ("over", "path", "message"),
    [
        ({"model": "gpt-mikro"}, "model.preset", "no model preset is called 'gpt-mikro'; did you mean 'gpt-micro'?"),
        ({"cluster": {"preset": "zzz"}}, "cluster.preset", "known: a100-400g"),
        ({"model": {"preset": ["gpt-micro"]}}, "model.preset", "no model preset is called ['gpt-micro']"),
        ({"model": 7}, "model", "not 7"),
        ({"model": "zzz"}, "model.preset", "deepseek-7b, deepseek-coder-1.3b, "),
        (
            {"training": {"frozen_layers": 40}, "space": {"recompute": ["none"]}},
            "training.frozen_layers",
            "40 is more than model.layers: ",
        ),
        ({"training": {"mean_tokens": 9999}}, "training.mean_tokens", "9999 is more than model.seq_len"),
        (
            {"training": {"adapter": {"rank": 9999}, "base_bits": 32}},
            "training.adapter.rank",
            "9999 is more than model.hidden: 256",
        ),
        ({"search": ["random"]}, "search", "must be a name or a mapping with `kind`, not ['random']"),
        ({"workload": "tourch"}, "workload.kind", "did you mean 'torch'?"),
        ({"runner": {"kind": "local", "slot": 4}}, "runner.slot", "did you mean 'slots'?"),
        ({"workload": {"measuring": {"max_step": 3}}}, "workload.measuring.max_step", "did you mean 'max_steps'?"),
        ({"search": {"kind": "random", "kappa": 1}}, "search", "unknown option 'kappa'"),
        ({"model": {"preset": "gpt-micro", "heads": 7}}, "model.heads", "heads(7) does not divide hidden(256)"),
        ({"model": {"preset": "gpt-micro", "nested": {"a": 1}}}, "model.nested", "is not a known key"),
        ({"cluster": {"preset": "local-cpu", "device": {"memori_bytes": 1}}}, "cluster.device.memori_bytes", "did you"),
        ({"global_batch_size": 7, "space": {"pp": [1], "tp": [1]}}, "space", "dp(4) = 4, but the global batch is 7"),
        ({"global_batch_size": "fre"}, "global_batch_size", "must be at least 1, or 'free', not 'fre'"),
        ({"global_batch_size": 2**40}, "global_batch_size", "must be at most 2147483647, not 1099511627776"),
        ({"cluster": {"preset": "local-cpu", "devices_per_node": 7}}, "space", "dp(7) = 7, but the global batch is 8"),
        ({"space": {"tp": [3]}}, "space", "the first, tp3 pp1 dp1 mbs1 ga8 zero0: tp(3) * pp(1) * cp(1) * dp(1) = 3"),
        (
            {"space": {"micro_batch_size": [16]}},
            "space",
            "no legal plan among 36 combinations: global-batch rejects 36",
        ),
        ({"space": {"tp": list(range(1, 500)), "pp": list(range(1, 500)), "ep": [*range(1, 99)]}}, "space", "tp(499)"),
        ({"budget": {}}, "budget", "set at least one limit of trials, wall_time_s, device_hours"),
        ({"baseline": [1]}, "baseline", "must be a mapping of keys, not [1]"),
        ({"baseline": {"tpp": 2}}, "baseline.tpp", "is not a known key; did you mean 'tp'?"),
        ({"baseline": {"micro_batch_size": 8}}, "baseline", "dp(4) = 32, but the global batch is 8"),
        ({"name": "x" * 101}, "name", "must have 1 to 100 characters, not 101"),
        ({"seed": -1}, "seed", "must be at least 0, not -1"),
        ({"objective": "step_time", "global_batch_size": "free"}, "objective", "would choose the smallest batch"),
        ({"objective": "costs"}, "objective", "'cost'"),
        ({"pareto": "both"}, "pareto", "'both'"),
        (
            {"cluster": {"preset": "local-cpu", "device_hour_price": 0}},
            "cluster.device_hour_price",
            "must be positive, not 0.0",
        ),
    ],
)
def test_a_mistake_is_told_with_its_path_and_numbers(home, over, path, message):
    assert message in only_problem(home, path, **over)


@pytest.mark.parametrize("name", sorted(MINIMAL))
def test_what_has_no_default_is_missed(home, name):
    found = problems(home, {key: value for key, value in MINIMAL.items() if key != name})
    assert list(found) == [name]
    assert "is missing" in found[name]


@pytest.mark.parametrize("document", [None, [], "model: x", 3, True])
def test_what_is_no_mapping_is_no_spec(home, document):
    assert "a spec is a mapping of keys" in problems(home, document)[""]


# What is not plain


CYCLE: dict[str, object] = {}
CYCLE["again"] = CYCLE


@pytest.mark.parametrize(
    ("over", "path", "message"),
    [
        ({"trial": {"time_limit_s": 1e308}}, "trial.time_limit_s", "must be at most 1000000000, not 1e+308"),
        ({"trial": {"queue_limit_s": 0}}, "trial.queue_limit_s", "must be positive, not 0.0"),
        ({"trial": {"time_limit_s": math.nan}}, "trial.time_limit_s", "must be a finite number, not nan"),
        ({"runner": {"idle_s": math.inf}}, "runner.idle_s", "must be a finite number"),
        ({"search": {"kind": "random", "a": [1, datetime.date(2024, 1, 2)]}}, "search.a.1", "the date 2024-01-02"),
        ({"workload": {"kind": "torch", "x": {1, 2}}}, "workload.x", "the set"),
        ({"workload": {1: 2}}, "workload", "a key must be plain text, not 1"),
        ({"seed": 2**70}, "seed", "must be at most 2^53, not a number of 71 bits"),
        ({"name": "\ud800"}, "name", "cannot be stored"),
        ({"name": "a\0b"}, "name", "cannot be stored"),
        ({"global_batch_size": b"8"}, "global_batch_size", "the bytes"),
        ({"baseline": CYCLE}, "baseline" + ".again" * 20, "nested deeper than 20 levels"),
        ({"space": {"tp": [1] * 20_000}}, "space.tp.9994", "a spec holds at most 10000 values"),
    ],
)
def test_what_cannot_be_stored_as_json_is_refused_with_its_path(home, over, path, message):
    assert message in only_problem(home, path, **over)


# YAML


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ("model: x\nmodel: y", "line 2, column 1", "has the key 'model' twice"),
        ("budget:\n  trials: 1\n  trials: 2", "line 3, column 3", "has the key 'trials' twice"),
        ("model: [1, 2", "line 2, column 1", "is not YAML: did not find expected"),
        ("a: b: c", "line 1, column 5", "is not YAML: mapping values are not allowed"),
        ("model: *nowhere", "line 1, column 8", "is not YAML: found undefined alias"),
        (
            "x: !!python/object/apply:os.system [ls]",
            "line 1, column 4",
            "is not YAML: could not determine a constructor",
        ),
        ("when: 2024-99-99", "", "is not YAML: month must be in 1..12"),
        ("x: !!bool perhaps", "", "is not YAML"),
        ("x: !!timestamp soon", "", "is not YAML"),
        ("n: " + "9" * 5000, "line 1, column 4", "holds a number of 5,000 characters"),
        ("[" * 3000, "line 1, column 65", "is nested deeper than 64 levels"),
        ("\x00\x01", "", "is not YAML"),
        ("[1]: 2\n? {a: b}\n: 3", "line 1, column 1", "is not YAML: found unhashable key"),
    ],
)
def test_text_that_is_not_yaml_is_refused_with_the_place(text, path, message):
    with pytest.raises(InvalidSpec) as caught:
        parse_yaml(text)
    (problem,) = caught.value.problems
    assert problem.path == path
    assert problem.message.startswith(message)
    assert "\n" not in problem.message


def test_yaml_may_share_parts_by_anchors_and_merge_keys(home):
    text = "model: &m {preset: gpt-micro}\ncluster: local-cpu\nglobal_batch_size: 8\nspace: {<<: {tp: [1]}, pp: [1]}\n"
    spec, _ = read_spec(parse_yaml(text), home)
    assert (spec.space.tp, spec.space.pp) == ((1,), (1,))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"router": "skewed"}, "skewed needs the load of the busiest expert over the mean, at least 1"),
        ({"imbalance": 2.0}, "is of the router skewed alone, not of learned"),
        ({"router": "skewed", "imbalance": 5.0}, "imbalance(5) is above experts(8) / top_k(2) = 4, where"),
    ],
)
def test_an_imbalance_that_no_router_can_have_is_refused_with_the_numbers(options, message):
    model = {"preset": "llama-micro", "experts": 8, "top_k": 2}
    with pytest.raises(InvalidSpec) as caught:
        read_spec({**MINIMAL, "model": model, "workload": {"kind": "torch", **options}}, None)
    (problem,) = caught.value.problems
    assert problem.path == "workload.imbalance"
    assert problem.message.startswith(message)


@pytest.mark.parametrize(
    ("cluster", "workload", "compiled"),
    [
        ("dgx-h100", "torch", True),
        ("dgx-h100", {"kind": "torch", "compile": False}, False),
        ("local-cpu", "torch", False),
        ("local-cpu", {"kind": "torch", "compile": True}, True),
    ],
)
def test_layers_are_compiled_on_cuda_unless_the_spec_says_otherwise(cluster, workload, compiled):
    spec, _ = read_spec({**MINIMAL, "cluster": cluster, "workload": workload, "global_batch_size": "free"}, None)
    assert create_workload(spec.workload.kind, spec.workload.options).framework.name.endswith(", compiled") == compiled


@pytest.mark.parametrize(
    ("cluster", "told", "measured"),
    [
        ("dgx-h100", None, (3.0, 3)),
        ("dgx-h100", {"max_seconds": 20}, (3.0, 3)),
        ("dgx-h100", {"max_steps": 8}, (0.0, 3)),
        ("dgx-h100", {"min_seconds": 1.5, "max_steps": 8, "profile_steps": 0}, (1.5, 0)),
        ("local-cpu", None, (0.0, 5)),
    ],
)
def test_seconds_are_timed_on_accelerators_unless_steps_are_counted_out(cluster, told, measured):
    workload = {"kind": "torch", **({} if told is None else {"measuring": told})}
    spec, _ = read_spec({**MINIMAL, "cluster": cluster, "workload": workload, "global_batch_size": "free"}, None)
    measuring = spec.workload.options.get("measuring", {})
    whole = Measuring(**measuring)
    assert (whole.min_seconds, whole.profile_steps) == measured


@pytest.mark.parametrize(
    ("cluster", "workload", "dtype"),
    [
        ("dgx-h100", "torch", "bfloat16"),
        ("frontier", {"kind": "torch", "router": "balanced"}, "bfloat16"),
        ("aurora", "torch", "bfloat16"),
        ("dgx-h100", {"kind": "torch", "dtype": "float32"}, "float32"),
        ("local-cpu", "torch", "float32"),
        ({**GPU, "device": {**GPU["device"], "peak_flops": {"float16": 1e14}}}, "torch", "float32"),
        (
            {**GPU, "device": {**GPU["device"], "peak_flops": {}, "sustained_flops": {"bfloat16": 1e14}}},
            "torch",
            "bfloat16",
        ),
    ],
)
def test_the_number_format_is_the_devices_unless_the_spec_says_another(cluster, workload, dtype):
    spec, _ = read_spec({**MINIMAL, "cluster": cluster, "workload": workload, "global_batch_size": "free"}, None)
    assert create_workload(spec.workload.kind, spec.workload.options).dtype == dtype
    assert decode_spec(encode_spec(spec)) == spec


LORA = {"adapter": {"rank": 4, "dropout": 0.1}, "base_bits": 4, "optimizer": "adamw_8bit"}


def test_the_built_in_trainer_refuses_of_a_recipe_what_it_does_not_do_and_others_take_it(home):
    found = problems(home, {**MINIMAL, "training": LORA})
    assert set(found) == {"training.base_bits", "training.optimizer", "training.adapter.dropout"}
    assert "give 32" in found["training.base_bits"]
    spec, _ = read_spec({**MINIMAL, "training": {"adapter": {"rank": 4}, "base_bits": 32}}, home)
    assert spec.training.adapter.rank == 4
    simulated = {"workload": {"kind": "simulated"}, "runner": {"kind": "simulated"}}
    spec, _ = read_spec({**MINIMAL, **simulated, "training": LORA}, home)
    assert spec.training.base_bits == 4
