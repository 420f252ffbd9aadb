"""Knobs in a spec: what is read, what is refused and where, and who may say what a job is told."""

from __future__ import annotations

from typing import Any

import pytest

from meshtune.runners.programs.workloads.torch import TorchWorkload
from meshtune.search_spaces.presets import knob_catalogs
from meshtune.tuner.campaign.spec import Acceptance, job_of
from meshtune.tuner.specs.document import InvalidSpec, commands_named, parse_yaml
from meshtune.tuner.specs.knobs import read_catalogs
from meshtune.tuner.specs.read import read_spec
from meshtune.tuner.store.rows import decode_spec, encode_spec

MINIMAL = """
model: gpt-micro
cluster: local-cpu
global_batch_size: 8
space: {micro_batch_size: [1, 2], recompute: [none, selective], zero_stage: [0, 1]}
workload: {kind: simulated, framework: trainer}
runner: simulated
"""
KNOBS = """
knobs:
  fp8: {values: [off, tensorwise, mxfp8], env: FP8, omit: off, numerics: changes}
  ac_budget: {values: [0.5, 0.8, 1.0], env: AC_BUDGET, when: recompute == selective}
  devices: {values: [2, 4]}
accept: numerics
"""


def document(more: str = "") -> dict[str, Any]:
    read = parse_yaml(MINIMAL + more)
    assert isinstance(read, dict)
    return read


def problems(more: str) -> dict[str, str]:
    with pytest.raises(InvalidSpec) as caught:
        read_spec(document(more), None)
    return {problem.path: problem.message for problem in caught.value.problems}


def test_knobs_become_a_part_of_the_spec_and_of_its_space() -> None:
    spec, space = read_spec(document(KNOBS), None)
    assert [knob.name for knob in spec.knobs] == ["fp8", "ac_budget", "devices"]
    assert spec.knobs[0].values == ("off", "tensorwise", "mxfp8")
    assert spec.accept == (Acceptance.NUMERICS,)
    assert space.plans > len(space)
    assert {plan.world_size for plan in space} == {2, 4}
    assert decode_spec(encode_spec(spec)) == spec


def test_off_is_a_word_and_true_is_a_truth_value() -> None:
    spec, _ = read_spec(document("knobs: {a: {values: [off, on, yes, true, 2, 0.5], env: A}}"), None)
    assert spec.knobs[0].values == ("off", "on", "yes", True, 2, 0.5)


def test_a_stored_campaign_can_be_read_as_a_spec_again() -> None:
    spec, _ = read_spec(document(KNOBS), None)
    stored = encode_spec(spec)
    again, _ = read_spec({**document(), "knobs": stored["knobs"], "accept": stored["accept"]}, None)
    assert again.knobs == spec.knobs


def test_a_job_gets_the_devices_of_its_plan(tmp_path: Any) -> None:
    spec, space = read_spec(document(KNOBS), None)
    small = next(plan for plan in space if plan.world_size == 2)
    job = job_of(spec, small, "a", tmp_path)
    assert job.nodes * job.devices_per_node == 2


def test_the_baseline_names_its_knobs_beside_its_axes() -> None:
    spec, _ = read_spec(document(KNOBS + "baseline: {tp: 1, fp8: mxfp8, devices: 2}"), None)
    assert spec.baseline is not None
    assert spec.baseline.knobs == {"fp8": "mxfp8", "devices": 2}
    assert spec.baseline.world_size == 2


def test_a_catalog_brings_its_knobs_and_a_spec_changes_them() -> None:
    catalog = knob_catalogs()["trainer"]
    more = "catalogs: [trainer.compile]\nknobs: {trainer_compile: {default: true}}"
    spec, _ = read_spec({**document(more), "workload": "torch", "runner": "local"}, None)
    (knob,) = spec.knobs
    assert knob.default is True
    assert knob.meaning == catalog["trainer_compile"]["meaning"]


def test_a_single_knob_of_a_catalog_brings_those_that_its_condition_names() -> None:
    spec, _ = read_spec(
        {**document("catalogs: [torchtitan.async_tp]"), "workload": "torchtitan", "runner": "local"}, None
    )
    assert [knob.name for knob in spec.knobs] == ["torchtitan_compile", "torchtitan_async_tp"]


@pytest.mark.parametrize("catalog", [name for name in knob_catalogs() if name.startswith("trainer")])
def test_every_catalog_of_the_trainer_is_taken_by_itself(catalog: str) -> None:
    spec, _ = read_spec({**document(f"catalogs: [{catalog}]"), "workload": "torch", "runner": "local"}, None)
    assert {knob.name for knob in spec.knobs} >= knob_catalogs()[catalog].keys()


TORCH: dict[str, Any] = {"workload": "torch", "runner": "external"}


@pytest.mark.parametrize(
    ("cluster", "catalogs", "options"),
    [
        ("local-cpu", ["trainer", "trainer_cpu"], {}),
        ("dgx-h100", ["trainer", "trainer_cuda"], {}),
        ("jean-zay-v100", ["trainer", "trainer_cuda"], {}),
        ("dgx-h100", ["trainer", "trainer_cuda"], {"compile": False, "dtype": "float16", "attention": "flash"}),
    ],
)
def test_the_defaults_of_the_trainers_knobs_are_what_the_workload_has(
    cluster: str, catalogs: list[str], options: dict[str, Any]
) -> None:
    asked = {**document(), **TORCH, "cluster": cluster, "catalogs": catalogs}
    spec, _ = read_spec({**asked, "workload": {"kind": "torch", **options}}, None)
    trainer = TorchWorkload(TorchWorkload.completed(options, spec.cluster))
    told = {knob.option: knob.default for knob in spec.knobs if knob.option}
    assert told == {name: trainer.option_values[name] for name in told}
    assert {"compile", "dtype"} <= told.keys()
    for name, value in options.items():
        assert told[name] == value


