"""Which ranks are each other's peers, written out for a rank in the middle of a plan's layout."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from meshtune.runners.trainer.fakes import alone
from meshtune.runners.trainer.parallel.mesh import build_mesh

RANK = 5  # the second of tp, the first of cp, the second of dp
AXES = {"tp": 2, "cp": 2, "dp": 2}
EXPERTS = {"experts": 4, "top_k": 2}


def ranks_of(mesh):
    return [dist.get_process_group_ranks(group) for group in mesh.get_all_groups()]


@pytest.mark.parametrize(
    ("plan", "replicas", "experts"),
    [
        ({}, [[1, 3, 5, 7]], None),
        ({"zero_stage": 1, "zero_group": 2}, [[1, 5], [5, 7]], None),
        ({"ep": 2}, [[1, 3, 5, 7]], {"ep": [[5, 7]], "etp": [[4, 5]], "replicas": [[1, 5]]}),
        ({"ep": 2, "etp": 4}, [[1, 3, 5, 7]], {"ep": [[1, 5]], "etp": [[4, 5, 6, 7]], "replicas": [[5]]}),
        ({"ep": 4, "etp": 1}, [[1, 3, 5, 7]], {"ep": [[4, 5, 6, 7]], "etp": [[5]], "replicas": [[1, 5]]}),
        (
            {"zero_stage": 1, "zero_group": 2, "ep": 2, "etp": 1},
            [[1, 5], [5, 7]],
            {"ep": [[4, 5]], "etp": [[5]], "replicas": [[1, 5], [5, 7]]},
        ),
    ],
    ids=str,
)
def test_a_stages_ranks_are_counted_once_for_all_and_anew_for_experts(plan, replicas, experts, make_job):
    job = make_job(plan=AXES | plan, model=EXPERTS)
    with alone(job, RANK):
        mesh = build_mesh(job.plan, "cpu")
        assert ranks_of(mesh.tp) == [[4, 5]]
        assert ranks_of(mesh.cp) == [[5, 7]]
        assert ranks_of(mesh.replicas) == replicas
        assert (mesh.experts is None) is (experts is None)
        assert {axis: ranks_of(getattr(mesh.experts, axis)) for axis in experts or {}} == (experts or {})
