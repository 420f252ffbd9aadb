"""`meshtune import`: a launch script becomes a spec that `meshtune spaces` takes, or that says what is missing."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from command_lab import run_meshtune

from meshtune.runners.programs.megatron.workload import render
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.spec import workload_of
from meshtune.tuner.specs.document import InvalidSpec, parse_yaml
from meshtune.tuner.specs.read import read_spec

SHAPES = "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --vocab-size 51200 --swiglu"
SCRIPT = f"""#!/bin/bash
TP=2
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py {SHAPES} \\
    --tensor-model-parallel-size $TP --micro-batch-size 2 --global-batch-size 64 --bf16 \\
    --pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 \\
    --recompute-granularity full --recompute-method block --recompute-num-layers 1 --lr 1e-4 --data-path '/a b'
"""


run = partial(run_meshtune, Path())


@pytest.fixture
def script(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT)
    return path


def test_the_script_s_setting_is_the_baseline_of_a_spec_that_holds(script):
    done = run("import", script, "--cluster", "dgx-h100")
    assert done.code == 0
    assert done.err.splitlines()[-1] == "next: meshtune spaces SPEC"
    spec, space = read_spec(parse_yaml(done.out), None)
    assert (spec.name, spec.cluster.nodes, spec.global_batch_size) == ("train", 2, 64)
    split = {"tp": 2, "pp": 2, "dp": 4, "vpp": 2, "schedule": "interleaved", "sequence_parallel": False}
    work = {"micro_batch_size": 2, "grad_accum_steps": 8, "recompute": "full", "recompute_interval": 2}
    assert spec.baseline == Plan(**split, **work)
    # What follows from cluster and batch is left to them, so that another cluster may be named.
    assert not {"dp", "grad_accum_steps"} & parse_yaml(done.out)["baseline"].keys()
    assert spec.baseline in space
    assert (spec.model.ffn, spec.model.activation) == (1344, "swiglu")
    assert spec.workload.options["directory"] == str(script.parent)
    assert "--data-path '/a b'" in spec.workload.options["arguments"]
    workload_of(spec)


def test_the_spec_is_written_where_it_is_wanted_and_the_other_command_takes_it(script):
    assert run("import", script, "--cluster", "dgx-h100", "-o", "spec.yaml").out == "wrote spec.yaml\n"
    assert " legal plans of " in run("spaces", "spec.yaml").out
    told = run("spaces", "spec.yaml", "--why", "pp=2,zero_stage=3,tp=2,micro_batch_size=2").out
    assert "zero_stage(3) with pp(2): the trainer runs stages 0, 1 there" in told


def test_what_is_missing_stands_empty_at_its_place_and_is_told(script):
    script.write_text("torchrun pretrain_gpt.py --num-layers 8 --hidden-size 512 --tokenizer-model $1")
    done = run("import", script)
    gaps = "model.heads, model.vocab, model.seq_len, cluster, global_batch_size"
    assert done.code == 0
    assert f"fill in before use: {gaps}\nnext: " in done.err
    assert f"# fill in: {gaps}\n" in done.out
    assert "\n  vocab:\n" in done.out
    assert "--tokenizer-model" in done.out
    with pytest.raises(InvalidSpec) as raised:
        read_spec(parse_yaml(done.out), None)
    assert {problem.path for problem in raised.value.problems} >= {"cluster", "model.vocab"}


def test_a_preset_with_another_number_of_devices_is_noted(script):
    assert "ranks per node" not in run("import", script, "--cluster", "frontier").out
    told = run("import", script, "--cluster", "aurora").out
    assert "# - the script starts 8 ranks per node, but aurora has 12 devices\n" in told
    assert "# - the script starts on 2 nodes with 8 devices each: name such a cluster\n" in run("import", script).out


def test_what_was_exported_is_imported_as_the_same_baseline(script):
    spec, _ = read_spec(parse_yaml(run("import", script, "--cluster", "dgx-h100").out), None)
    options = dict(spec.workload.options)
    files = render(spec.model, spec.baseline, spec.cluster, {**options, "steps": 25})
    script.write_text(files["launch.sh"])
    again, _ = read_spec(parse_yaml(run("import", script, "--cluster", "dgx-h100").out), None)
    assert again.baseline == spec.baseline
    # What Megatron asks for and the script left out was written, and is read back as the user's.
    added = [f"--max-position-embeddings {spec.model.seq_len}"]
    assert again.workload.options == {**options, "arguments": [*added, *options["arguments"], "--train-iters 25"]}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["train.sh", "--cluster", "dgx-h1000"], "--cluster: no cluster preset is called 'dgx-h1000'; did you mean"),
        (["train.sh", "--format", "megatrn"], "no dialect is called 'megatrn'; did you mean 'megatron'?"),
        (["empty.sh"], "empty.sh: no line starts a Python program"),
        (["binary.sh"], "binary.sh: line 1: holds the control character 0x00"),
        (["none.sh"], "No such file or directory"),
    ],
)
def test_mistakes_are_told_in_one_message(script, arguments, told):
    (script.parent / "empty.sh").write_text("echo\n")
    (script.parent / "binary.sh").write_bytes(b"\xff\xfe\x00")
    done = run("import", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("meshtune: ")
    assert told in done.err
