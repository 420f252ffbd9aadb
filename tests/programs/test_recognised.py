"""Programs that are recognised and not read: each one's next step, followed as it is written, comes to legal plans."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from command_lab import run_meshtune

from meshtune.runners.programs.recognised import tables
from meshtune.tuner.specs.document import parse_yaml

run = partial(run_meshtune, Path())

STARTS = {
    "verl": "python3 -m verl.trainer.main_ppo data.train_batch_size=64 trainer.nnodes=2",
    "openrlhf": "deepspeed --module openrlhf.cli.train_sft --max_len 2048",
    "maxtext": "python3 -m MaxText.train MaxText/configs/base.yml ici_fsdp_parallelism=8 dcn_data_parallelism=2",
    "litgpt": "litgpt pretrain --config train.yaml",
    "levanter": "python -m levanter.main.train_lm --config_path train.yaml",
    "olmo": "torchrun --nproc-per-node 8 OLMo/scripts/train.py train.yaml",
    "fairseq": "fairseq-train data",
    "colossalai": "colossalai run --nproc_per_node 8 train.py",
    "torchtune": "tune run --nproc_per_node 8 full_finetune_distributed --config train.yaml",
    "nanotron": "torchrun --nproc_per_node=8 run_train.py --config-file train.yaml",
}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(folder, name: str, text: str) -> str:
    (folder / name).write_text(text)
    done = run("import", name)
    assert (done.code, done.out) == (2, "")
    return done.err


def test_each_program_has_a_start_here():
    assert STARTS.keys() | {"nemo_recipes"} == tables().keys()


@pytest.mark.parametrize("program", STARTS)
def test_the_spec_that_the_refusal_names_has_plans(program, folder):
    (folder / "train.yaml").write_text("learning_rate: 1.0e-5\n")
    (folder / "FILE.yaml").write_text("learning_rate: 1.0e-5\n")
    said = refusal(folder, "run.sh", f"#!/bin/bash\n#SBATCH --nodes=2\nset -e\n{STARTS[program]}\n")
    assert tables()[program]["program"]["title"] in said
    spec = said.partition("SPEC.yaml:\n\n")[2]
    (folder / "SPEC.yaml").write_text(spec)
    done = run("spaces", "SPEC.yaml")
    assert done.code == 0, (said, done.err)
    assert "0 legal" not in done.out


def test_the_file_and_the_devices_that_were_read_stand_in_the_spec(folder):
    text = "#!/bin/bash\ntorchrun --nnodes 2 --nproc-per-node 4 OLMo/scripts/train.py conf/own.yaml\n"
    spec = parse_yaml(refusal(folder, "run.sh", text).partition("SPEC.yaml:\n\n")[2])
    assert (spec["cluster"]["nodes"], spec["cluster"]["devices_per_node"]) == (2, 4)
    assert spec["workload"]["configs"]["train.yaml"]["base"] == "conf/own.yaml"


def test_the_parallelism_of_maxtext_is_told(folder):
    said = refusal(folder, "run.sh", STARTS["maxtext"])
    assert "its parallelism: ici_fsdp_parallelism=8, dcn_data_parallelism=2" in said


def test_a_program_in_python_is_no_script_of_a_shell(folder):
    recipe = "import nemo_run as run\nfrom nemo.collections import llm\nfor x in (1,):\n    pass\n"
    assert "--to-yaml FILE.yaml" in refusal(folder, "recipe.py", recipe)
    assert "meshtune import --command 'torchrun own.py" in refusal(folder, "own.py", "for x in (1,):\n    pass\n")


def test_devices_that_the_program_is_given_stand_in_the_spec(folder):
    text = "python3 -m verl.trainer.main_ppo trainer.nnodes=3 trainer.n_gpus_per_node=4\n"
    cluster = parse_yaml(refusal(folder, "run.sh", text).partition("SPEC.yaml:\n\n")[2])["cluster"]
    assert (cluster["nodes"], cluster["devices_per_node"]) == (3, 4)


def test_a_program_whose_name_a_variable_has_is_recognised(folder):
    text = 'OPENRLHF_HOME="/opt/openrlhf"\ncd openrlhf\n'
    text += "read -r -d '' job <<EOF\nopenrlhf.cli.train_sft --max_len 2048\nEOF\ndeepspeed --module $job\n"
    said = refusal(folder, "run.sh", text)
    assert "a start of OpenRLHF" in said
    command = parse_yaml(said.partition("SPEC.yaml:\n\n")[2])["workload"]["command"]
    assert command.startswith("deepspeed --module openrlhf.cli.train_sft --max_len 2048 ")


def test_variables_of_the_script_are_to_be_written_out(folder):
    text = 'deepspeed --module openrlhf.cli.train_sft --pretrain "$MODEL"\n'
    assert "write out the script's variables" in refusal(folder, "run.sh", text)
