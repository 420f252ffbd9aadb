"""Every constraint rejects a plan that breaks it, alone where that can be, and names its numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshtune.search_spaces.columns import Capabilities
from meshtune.search_spaces.constraints import CONSTRAINTS
from meshtune.search_spaces.layer_shapes import Shape
from meshtune.search_spaces.plan import ContextParallel, Plan, Recompute
from meshtune.search_spaces.space import Bounds, Space

PLAIN = Capabilities()
UNFOLDED = Capabilities(experts=True, expert_parallel=True, contexts=frozenset(ContextParallel))
MIXED = replace(Capabilities(experts=True), shapes=frozenset(Shape))
# constraint, what the setting changes, the plan (dp and accumulation completed), the message's numbers, and what else
# breaks with it, where anything does.
BROKEN = [
    ("devices", {}, {"tp": 2, "dp": 2}, "tp(2) * pp(1) * cp(1) * dp(2) = 4, but the cluster has 8 devices"),
    (
        "global-batch",
        {},
        {"micro_batch_size": 2, "grad_accum_steps": 3},
        "micro_batch_size(2) * grad_accum_steps(3) * dp(8) = 48, but the global batch is 32",
    ),
    ("tp-in-node", {"nodes": 2}, {"tp": 16}, "tp(16) does not divide the 8 devices of a node", "tp-heads"),
    ("tp-in-node", {"nodes": 2, "heads": 16}, {"tp": 16}, "tp(16) does not divide the 8 devices of a node"),
    ("tp-heads", {"heads": 4, "kv_heads": 4}, {"tp": 8}, "tp(8) does not divide heads(4)"),
    ("tp-kv-heads", {"kv_heads": 2, "able": PLAIN}, {"tp": 4}, "tp(4) does not divide kv_heads(2)"),
    (
        "tp-kv-heads",
        {"hidden": 768, "heads": 24, "kv_heads": 12},
        {"tp": 8},
        "tp(8) does not divide kv_heads(12), nor the other way round",
    ),
    ("tp-ffn", {"ffn": 2052}, {"tp": 8}, "tp(8) does not divide ffn(2052)"),
    ("tp-ffn", {"ffn": 2052, "experts": 2, "top_k": 1}, {"etp": 8}, "etp(8) does not divide ffn(2052)"),
    ("etp-ep", {"experts": 16, "top_k": 1}, {"ep": 8, "etp": 2}, "etp(2) * ep(8) = 16 does not divide"),
    ("etp-experts", {}, {"tp": 2, "etp": 1}, "etp(1), but the model has no experts"),
    (
        "etp-sequence",
        {"experts": 2, "top_k": 1},
        {"tp": 2, "etp": 1, "sequence_parallel": False},
        "etp(1) with sequence_parallel(False)",
    ),
    ("etp-differs", {"experts": 2, "top_k": 1}, {"tp": 2, "etp": 2}, "etp(2) with tp(2) is the same setting as 0"),
    (
        "trainer-etp",
        {"experts": 2, "top_k": 1, "able": MIXED},
        {"tp": 2, "etp": 1},
        "etp(1): the trainer's experts have the tensor parallel degree of all else",
    ),
    ("zero-group", {}, {"zero_stage": 1, "zero_group": 3}, "zero_group(3) does not divide dp(8) * cp(1) = 8"),
    (
        "zero-group-experts",
        {"experts": 8, "top_k": 1},
        {"zero_stage": 1, "zero_group": 4, "ep": 8},
        "dp(8) * cp(1) / 4 groups, which do not divide the replicas of experts",
    ),
    (
        "trainer-zero-group",
        {},
        {"zero_stage": 0, "zero_group": 2},
        "zero_group(2) with zero_stage(0): the trainer shards over groups at stages 1, 2, 3",
    ),
    (
        "group-needs-several",
        {},
        {"zero_stage": 1, "zero_group": 8},
        "zero_group(8) with dp(8) * cp(1) = 8 is the same setting as zero_group(0)",
    ),
    ("group-needs-several", {}, {"zero_stage": 1, "zero_group": 1}, "is the same setting as zero_stage(0)"),
    ("tp-vocab", {"vocab": 1001}, {"tp": 2}, "tp(2) does not divide vocab(1001)"),
    (
        "tp-shared-ffn",
        {"experts": 2, "top_k": 1, "shared_ffn": 130, "able": MIXED},
        {"tp": 4},
        "tp(4) does not divide shared_ffn(130)",
    ),
    (
        "tp-dense-ffn",
        {"experts": 2, "top_k": 1, "dense_layers": 1, "dense_ffn": 130, "able": MIXED},
        {"tp": 4},
        "tp(4) does not divide dense_ffn(130)",
    ),
    (
        "trainer-shapes",
        {"head_dim": 96, "window": 64},
        {},
        "the model has head_dim, window; of these the trainer runs none",
    ),
    ("sequence", {"seq_len": 258}, {"cp": 2, "tp": 2}, "cp(2) * tp(2) = 4 does not divide seq_len(258)"),
    (
        "pp-layers",
        {},
        {"pp": 4, "last_stage_less_layers": 2},
        "does not divide layers(8) + first_stage_less_layers(0) + last_stage_less_layers(2) = 10",
    ),
    (
        "pp-layers",
        {},
        {"pp": 4, "first_stage_less_layers": 4},
        "layers(8) + first_stage_less_layers(4) + last_stage_less_layers(0) = 12 in 4 chunks are 3 for each",
    ),
    (
        "trainer-stages",
        {"able": PLAIN},
        {"pp": 2, "last_stage_less_layers": 2},
        "first_stage_less_layers(0), last_stage_less_layers(2): the trainer runs 0 and 0",
    ),
    (
        "split-needs-pp",
        {},
        {"last_stage_less_layers": 1},
        "first_stage_less_layers(0), last_stage_less_layers(1) with pp(1) is the same setting as 0 and 0",
    ),
    (
        "two-chunks",
        {},
        {"pp": 2, "first_stage_less_layers": 1, "last_stage_less_layers": 1},
        "first_stage_less_layers(1), last_stage_less_layers(1) with pp(2) is the same setting as both less the smaller",
    ),
    ("pp-layers", {}, {"pp": 4, "vpp": 4, "schedule": "interleaved"}, "pp(4) * vpp(4) = 16 does not divide layers(8)"),
    (
        "pp-micro-batches",
        {},
        {"pp": 2, "micro_batch_size": 8},
        "grad_accum_steps(1) micro-batches are fewer than pp(2) stages",
    ),
    ("ep-dp", {"experts": 8, "top_k": 1, "able": UNFOLDED}, {"cp": 2, "ep": 8}, "ep(8) does not divide dp(4)"),
    ("ep-experts", {"experts": 6, "top_k": 1}, {"ep": 4}, "ep(4) does not divide experts(6)"),
    ("ep-experts", {}, {"ep": 2}, "ep(2), but the model has no experts"),
    (
        "zero",
        {"able": PLAIN},
        {"pp": 2, "zero_stage": 2},
        "zero_stage(2) with pp(2): the trainer runs stages 0, 1 there",
    ),
    (
        "zero",
        {"able": Capabilities(zero_stages=frozenset())},
        {},
        "zero_stage(0) with pp(1): the trainer runs stages none there",
    ),
    (
        "trainer-cp",
        {"able": PLAIN},
        {"cp": 2},
        "cp(2) with context(all_gather): the trainer supports no context parallelism",
    ),
    (
        "trainer-recompute-interval",
        {"able": Capabilities(recompute=frozenset({Recompute.FULL}))},
        {"recompute": "full", "recompute_interval": 2},
        "recompute_interval(2): the trainer recomputes every layer or none",
    ),
    (
        "trainer-sequence-parallel",
        {"able": PLAIN},
        {"tp": 2, "sequence_parallel": False},
        "sequence_parallel(False): the trainer always splits the sequence over tp",
    ),
    ("zbv-vpp", {}, {"pp": 2, "vpp": 4, "schedule": "zbv"}, "vpp(4)"),
    (
        "interleaved-rounds",
        {"batch": 40},
        {"pp": 2, "vpp": 2, "schedule": "interleaved", "micro_batch_size": 2},
        "grad_accum_steps(5) is no multiple of its 2 rounds of at least pp(2)",
    ),
    (
        "split-backward-zero3",
        {},
        {"pp": 2, "vpp": 2, "schedule": "zbv", "zero_stage": 3},
        "zero_stage(3) with schedule(zbv)",
    ),
    (
        "split-backward-selective",
        {},
        {"pp": 2, "vpp": 2, "schedule": "zbv", "recompute": "selective"},
        "recompute(selective) with schedule(zbv)",
    ),
    (
        "ulysses-heads",
        {"hidden": 384, "heads": 6, "kv_heads": 6},
        {"cp": 4, "context": "ulysses"},
        "tp(1) * cp(4) = 4 does not divide heads(6)",
        "ulysses-kv-heads",
    ),
    (
        "ulysses-kv-heads",
        {"kv_heads": 2},
        {"cp": 4, "context": "ulysses"},
        "tp(1) * cp(4) = 4 does not divide kv_heads(2)",
    ),
    ("ring-sequence", {"seq_len": 258}, {"cp": 2, "context": "ring"}, "2 * cp(2) does not divide seq_len(258)"),
    (
        "recompute-interval",
        {},
        {"pp": 4, "recompute": "full", "recompute_interval": 3},
        "recompute_interval(3) is above the layers of a chunk, layers(8) / (pp(4) * vpp(1))",
    ),
    (
        "sequence-parallel-needs-tp",
        {},
        {"sequence_parallel": False},
        "sequence_parallel(False) with tp(1) is the same setting as true",
    ),
    (
        "interval-needs-recompute",
        {},
        {"recompute_interval": 2},
        "recompute_interval(2) with recompute(none) is the same setting as 1",
    ),
    ("context-needs-cp", {}, {"context": "ulysses"}, "context(ulysses) with cp(1) is the same setting as all_gather"),
    (
        "trainer-ep",
        {"able": Capabilities(experts=True), "experts": 2, "top_k": 1},
        {"ep": 2},
        "ep(2): the trainer has no expert parallelism",
    ),
    ("trainer-experts", {"able": PLAIN, "experts": 2, "top_k": 1}, {}, "experts(2): the trainer runs dense"),
    ("trainer-recompute", {"able": PLAIN}, {"recompute": "full"}, "recompute(full): the trainer supports none"),
    ("trainer-schedule", {"able": PLAIN}, {"pp": 2, "schedule": "gpipe"}, "schedule(gpipe): the trainer supports 1f1b"),
    ("vpp-schedule", {}, {"pp": 2, "vpp": 2}, "vpp(2) does not go with schedule(1f1b)"),
    ("vpp-schedule", {}, {"pp": 2, "schedule": "zero_bubble"}, "vpp(1) does not go with schedule(zero_bubble)"),
    ("schedule-needs-pp", {}, {"schedule": "gpipe"}, "schedule(gpipe) with pp(1) is the same setting as 1f1b"),
    (
        "zero-needs-dp",
        {},
        {"tp": 8, "zero_stage": 1},
        "zero_stage(1) with dp(1) * cp(1) = 1 is the same setting as stage 0",
    ),
]


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case[0])
def test_each_constraint_rejects_a_plan_that_breaks_it(case, make_setting):
    name, setting, fields, message, *others = case
    space = Space(Bounds(), make_setting(**setting))
    broken = {
        violation.constraint: violation for violation in space.explain(space.complete(**fields), ignore_bounds=True)
    }
    assert set(broken) == {name, *others}
    assert message in broken[name].message
    (constraint,) = [constraint for constraint in CONSTRAINTS if constraint.name == name]
    assert str(broken[name]) == f"{broken[name].message} ({name}: {constraint.reason})"


def test_no_constraint_goes_untested():
    names = [constraint.name for constraint in CONSTRAINTS]
    assert len(set(names)) == len(names)
    assert {entry[0] for entry in BROKEN} == set(names)


def test_a_plan_that_breaks_many_rules_hears_of_each(make_setting):
    space = Space(Bounds(), make_setting(able=PLAIN))
    plan = Plan(tp=3, pp=3, cp=2, ep=2, vpp=2, zero_stage=3, recompute="full", schedule="gpipe")
    assert {violation.constraint for violation in space.explain(plan, ignore_bounds=True)} == {
        *("devices", "global-batch", "tp-in-node", "tp-heads", "tp-kv-heads", "tp-ffn", "tp-vocab", "sequence"),
        *("pp-layers", "pp-micro-batches", "ep-dp", "ep-experts", "zero", "trainer-cp", "trainer-ep"),
        *("trainer-recompute", "trainer-schedule", "vpp-schedule"),
    }


def test_a_group_that_does_not_divide_the_ranks_is_told_once(make_setting):
    space = Space(Bounds(), make_setting(experts=8, top_k=1))
    broken = space.explain(
        space.complete(dp=8, ep=8, micro_batch_size=1, zero_stage=1, zero_group=3), ignore_bounds=True
    )
    assert [one.constraint for one in broken] == ["zero-group"]
