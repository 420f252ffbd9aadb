"""The line that starts an exported setting names what is there to start."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from meshtune.runners.base import JobSpec
from meshtune.runners.registry import SCRIPTS, render_dialect
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign import glossary
from meshtune.tuner.campaign.spec import Objective
from meshtune.tuner.results.export import FORMATS, SCRIPT_FILES
from meshtune.tuner.results.start_command import SENDERS, start_line

TRAINER = ("/venv/bin/python", "-m", "meshtune.runners.trainer", "job.json")


def job(command: tuple[str, ...] = TRAINER, **changes) -> JobSpec:
    return JobSpec(name="a", command=command, directory=Path("/work"), time_limit_s=60.0, **changes)


HERE = job()
DIALECTS = ("megatron", "deepspeed", "torchtitan", "accelerate")


@pytest.fixture
def line(lab):
    """The line for a format, with files as they are exported, on so many nodes."""

    def build(format: str, nodes: int = 1, job: JobSpec = HERE, **options) -> str | None:
        spec = lab.spec()
        cluster = replace(spec.cluster, nodes=nodes)
        plan = Plan(dp=cluster.devices, zero_stage=2)
        words = render_dialect(format, spec.model, plan, cluster) if format in DIALECTS else {}
        return start_line(format, cluster, words, job, options)

    return build


def test_every_format_has_words_and_every_script_a_sender():
    assert set(glossary.FORMATS) == set(FORMATS)
    assert set(glossary.OBJECTIVES) == set(Objective)
    assert set(SENDERS) == set(SCRIPTS) == set(SCRIPT_FILES)


@pytest.mark.parametrize("format", ["deepspeed", "torchtitan", "accelerate"])
def test_the_files_that_a_line_names_are_among_those_exported(lab, line, format):
    spec = lab.spec()
    files = render_dialect(format, spec.model, Plan(dp=4, zero_stage=2), spec.cluster)
    told = line(format)
    for name in re.findall(r"[\w-]+\.(?:json|yaml|toml|args)", told):
        assert name in files


def test_several_nodes_are_told_who_they_are(line):
    assert "--nnodes 2 --nproc_per_node 4 --node_rank $NODE_RANK --master_addr $MASTER_ADDR" in line("torchtitan", 2)
    assert "$NODE_RANK" not in line("torchtitan", 1)
    assert "--machine_rank $NODE_RANK" in line("accelerate", 2)
    assert "--num_nodes 2 --num_gpus 4" in line("deepspeed", 2)


def test_the_program_is_the_campaigns_own_where_it_names_one(line):
    assert line("deepspeed", script="my train.py").endswith("'my train.py' --deepspeed_config ds_config.json")
    assert " train.py " in line("deepspeed")


def test_the_trainer_starts_its_own_ranks_on_one_machine(line):
    assert line("job", job=job(devices_per_node=4)) == "python -m meshtune.runners.trainer job.json"
    two = job(devices_per_node=4, nodes=2)
    assert line("job", 2, two) == "srun --nodes=2 --ntasks-per-node=4 python -m meshtune.runners.trainer job.json"


def test_another_program_is_started_by_torchrun_with_its_environment(line):
    own = job(("train", "--x", "a b"), devices_per_node=2, env={"A": "b c"})
    assert line("job", job=own) == "torchrun --nnodes 1 --nproc_per_node 2 --no-python env 'A=b c' train --x 'a b'"
    assert line("job", job=job(("train",))) == "train"


def test_what_starts_nothing_has_no_line(line):
    assert line("json") is None
