"""Batch sizes and devices: enough of them give the rest, and contradictions are asked with both sources."""

from __future__ import annotations

import re
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshtune.runners.programs.batch import solve
from meshtune.runners.programs.reading import Reading

SMALL = st.integers(1, 6)
GROUP = ("tp", "pp", "cp")


def solved(fields: dict[str, int], unsaid: dict[str, int] | None = None) -> Reading:
    reading = Reading(given={}, fields=dict(fields), said={name: f"{name} in the script" for name in fields})
    solve(reading, unsaid or {})
    return reading


@given(st.tuples(*[SMALL] * 7))
def test_any_one_number_of_a_line_follows_from_the_others(sizes):
    tp, pp, cp, dp, nodes, micro, steps = sizes
    per_node = tp * pp * cp * dp
    whole = {
        **dict(zip(GROUP, (tp, pp, cp), strict=True)),
        "nodes": 1 if nodes > 3 else nodes,
        "micro_batch_size": micro,
        "grad_accum_steps": steps,
    }
    replicas = dp * whole["nodes"]
    whole |= {"devices_per_node": per_node, "dp": replicas, "global_batch_size": micro * steps * replicas}
    for left_out in ("dp", "grad_accum_steps", "micro_batch_size", "global_batch_size", "devices_per_node", "tp"):
        known = {name: number for name, number in whole.items() if name != left_out}
        reading = solved(known)
        assert reading.fields[left_out] == whole[left_out], left_out
        assert reading.questions == []


MESH = {"tp": 2, "pp": 1, "cp": 2, "nodes": 2, "devices_per_node": 8, "zero_stage": 3}


@pytest.mark.parametrize(
    ("said", "group"),
    [
        ({"zero_groups": 2}, 4),
        ({"zero_shards": 2}, 4),
        ({"zero_ranks": 2}, 2),
        ({"zero_groups": 2, "zero_shards": 2}, 4),
        ({"zero_groups": 1}, None),
        ({"zero_shards": 4}, None),
        ({"zero_nodes": 1, "tp": 1}, 8),
        ({"zero_nodes": 1, "tp": 1, "nodes": 1}, None),
        ({"zero_groups": 2, "zero_stage": 0}, None),
    ],
)
def test_the_group_that_zero_shards_over_follows_from_what_programs_say(said, group):
    reading = solved(MESH | said)
    assert (reading.fields.get("zero_group"), reading.questions) == (group, [])
    assert not any(name.startswith("zero_") for name in reading.fields.keys() - {"zero_stage", "zero_group"})


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"zero_groups": 3}, "zero_groups in the script: .* they do not share out dp \\* cp = 8 evenly"),
        ({"zero_groups": 8}, "one of one rank shards nothing"),
        ({"zero_ranks": 16}, "they do not share out"),
        ({"zero_groups": 2, "zero_shards": 1}, "zero_groups in the script, zero_shards in the script: .* evenly"),
        ({"zero_groups": 2, "nodes": None}, "dp is not known here"),
    ],
)
def test_a_group_that_does_not_follow_is_asked(said, words):
    reading = solved({name: value for name, value in (MESH | said).items() if value})
    (question,) = reading.questions
    assert question.path == "baseline.zero_group"
    assert re.search(words, question.text)
    assert reading.fields["zero_group"] is None


@pytest.mark.parametrize(("said", "stage"), [({"expert_tp": 1, "ep": 4}, 1), ({"expert_tp": 1, "ep": 8}, 0), ({}, 0)])
def test_over_one_rank_the_first_stage_stays_where_ranks_share_experts(said, stage):
    one = {"tp": 8, "pp": 1, "cp": 1, "nodes": 1, "devices_per_node": 8, "zero_stage": 1, "model.experts": 8}
    assert solved(one | said).fields["zero_stage"] == stage


@pytest.mark.parametrize(("devices", "kept"), [(1, None), (8, 8)])
def test_a_group_of_a_node_s_devices_stays_so_wherever_one_node_starts(devices, kept):
    fields = {"tp": 1, "pp": 1, "nodes": 1, "devices_per_node": devices, "zero_stage": 3, "zero_nodes": 1}
    reading = solved(fields)
    assert (reading.kept.get("zero_group"), reading.questions) == (kept, [])
    assert any("write workload.fixed.zero_group" in note for note in reading.notes) is (kept is None)


@pytest.mark.parametrize(
    ("said", "etp"),
    [
        ({"expert_tp": 1, "ep": 4}, 1),
        ({"expert_tp": 1, "model.experts": 8}, 1),
        ({"expert_tp": 2, "ep": 4}, None),
        ({"expert_tp": 1}, None),
    ],
)
def test_experts_have_a_degree_where_it_is_another_than_that_of_all_else(said, etp):
    assert solved(MESH | said).fields.get("etp") == etp


def test_two_numbers_of_a_line_that_are_missing_stay_open():
    reading = solved({"tp": 2, "pp": 1, "cp": 1, "micro_batch_size": 2, "grad_accum_steps": 4})
    assert not {"dp", "global_batch_size", "nodes"} & reading.fields.keys()


def test_what_nobody_says_is_the_program_s_default_only_where_it_does_not_follow():
    fields = {"tp": 1, "pp": 1, "cp": 1, "nodes": 1, "devices_per_node": 8, "micro_batch_size": 2}
    assert solved(fields, {"grad_accum_steps": 1}).fields["global_batch_size"] == 16
    assert solved({**fields, "global_batch_size": 64}, {"grad_accum_steps": 1}).fields["grad_accum_steps"] == 4


@pytest.mark.parametrize(
    ("changed", "path", "words"),
    [
        ({"tp": 3}, "cluster.nodes", ["tp(3) does not divide devices(16)", "tp in the script"]),
        (
            {"global_batch_size": 33},
            "global_batch_size",
            ["micro_batch_size(2) * dp(8)", "33", "batch_size in the script"],
        ),
        ({"global_batch_size": 32, "grad_accum_steps": 4}, "global_batch_size", ["is not global_batch_size(32)"]),
    ],
)
def test_a_contradiction_is_asked_with_both_sources_and_nothing_is_filled_in(changed, path, words):
    fields = {"tp": 2, "pp": 1, "cp": 1, "nodes": 2, "devices_per_node": 8, "micro_batch_size": 2, **changed}
    reading = solved(fields)
    [question] = reading.questions
    assert question.path == path
    assert all(word in question.text for word in words), question.text
    assert {name: reading.fields[name] for name in fields} == fields


def test_nothing_is_sharded_over_one_rank():
    fields = {"tp": 4, "pp": 1, "cp": 1, "nodes": 1, "devices_per_node": 4, "zero_stage": 3}
    alone = solved(fields)
    assert alone.fields["zero_stage"] == 0
    assert ["zero_stage in the script over one data-parallel rank" in note for note in alone.notes] == [True]
    assert solved({**fields, "tp": 2, "cp": 2}).fields["zero_stage"] == 3


def test_the_order_in_which_numbers_are_said_changes_nothing():
    whole = {"tp": 2, "pp": 2, "cp": 1, "dp": 4, "nodes": 2, "devices_per_node": 8, "micro_batch_size": 1}
    whole |= {"grad_accum_steps": 8, "global_batch_size": 32}
    for names in combinations(whole, 7):
        found = [solved({name: whole[name] for name in order}).fields for order in (names, names[::-1])]
        assert found[0] == found[1]
        assert all(whole[name] == number for name, number in found[0].items())
