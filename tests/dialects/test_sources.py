"""What `meshtune import` makes of a file, whatever it is, and of one command line."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path

import pytest
from command_lab import run_meshtune
from dialect_cases import cases

from meshtune.runners.programs.dialects import sources
from meshtune.runners.programs.dialects.bash.launch import find_launch, script_words
from meshtune.tuner.specs.document import parse_yaml

SHAPES = "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --vocab-size 51200"
REST = "--micro-batch-size 2 --global-batch-size 64 --bf16"
START = f"torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py {SHAPES} {REST}"
run = partial(run_meshtune, Path())


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def questions(*arguments: str) -> list[str]:
    done = run("import", *arguments)
    assert done.code == 0, done.err
    asked = parse_yaml(done.out).get("open_questions", [])
    assert [line.partition(": ")[2] for line in done.err.splitlines() if line.startswith("open question: ")] == asked
    return asked


@pytest.mark.parametrize(
    ("line", "script"),
    [
        ("torchrun --nproc-per-node 2 train.py --setup job.slurm", None),
        ("srun --hostfile train python train.py", None),
        ("bash -x train --lr 1", "train"),
        ("sbatch --partition x train", "train"),
        ("./job.slurm 8", "./job.slurm"),
        ("env A=1 bash job.slurm train.py", "job.slurm"),
        ("bash gone.sh", None),
    ],
)
def test_the_script_that_a_line_starts_is_told_from_a_program_and_read(folder, line, script):
    for name in ("train", "train.py", "job.slurm"):
        Path(name).write_text(START)
    named = (Path(word) for _, word in script_words(shlex.split(line)))
    assert next((path for path in named if path.is_file()), None) == (script and Path(script))
    if script:
        assert find_launch(line, path=Path("command")).script == "pretrain_gpt.py"


def test_a_command_line_is_read_as_typed_here(folder):
    done = run(
        "import", "--command", f"NCCL_DEBUG=WARN srun -N 2 --label {START} --lr 1e-4 2>&1 | tee log", "--set", "X=1"
    )
    assert done.code == 0, done.err
    document = parse_yaml(done.out)
    assert document["workload"]["env"] == {"NCCL_DEBUG": "WARN"}
    assert "--lr 1e-4" in document["workload"]["arguments"]
    assert "starts on 2 nodes with 8 devices each" in done.out
    refused = run("import", "--command", "make train")
    assert (refused.code, refused.out) == (2, "")
    assert "no line starts a Python program" in refused.err
    assert "--command" not in refused.err


def test_a_question_says_which_devices_contradict_each_other(folder):
    start = "srun -N 2 python -m torch.distributed.run --nnodes 2 --nproc_per_node 8 own.py"
    (folder / "job.sh").write_text(f"#SBATCH --nodes 1\n#SBATCH --gres=gpu:2\n{start}\n")
    done = run("import", "job.sh")
    assert done.code == 0, done.err
    asked = "cluster.nodes: line 3: srun starts 2 nodes, and the script's head 1; 8 ranks per node, and the script's"
    assert any(asked in line for line in parse_yaml(done.out)["open_questions"])


@pytest.mark.parametrize("arguments", [[], ["x.sh", "--command", "y"], ["--pid", "1", "--command", "y"], ["a", "b"]])
def test_exactly_one_source_is_given(folder, arguments):
    assert run("import", *arguments).code == 2


def launch(folder, text: str) -> dict:
    (folder / "launch.sh").write_text("#!/bin/bash\n" + text.replace("START", START) + "\n")
    done = run("import", "launch.sh")
    assert done.code == 0, done.err
    return parse_yaml(done.out)


def test_a_value_of_each_job_is_exported_in_it(folder):
    text = "export NCCL_A=/run/$SLURM_JOB_ID TORCH_B=${SLURM_JOBID}-b UCX_C=c-$SLURM_JOB_ID NCCL_D=$OTHER\n"
    document = launch(folder, text + "bash -c 'export UCX_C=1; START'")
    assert document["workload"]["setup"] == ['export NCCL_A="/run/$SLURM_JOB_ID"', 'export TORCH_B="${SLURM_JOBID}-b"']
    assert document["workload"]["env"] == {"UCX_C": "1", "NCCL_D": None}
    (asked,) = [line for line in document["open_questions"] if "workload.env" in line]
    assert "NCCL_D" in asked


def test_what_an_inner_script_exports_holds_whatever_it_was_outside(folder):
    (folder / "inner.sh").write_text(
        "export TORCH_EXTENSIONS_DIR=/tmp/ext\nexport NCCL_ALGO=$WHICH\nSTART\n".replace("START", START)
    )
    document = launch(folder, "export TORCH_EXTENSIONS_DIR=$X/ext NCCL_ALGO=Ring\nbash inner.sh")
    asked = document["open_questions"]
    assert document["workload"]["env"] == {"TORCH_EXTENSIONS_DIR": "/tmp/ext", "NCCL_ALGO": None}
    assert [text for text in asked if "workload.env.NCCL_ALGO" in text]
    assert not [text for text in asked if "TORCH_EXTENSIONS_DIR" in text]


def test_the_setup_inside_of_a_container_is_not_that_of_the_job(folder):
    (folder / "inner.sh").write_text("source /opt/conda/bin/activate torch\nSTART\n".replace("START", START))
    head = "#SBATCH --nodes=2\nmodule load site\n"
    assert launch(folder, f"{head}bash inner.sh")["workload"]["setup"] == [
        "module load site",
        "source /opt/conda/bin/activate torch",
    ]
    document = launch(folder, f"{head}singularity exec image.sif bash inner.sh")
    assert document["workload"]["setup"] == ["module load site"]
    assert not [text for text in document["open_questions"] if "activate" in text]


def test_a_file_that_the_script_writes_is_read_by_its_whole_path(folder):
    written = 'mkdir -p configs\nZ=$(cat <<Z\n{"stage": 1}\nZ\n)\n'
    written += 'cat <<E > configs/ds.json\n{"zero_optimization": $Z, "bf16": {"enabled": true}}\nE\n'
    document = launch(folder, f"{written}START --deepspeed --deepspeed_config ${{PWD}}/configs/ds.json --zero-stage 1")
    assert not [text for text in document.get("open_questions", []) if "ds" in text]
    assert document["baseline"]["zero_stage"] == 1


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("--eos_token '<|im_end|>'", False),
        ("--wandb-exp-name your_name", False),
        ("--data-path '<data>'", True),
        ("--data-path /data/path_to_corpus", False),
        ("--data-path path_to_corpus", True),
        ("--data-path xxx", True),
    ],
)
def test_a_placeholder_is_told_by_where_it_stands(folder, words, asked):
    found = launch(folder, f"START {words}").get("open_questions", [])
    assert any("is a placeholder" in text or "fill in what" in text for text in found) is asked, found


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo sbatch job.sh\n# ssh host\nif [ a = b ]; then sbatch x.sh; fi\n", "no line starts a Python program"),
        ("if [ a = b ]; then\n START\nfi\nsbatch $0", "no line starts a Python program"),
        ("for n in a b; do ssh $n run; done", "line 2: `ssh` starts what trials do not enter"),
        ("sbatch $JOB.sh", "--set JOB=VALUE"),
        ("f() { sbatch jobs/x.sbatch; }\nf", "make the file jobs/x.sbatch"),
    ],
)
def test_a_refusal_names_what_is_reached_and_no_more(folder, script, said):
    (folder / "launch.sh").write_text("#!/bin/bash\n" + script.replace("START", START) + "\n")
    done = run("import", "launch.sh")
    assert done.code == 2
    assert said in done.err, done.err
    if said.startswith("no line"):
        assert "`sbatch`" not in done.err
        assert "`ssh`" not in done.err


@cases
def test_what_static_reading_does_not_follow_is_asked(folder, line, asked):
    (folder / "ds.json").write_text("{}")
    (folder / "launch.sh").write_text("#!/bin/bash\n" + line.replace("START", START) + "\n")
    assert [question for question in questions("launch.sh") if asked in question], questions("launch.sh")


def test_what_is_asked_for_is_answered_by_set(folder):
    (folder / "launch.sh").write_text(f"{START} $EXTRA\n")
    assert questions("launch.sh", "--set", "EXTRA=--swiglu") == []
    assert questions("launch.sh", "--set", "EXTRA=") == []


def test_files_that_the_words_name_are_read_beside_the_script(folder):
    (folder / "scripts").mkdir()
    (folder / "scripts" / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}')
    (folder / "scripts" / "launch.sh").write_text(f"{START} --deepspeed --deepspeed_config ds.json\n")
    done = run("import", "scripts/launch.sh")
    assert parse_yaml(done.out)["baseline"]["zero_stage"] == 2


def test_several_starts_are_listed_and_one_is_chosen(folder):
    (folder / "launch.sh").write_text(f"{START} --lr 1\n{START} --lr 2\n")
    asked = run("import", "launch.sh")
    assert asked.code == 2
    assert "several trainings are started; choose one by --start N:\n  1  torchrun" in asked.err
    assert "--lr 2" in parse_yaml(run("import", "launch.sh", "--start", "2").out)["workload"]["arguments"]


def test_the_folder_that_pwd_says_is_the_present_one(folder):
    (folder / "launch.sh").write_text(
        f'HERE=`pwd`\n{START} --data-path $(pwd)/x --tokenizer-model "${{PWD}}" --vocab-file $HERE/y\n'
    )
    arguments = parse_yaml(run("import", "launch.sh").out)["workload"]["arguments"]
    assert {f"--data-path {folder}/x", f"--tokenizer-model {folder}", f"--vocab-file {folder}/y"} <= set(arguments)


def test_what_is_recognised_and_not_read_is_named(folder):
    (folder / "c.yaml").write_text("fsdp:\n  wrapping_strategy: by_block\nmodel:\n  d_model: 8\n")
    told = run("import", "c.yaml").err
    assert "is no configuration of a program that is known" in told
    (folder / "run.sh").write_text("python -m levanter.main.train_lm --config_path c.yaml\n")
    assert "workload.configs with its keys" in run("import", "run.sh").err
    (folder / "recipe.py").write_text("#!/usr/bin/env python\nimport nemo_run as run\n")
    assert "recipe in Python, which is not read" in run("import", "recipe.py").err


def test_a_log_without_arguments_is_refused_with_the_next_step(folder):
    (folder / "run.log").write_text("step 1 loss 2\n")
    done = run("import", "run.log")
    assert done.code == 2
    assert "run.log: holds no list of arguments" in done.err
    assert "meshtune import --pid N" in done.err


def test_of_a_large_log_only_the_start_is_read(folder, monkeypatch):
    monkeypatch.setattr(sources, "_MAX_LOG", 200_000)
    with (folder / "train.log").open("wb") as file:
        file.truncate(2**40)
    assert "holds no list of arguments" in run("import", "train.log").err


def test_a_spec_with_open_questions_prints_them_all(folder):
    (folder / "launch.sh").write_text(f"cd $A\n{START} $B $C --x <y>\n")
    done = run("import", "launch.sh", "--cluster", "dgx-h100", "-o", "spec.yaml")
    last = done.err.splitlines()[-1]
    assert last.startswith("next: answer the open questions in spec.yaml and delete their lines, ")
    assert last.endswith("meshtune spaces spec.yaml")
    asked = parse_yaml((folder / "spec.yaml").read_text())["open_questions"]
    assert len(asked) >= 3
    told = run("spaces", "spec.yaml")
    assert told.code == 2
    assert all(f"is not answered: {question}" in told.err for question in asked)
