"""A launch line becomes a whole spec of the machine that is here: cluster, model, guesses, open questions."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshtune.runners.devices.facts import Accelerator, Vendor
from meshtune.runners.programs.dialects.base import Imported, Question
from meshtune.tuner.specs.launch_draft import Devices, draft_launch

GIB = 2**30
CPU = Devices(accelerators=(), memory_bytes=16 * GIB)
SHAPES = {"layers": 2, "hidden": 64, "heads": 4, "ffn": 256, "vocab": 512, "seq_len": 64}
COMMAND = {"kind": "command", "command": ["torchrun", "train.py", "--mbs", "{micro_batch_size}"], "watch": True}


def gpus(count: int, name: str = "NVIDIA H100 80GB HBM3", memory_bytes: int = 80 * GIB) -> Devices:
    devices = (Accelerator(vendor=Vendor.NVIDIA, index=at, name=name, memory_bytes=memory_bytes) for at in range(count))
    return Devices(accelerators=tuple(devices), memory_bytes=64 * GIB)


def draft(imported: Imported, devices: Devices = CPU, **answers: object):
    named = {path.replace("__", "."): value for path, value in answers.items()}
    return draft_launch(imported, name="train", here=Path("/here"), devices=devices, answers=named)


def launch(**fields) -> Imported:
    whole = {"workload": COMMAND, "plan": {"micro_batch_size": 4}, "global_batch_size": 64, "devices_per_node": 2}
    return Imported(**{**whole, **fields})


def test_without_accelerators_the_ranks_share_the_memory_of_this_machine():
    made = draft(launch())
    assert made.document["cluster"] == {
        "preset": "local-cpu",
        "devices_per_node": 2,
        "device": {"memory_bytes": 8 * GIB},
    }
    assert made.open == ()


def test_accelerators_are_the_cluster_of_their_name_which_is_a_guess():
    made = draft(launch(devices_per_node=8), gpus(8))
    assert made.document["cluster"] == {"preset": "dgx-h100", "nodes": 1, "devices_per_node": 8}
    assert made.guesses == (
        "cluster dgx-h100 by the device's name, NVIDIA H100 80GB HBM3: its links are of that machine",
    )


def test_accelerators_that_no_preset_has_are_described_by_their_driver():
    made = draft(launch(devices_per_node=None), gpus(2, "NVIDIA GeForce RTX 4070", 12 * GIB))
    assert made.document["cluster"] == {
        "name": "this machine",
        "nodes": 1,
        "devices_per_node": 2,
        "device": {"name": "NVIDIA GeForce RTX 4070", "kind": "cuda", "memory_bytes": 12 * GIB},
    }


def test_accelerators_of_two_kinds_are_no_cluster():
    both = gpus(1).accelerators + gpus(1, "NVIDIA GeForce RTX 3090", 24 * GIB).accelerators
    made = draft(launch(devices_per_node=None), Devices(accelerators=both, memory_bytes=64 * GIB))
    assert "leave the small card out" in str(made.open)


@pytest.mark.parametrize("fields", [{"devices_per_node": 8}, {"nodes": 2}])
def test_a_launch_on_more_than_this_machine_has_asks_for_the_cluster(fields):
    made = draft(launch(**fields), gpus(4))
    assert [question.path for question in made.open] == ["cluster"]
    assert "this machine has 4: launch by sbatch" in str(made.open[0])
    assert draft(launch(**fields), gpus(4), cluster="dgx-h100").open == ()


def test_a_job_script_has_its_cluster_from_the_devices_that_its_head_asks_for():
    runner = {"kind": "slurm", "gres": "gpu:h100"}
    made = draft(launch(runner=runner, nodes=2, devices_per_node=8))
    assert made.document["cluster"] == {"preset": "dgx-h100", "nodes": 2, "devices_per_node": 8}
    unknown = draft(launch(runner={"kind": "slurm"}, nodes=2, devices_per_node=8))
    assert [question.path for question in unknown.open] == ["cluster"]


def test_a_model_without_its_shapes_is_left_out_where_the_program_needs_none():
    asked = (Question("model.layers", "no shapes are said"),)
    made = draft(launch(model={"seq_len": 128}, questions=asked))
    assert "model" not in made.document
    assert made.open == ()
    megatron = draft(launch(workload={"kind": "megatron"}, model={"seq_len": 128}, questions=asked))
    assert [question.path for question in megatron.open][:1] == ["model.layers"]


def test_shapes_that_are_known_stay():
    assert draft(launch(model=SHAPES)).document["model"]["layers"] == 2


def test_guesses_are_confirmed_and_the_others_are_asked_until_they_are_answered():
    questions = (
        Question("baseline.micro_batch_size", "micro_batch_size 4 by --bs 4", guessed=True),
        Question("baseline.zero_stage", "which stage?"),
        Question("", "look at the folder"),
    )
    made = draft(launch(questions=questions))
    assert made.document["baseline"]["micro_batch_size"] == 4
    assert made.guesses == ("micro_batch_size 4 by --bs 4", "look at the folder")
    assert [question.path for question in made.open] == ["baseline.zero_stage"]
    answered = draft(launch(questions=questions), baseline__zero_stage=2)
    assert answered.document["baseline"] == {"micro_batch_size": 4, "zero_stage": 2}
    assert answered.open == ()


def test_a_batch_that_nobody_says_is_asked():
    made = draft(launch(global_batch_size=None))
    assert [question.path for question in made.open] == ["global_batch_size"]


def test_a_program_without_a_number_of_steps_is_watched_and_a_local_start_takes_no_minutes():
    own = {"kind": "command", "command": ["torchrun", "train.py"]}
    made = draft(launch(workload=own, trial={"start_s": 300}, notes=("trial.start_s 300: on a cluster", "look")))
    assert made.document["workload"]["watch"] is True
    assert "trial" not in made.document
    assert made.notes == ("look",)
    steps = {"kind": "command", "command": ["torchrun", "train.py", "--max-steps", "{steps}"]}
    runner = {"kind": "slurm", "gres": "gpu:h100"}
    sent = draft(launch(workload=steps, runner=runner, devices_per_node=8, trial={"start_s": 300}))
    assert "watch" not in sent.document["workload"]
    assert sent.document["trial"] == {"start_s": 300}


def test_a_launch_that_leaves_its_devices_to_the_machine_has_its_batch_by_them():
    plan = {"micro_batch_size": 4, "grad_accum_steps": 8, "tp": 2}
    made = draft(launch(devices_per_node=None, global_batch_size=None, plan=plan), gpus(4))
    assert made.document["global_batch_size"] == 4 * 8 * 2
    assert made.open == ()


def test_an_answer_for_a_section_answers_what_is_asked_below_it():
    questions = (Question("cluster.nodes", "how many?"),)
    assert [question.path for question in draft(launch(questions=questions)).open] == ["cluster.nodes"]
    assert draft(launch(questions=questions), cluster="dgx-h100").open == ()


def test_the_variables_that_the_script_reads_are_those_of_who_launches(tmp_path):
    (tmp_path / "train.py").write_text("import os\nroot = os.environ['DATA_ROOT']\nkey = os.getenv('API_KEY')\n")
    own = {**COMMAND, "working_directory": str(tmp_path), "env": {"NCCL_DEBUG": "INFO"}}
    there = {"DATA_ROOT": "/data/{a}", "API_KEY": "x", "HF_TOKEN": "x", "HF_HOME": "/hf", "OTHER": "1", "RANK": "3"}
    there["NCCL_DEBUG"] = "WARN"
    made = draft_launch(launch(workload=own), name="train", here=tmp_path, devices=CPU, answers={}, environment=there)
    expected = {"DATA_ROOT": "/data/{{a}}", "HF_HOME": "/hf", "NCCL_DEBUG": "INFO"}
    assert made.document["workload"]["env"] == expected