def test_a_knob_whose_values_the_workload_has_not_keeps_its_own_default() -> None:
    more = "knobs: {mine: {values: [4, 8], option: threads}, yours: {values: [0, 1], option: prefetch, default: 1}}"
    spec, _ = read_spec({**document(more), **TORCH}, None)
    assert [knob.default for knob in spec.knobs] == [4, 1]


def test_every_mistake_is_told_at_once_with_its_path() -> None:
    told = problems("""
knobs:
  fp8: {values: [off, tensorwise], env: FP8, omit: of}
  budget: {values: [0.5], env: A, wehn: tp > 1}
  a: {values: [1, 2], env: B, when: fp9 == 1}
  b: {values: [1, 2], env: B, when: recompute == selectve}
  c: {values: [1, 2], env: C, when: d == 1}
  d: {values: [1, 2], env: D, when: c == 1}
  tp: {values: [1, 2]}
  devices: {values: [3, 400]}
  e: 7
catalogs: [nope, trainer.nope]
accept: everything
""")
    assert told.keys() == {
        "knobs.fp8.omit",
        "knobs.budget.wehn",
        "knobs.a.when",
        "knobs.b.when",
        "knobs.b.env",
        "knobs.c.when",
        "knobs.tp",
        "knobs.e",
        "catalogs.0",
        "catalogs.1",
        "accept.0",
    }
    assert "fp9" in told["knobs.a.when"]
    assert "at character 14" in told["knobs.b.when"]
    assert "c -> d -> c" in told["knobs.c.when"]
    assert "'nope'" in told["catalogs.0"]


def test_sizes_beyond_the_cluster_are_refused() -> None:
    assert "400 devices are more than the cluster's 4" in problems("knobs: {devices: {values: [400]}}").popitem()[1]


@pytest.mark.parametrize(
    ("baseline", "message"),
    [
        ("{fp8: fp9}", "fp8(fp9) is not among off, tensorwise, mxfp8"),
        ("{ac_budget: 0.5}", "ac_budget(0.5) is inactive: it needs recompute == selective"),
        ("{knobs: {nope: 1}}", "nope is no knob of the spec"),
    ],
)
def test_a_baseline_with_wrong_knobs_is_refused(baseline: str, message: str) -> None:
    assert message in problems(KNOBS + f"baseline: {baseline}")["baseline"]


@pytest.mark.parametrize(
    ("more", "needing"),
    [
        ("catalogs: [nccl]", []),
        ("catalogs: [nccl]\nknobs: {nccl_algo: {default: auto}}", []),
        ("knobs: {devices: {values: [2, 4]}}", []),
        ("knobs: {a: {values: [1], option: compile}}", []),
        ("knobs: {a: {values: [1], env: LD_PRELOAD}}", ["knobs.a"]),
        ("knobs: {a: {values: [x], argument: '--a {value}'}}", ["knobs.a"]),
        ("catalogs: [nccl]\nknobs: {nccl_algo: {values: [/etc/passwd]}}", ["knobs.nccl_algo", "knobs"]),
        ("catalogs: [nccl]\nknobs: {nccl_algo: {words: {auto: x}}}", ["knobs.nccl_algo"]),
    ],
)
def test_only_what_a_catalog_has_is_told_to_a_job_without_the_scope_command(more: str, needing: list[str]) -> None:
    found = [problem.path for problem in commands_named(document(more))]
    assert (not found and not needing) or any(path in needing for path in found)


@pytest.mark.parametrize(
    ("sets", "values", "path", "words"),
    [
        ("rollout.shar", "[0.5]", "rollout.shar", "is not a known key; did you mean 'share'?"),
        ("rollout.tp.more", "[1]", "rollout.tp", "must be integer"),
        ("rollout", "[1]", "rollout", "must be a mapping of keys, not 1"),
        ("rollout.share", "[0.5, 1.5]", "rollout.share", "must be at most 1, not 1.5"),
        ("base_bits", "[16, 5]", "base_bits", "must be one of 0, 4, 8, 16, 32, not 5"),
        ("optimizer", "[lion, tiger]", "optimizer", "must be 'adamw'"),
    ],
)
def test_a_knob_sets_a_field_that_the_recipe_has_and_its_values_fit(
    sets: str, values: str, path: str, words: str
) -> None:
    told = problems(f"knobs: {{a: {{values: {values}, env: A, sets: {sets}}}}}")
    assert list(told) == [f"knobs.a.sets.{path}"]
    assert words in told[f"knobs.a.sets.{path}"]


@pytest.mark.parametrize(
    ("sets", "values"),
    [("fused_loss", "[false, true]"), ("base_bits", "[16, 4]"), ("rollout.behind", "[0, 1]"), ("adapter.rank", "[8]")],
)
def test_a_field_that_needs_another_one_may_be_set(sets: str, values: str) -> None:
    spec, _ = read_spec(document(f"knobs: {{a: {{values: {values}, env: A, sets: {sets}}}}}"), None)
    assert spec.knobs[0].sets == sets
    assert decode_spec(encode_spec(spec)) == spec


def test_catalogs_set_fields_that_the_recipe_has() -> None:
    assert read_catalogs()
