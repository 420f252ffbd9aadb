"""Uneven pipeline stages in other programs' words, there and back; what a plan has no word for is asked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from config_lab import launch
from dialect_cases import cases, stored_for
from hypothesis import assume, given
from hypothesis import strategies as st
from launches import parse
from places import cluster
from torchtitan_lab import read_text

from meshtune.runners.programs.deepspeed.options import render as render_deepspeed
from meshtune.runners.programs.dialects.base import CannotExpress, Imported
from meshtune.runners.programs.megatron.flags import Program, programs_with
from meshtune.runners.programs.megatron.pipeline_split import layout_of, split_of_ends, split_of_layout, written_out
from meshtune.runners.programs.megatron.workload import render
from meshtune.runners.programs.nemo import reader as nemo
from meshtune.runners.programs.neox.reader import PROGRAM as NEOX_PROGRAM
from meshtune.runners.programs.torchtitan.workload import render as render_torchtitan
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.stages import plain_split

GIVEN = stored_for(__name__)["given"]

MODEL = ModelSpec(name="m", layers=30, hidden=1024, heads=16, ffn=4096, vocab=51200, seq_len=2048, tied_head=True)
CLUSTER = cluster(1, 8, "cuda", memory_bytes=80 * 2**30)
ENDS = ("first_stage_less_layers", "last_stage_less_layers")
MEGATRON = "python pretrain_gpt.py --num-layers 30 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
MEGATRON += "--max-position-embeddings 64 --micro-batch-size 1 --global-batch-size 64 --vocab-size 512 "


def plan(pp: int, first: int, last: int, **more: object) -> Plan:
    return Plan(
        pp=pp, dp=8 // pp, grad_accum_steps=16, first_stage_less_layers=first, last_stage_less_layers=last, **more
    )


def split(imported: Imported) -> tuple[int, int]:
    return tuple(imported.plan.get(name, 0) for name in ENDS)


INTERLEAVED = {"vpp": 2, "schedule": "interleaved"}


@pytest.mark.parametrize(
    ("own", "layers", "words"),
    [
        (plan(4, 1, 1), 30, ["--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"]),
        (plan(4, 0, 1), 31, ["--account-for-loss-in-pipeline-split"]),
        (plan(4, 0, 2), 30, ["--decoder-first-pipeline-num-layers 8", "--decoder-last-pipeline-num-layers 6"]),
        (plan(2, 0, 2), 30, ["--decoder-first-pipeline-num-layers 16", "--decoder-last-pipeline-num-layers 14"]),
        (
            plan(4, 1, 1, **INTERLEAVED),
            30,
            [
                "--num-layers-per-virtual-pipeline-stage 4",
                "--account-for-embedding-in-pipeline-split",
                "--account-for-loss-in-pipeline-split",
            ],
        ),
        (
            plan(4, 0, 2, **INTERLEAVED),
            30,
            ["--pipeline-model-parallel-layout 'Et*4|(t*4|)*6ttL'"],
        ),
        # Ends with more layers than the middle, and without any.
        (plan(4, -2, 0), 30, ["--decoder-first-pipeline-num-layers 9", "--decoder-last-pipeline-num-layers 7"]),
        (plan(4, 0, 6), 18, ["--pipeline-model-parallel-layout 'Et*6|(t*6|)*2L'"]),
        (plan(4, -1, 2, **INTERLEAVED), 15, ["--pipeline-model-parallel-layout 'Et*3|(tt|)*6L'"]),
        (plan(2, 0, 0), 30, []),
    ],
    ids=lambda value: getattr(value, "key", None),
)
def test_megatron_s_arguments_say_the_split_and_are_read_back(own, layers, words):
    lines = render(replace(MODEL, layers=layers), own, CLUSTER, {})["megatron-args.txt"].splitlines()
    assert [line for line in lines if "pipeline-" in line and "parallel-size" not in line] == words
    assert Program.LM in programs_with({line.split()[0]: tuple(line.split()[1:]) for line in lines})
    imported = parse("python pretrain_gpt.py " + " ".join(lines))
    assert split(imported) == (own.first_stage_less_layers, own.last_stage_less_layers)
    assert imported.plan.get("vpp", 1) == own.vpp
    assert not [line for line in imported.workload["arguments"] if "pipeline" in line]
    assert not [question for question in imported.questions if "stages" in question.text]


@cases
def test_megatron_s_ways_to_cut_30_layers_in_4_stages(words, expected):
    imported = parse(f"{MEGATRON} --pipeline-model-parallel-size 4 {words}")
    assert split(imported) == tuple(expected)
    assert not [question for question in imported.questions if "stages" in question.text]


@pytest.mark.parametrize(
    "words",
    [
        # Middles that differ, chunks that do, and a layer for further tokens that the model does not have.
        "--pipeline-model-parallel-layout 'Et*9|t*9|t*8|t*4L'",
        "--pipeline-model-parallel-layout 'Et*10|t*10|t*10|t|L'",
        "--pipeline-model-parallel-layout 't*8E|t*8|t*8|t*6L'",
        "--decoder-first-pipeline-num-layers 6 --num-virtual-stages-per-pipeline-rank 2",
        "--pipeline-model-parallel-layout 'Et*7|t*8|t*8|t*7mL'",
        # Without layers between, and with the loss alone where no layer is for further tokens.
        "--pipeline-model-parallel-layout 'Et*15||t*15|L'",
        "--pipeline-model-parallel-layout 'Et*20|t*10||L'",
        "--decoder-first-pipeline-num-layers $FIRST",
    ],
)
def test_stages_that_no_plan_has_a_word_for_are_asked_and_stay(words):
    imported = parse(f"{MEGATRON} --pipeline-model-parallel-size 4 {words}")
    assert split(imported) == (0, 0)
    assert [question for question in imported.questions if "stages that no plan has a word for" in question.text]
    assert [line for line in imported.workload["arguments"] if line.startswith(words.split()[0])]


def test_the_chunks_of_a_layout_are_counted_as_vpp():
    imported = parse(
        f"{MEGATRON} --pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'Et*3|(t*4|)*6t*3L'"
    )
    assert (imported.plan["vpp"], imported.plan["schedule"], split(imported)) == (2, "interleaved", (1, 1))
    assert split_of_layout(written_out("Et*99999L"), 1, 0) is None
    assert split_of_ends(30, 2, 1, 14, 15) is None


@given(st.data(), st.integers(1, 6), st.integers(2, 40), st.integers(0, 3), st.booleans())
def test_a_layout_that_is_written_is_read_back(data, between, chunks, further, commas):
    ends = st.integers(-4, between)
    first, last = data.draw(ends), data.draw(ends)
    sizes = [between - first, *[between] * (chunks - 2), between - last]
    assume(any(sizes))
    layout = layout_of(sizes, further)
    if commas:
        layout = layout.replace("|", ",|,")
    written = written_out(layout)
    assert written == "E" + "|".join("t" * size for size in sizes) + "m" * further + "L"
    assert split_of_layout(written, chunks, further) == plain_split((first, last), chunks)
    assert split_of_layout(written, chunks, further + 1) is split_of_layout(written, chunks + 1, further) is None


@pytest.mark.parametrize(
    ("pp", "vpp", "layout", "ends", "written"),
    [
        (31, 1, "Et*3|(tt|)*29mL", (-1, 2), "Et*3|(tt|)*29mL"),
        # Megatron's own example, docs/user-guide/features/pipeline_parallel_layout.md.
        (16, 2, "Et*3|(tt|)*29,m|L", (-1, 4), "Et*3|(tt|)*29m|L"),
        (32, 1, "Et*3|(tt|)*29,m|L", (-1, 4), "Et*3|(tt|)*29m|L"),
        (31, 1, "Et*4|(tt|)*28,tm|L", (-2, 3), "Et*4|(tt|)*28tm|L"),
    ],
)
def test_deepseek_s_layouts_with_a_dense_start_and_a_chunk_of_further_tokens_alone(pp, vpp, layout, ends, written):
    mixed = replace(MODEL, layers=61, experts=8, top_k=2, dense_layers=3, mtp_layers=1, tied_head=False)
    words = "python pretrain_gpt.py --num-layers 61 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
    words += "--micro-batch-size 1 --global-batch-size 992 --vocab-size 512 --mtp-num-layers 1 "
    words += f"--pipeline-model-parallel-size {pp} --pipeline-model-parallel-layout '{layout}'"
    read = parse(words)
    assert (read.plan["pp"], read.plan.get("vpp", 1), split(read), read.model["mtp_layers"]) == (pp, vpp, ends, 1)
    assert not [question for question in read.questions if "stages" in question.text]
    own = Plan(pp=pp, vpp=vpp, first_stage_less_layers=ends[0], last_stage_less_layers=ends[1], grad_accum_steps=992)
    own = replace(own, schedule="interleaved") if vpp > 1 else own
    lines = render(mixed, own, cluster(pp, 1, "cuda", memory_bytes=2**36), {})["megatron-args.txt"].splitlines()
    assert f"--pipeline-model-parallel-layout '{written}'" in lines


def test_a_fork_of_megatron_deepspeed_counts_the_ends_and_others_cannot():
    options = {"flavour": "megatron-deepspeed", "arguments": ["--pp-partition-method type:transformer"]}
    mds = replace(MODEL, norm="layernorm", activation="gelu", position="learned")
    for own, layers, method in (
        (plan(4, 1, 1), 30, "type:transformer|embedding"),
        (plan(4, 0, 0), 32, "type:transformer"),
    ):
        lines = render(replace(mds, layers=layers), own, CLUSTER, options)["megatron-args.txt"].splitlines()
        assert f"--pp-partition-method '{method}'" in lines or f"--pp-partition-method {method}" in lines
    with pytest.raises(CannotExpress, match="the trainer runs 0 and 0, 1 and 1"):
        render(mds, plan(4, 0, 2), CLUSTER, options)
    with pytest.raises(CannotExpress, match="trainer-stages"):
        render(mds, plan(4, 1, 1), CLUSTER, {"flavour": "megatron-deepspeed"})


def test_the_user_s_own_layout_of_stages_is_that_of_every_plan():
    options = {"arguments": ["--pipeline-model-parallel-layout 'E|t*15|t*15|L'"]}
    with pytest.raises(CannotExpress, match="trainer-stages"):
        render(MODEL, plan(4, 1, 1), CLUSTER, options)


def test_a_program_without_the_words_refuses_the_split():
    with pytest.raises(CannotExpress, match="trainer-stages"):
        render_deepspeed(MODEL, plan(4, 1, 1), CLUSTER, {"script": "/t.py"})


@pytest.mark.parametrize("release", ["v0.2", "v0.3"])
def test_torchtitan_says_the_split_and_is_read_back(release):
    own = plan(4, 1, 1, zero_stage=3)
    flags = {"arguments": ["--module mine", "--config mine"]} if release == "v0.3" else {}
    (text,) = render_torchtitan(MODEL, own, CLUSTER, {"release": release, **flags}).values()
    assert ("first_stage_less_layers = 1" in text) == (release == "v0.2")
    flavor = '\n[model]\nname = "llama3"\nflavor = "8B"\n' if release == "v0.2" else ""
    imported = read_text(text + flavor)
    if release == "v0.2":  # which has 32 layers
        assert split(imported) == (0, 0)
        even = text.replace("less_layers = 1", "less_layers = 2") + flavor
        assert split(read_text(even)) == (2, 2)


NEOX = """{{"pipe-parallel-size": 4, "num-layers": 30, "hidden-size": 64, "num-attention-heads": 4, "seq-length": 64,
"max-position-embeddings": 64, "train_micro_batch_size_per_gpu": 4, "zero_optimization": {{"stage": 1}},
"no-weight-tying": {untied}, "pipe_partition_method": "{method}"}}"""


@cases
def test_gpt_neox_cuts_by_types_of_modules(method, untied, expected):
    files = {"configs/a.yml": NEOX.format(method=method, untied=untied)}
    imported = NEOX_PROGRAM.read_launch(launch("./deepy.py", "train.py", "-d", "configs", "a.yml", files=files))
    asked = [question for question in imported.questions if "pipe_partition_method" in question.text]
    assert bool(asked) == (expected is None)
    if expected is not None:
        assert split(imported) == tuple(expected)
        assert [imported.workload["fixed"].get(name, 0) for name in ENDS] == expected


def test_megatron_bridge_counts_embedding_and_loss():
    text = "_target_: megatron.bridge.training.config.ConfigContainer\nmodel:\n  pipeline_model_parallel_size: {}\n"
    text += "  _target_: megatron.bridge.models.gpt_provider.GPTModelProvider\n"
    text += "  account_for_embedding_in_pipeline_split: true\n  account_for_loss_in_pipeline_split: true\n"
    assert split(nemo.read_file_text("a.yaml", text.format(4))) == (1, 1)
    two = nemo.read_file_text("a.yaml", text.format(2))
    assert split(two) == (0, 0)
    assert any("embedding and loss count as layers of the pipeline: pp 2 stays" in note for note in two.notes)


# The published ones, as their launch scripts say it (bigscience's tr11-176B-ml.slurm; Dubey et al. 2024, table 4).
BLOOM = GIVEN["bloom"]
LLAMA = GIVEN["llama"]


def test_the_published_launch_scripts_are_read_with_their_stages(stored):
    bloom = parse(BLOOM)
    assert {name: bloom.plan[name] for name in ("tp", "pp", "micro_batch_size", "zero_stage", *ENDS)} == stored["value"]
    assert bloom.plan["dp"] == 8
    assert (bloom.model["vocab"], bloom.model["vocab_multiple"]) == (250880, 1)
    llama = parse(LLAMA)
    assert (llama.plan["tp"], llama.plan["pp"], llama.plan["dp"], split(llama)) == (8, 16, 128, (1, 1))
    assert llama.model["layers"] == 126
