"""A launcher's variables say which rank this is and where the ranks meet, or are refused with what is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshtune.runners.trainer.probe import NodeLayout, ProbeRefused, count_ranks, lay_out
from meshtune.runners.trainer_answers import InvalidLaunch, RankLaunch, Tier, first_host, read_launch

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "n0",
    "MASTER_PORT": "29500",
}
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_NODELIST": "gpu[007-010]",
    "SLURM_JOB_ID": "123456",
}


LAUNCH = RankLaunch(rank=5, world_size=8, local_rank=1, node="2", address="gpu007", port=20000 + 3456)


@pytest.mark.parametrize(
    ("variables", "launch"),
    [
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"}, None),  # a batch script is no rank
        (TORCHRUN, replace(LAUNCH, node="1", address="n0", port=29500)),
        (SRUN, LAUNCH),  # the first host, and a port of the job
        ({**SRUN, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"}, replace(LAUNCH, address="10.0.0.1", port=1234)),
    ],
)
def test_a_launchers_variables_say_who_is_where(variables, launch):
    assert read_launch(variables, "host") == launch


@pytest.mark.parametrize(
    ("over", "word"),
    [
        ({"WORLD_SIZE": ""}, "WORLD_SIZE must be a whole number under a launcher, not ''"),
        ({"LOCAL_RANK": "-1"}, "LOCAL_RANK must be a whole number"),
        ({"RANK": "8"}, r"RANK\(8\) is no rank of WORLD_SIZE\(8\)"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR must say where the 8 ranks meet"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT must be a port's number, not 'http'"),
    ],
)
def test_variables_that_make_no_launch_are_refused(over, word):
    with pytest.raises(InvalidLaunch, match=word):
        read_launch({**TORCHRUN, **over}, "host")


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("n0", "n0"),
        ("n0,n1", "n0"),
        ("gpu[007-012,020]", "gpu007"),
        ("gpu[3,5-7],login1", "gpu3"),
        ("login1,gpu[3-4]", "login1"),
        ("n[1-2].site", "n1.site"),
    ],
)
def test_the_first_host_of_a_slurm_list(nodes, host):
    assert first_host(nodes) == host


def test_ranks_are_laid_out_by_the_node_that_they_name():
    layout = lay_out(["a", "b", "a", "b"], None)
    assert layout == NodeLayout(((0, 2), (1, 3)))
    assert layout.groups(Tier.NODE) == [(0, 2), (1, 3)]
    assert layout.groups(Tier.NETWORK) == [(0, 1), (2, 3)]


@pytest.mark.parametrize(
    ("nodes", "asked", "word"),
    [
        (["a", "a", "b"], None, "as many ranks each, not 1 and 2"),
        (["a", "a"], 4, "--devices-per-node 4, but the launcher started 2 ranks per node"),
    ],
)
def test_a_layout_other_than_asked_for_is_refused(nodes, asked, word):
    with pytest.raises(ProbeRefused, match=word):
        lay_out(nodes, asked)


@pytest.mark.parametrize(
    ("wanted", "accelerators", "cores", "ranks"),
    [
        (None, 8, 96, 8),
        (2, 8, 96, 2),
        (None, 1, 4, 1),
        (None, 0, 1, 2),
        (None, 0, 4, 4),
        (None, 0, 96, 8),
        (3, 0, 1, 3),
    ],
)
def test_a_machine_gets_a_rank_per_accelerator_or_core(wanted, accelerators, cores, ranks):
    assert count_ranks(wanted, accelerators, cores) == ranks
