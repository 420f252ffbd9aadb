"""A launch script of Megatron read back: every way to say a thing; what is not understood is an open question, for
which no value is written."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dialect_cases import cases
from launches import parse

from meshtune.runners.documents import read_value
from meshtune.runners.programs.dialects.base import CannotRead, Imported, render_lines
from meshtune.runners.programs.dialects.bash.launch import find_launch
from meshtune.runners.programs.dialects.programs import read_start
from meshtune.runners.programs.megatron.options import MegatronOptions
from meshtune.runners.programs.megatron.reader import is_program, read_launch
from meshtune.runners.programs.megatron.workload import arguments_of
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.presets import described, model_presets

SHAPES = "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --vocab-size 51200"
BARE = f"torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py {SHAPES} --micro-batch-size 2 --global-batch-size 64"
START = f"{BARE} --bf16"


def plan(*more: str) -> dict:
    return dict(parse(" ".join([START, *more])).plan)


def test_what_megatron_does_unless_told_otherwise(stored):
    imported = parse(START)
    assert imported.model == stored["model"]
    assert imported.plan == stored["plan"]
    assert imported.workload == stored["workload"]
    assert (imported.global_batch_size, imported.nodes, imported.devices_per_node) == (64, 2, 8)
    assert (imported.questions, imported.notes) == ((), ())


@cases
def test_every_way_to_say_a_part_of_the_plan(argument, fields):
    assert plan(argument) == {**plan(), "grad_accum_steps": 2 * (16 // fields.get("dp", 16)), **fields}


@cases
def test_every_way_to_say_a_shape(argument, fields):
    imported = parse(f"{START} {argument}")
    assert imported.model == {**parse(START).model, **fields}
    assert [question for question in imported.questions if question.path != "workload.ds_config"] == []


@cases
def test_every_launcher_says_on_how_many_devices(before, devices):
    text = before if "p.py" in before else f"{before} p.py --lr 1"
    imported = parse(text)
    assert [imported.nodes, imported.devices_per_node] == devices


def test_what_surrounds_the_start_goes_along_and_secrets_do_not():
    script = f"""
module load cuda
source env.sh
export NCCL_DEBUG=WARN WANDB_API_KEY=abc HF_TOKEN=def
export MASTER_ADDR=$(hostname)
export LD_LIBRARY_PATH=/x:$LD_LIBRARY_PATH
wget http://example.org/vocab.json
cd /opt/Megatron
OMP_NUM_THREADS=4 RANK=0 {START} --save /ckpt
module purge
"""
    imported = parse(script)
    assert imported.workload["setup"] == ["module load cuda", "source env.sh"]
    assert imported.workload["env"] == {"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "4"}
    assert imported.workload["directory"] == "/opt/Megatron"
    assert imported.notes == (
        "line 7: `wget` is not run by trials",
        "line 4: the value of WANDB_API_KEY is not copied: it may be a secret",
        "line 4: the value of HF_TOKEN is not copied: it may be a secret",
        "line 6: the value of LD_LIBRARY_PATH is not known here; fill it in under workload.env",
    )
    assert "abc" not in str(imported)


def test_deepspeed_s_settings_that_the_script_writes_itself_are_read():
    script = f"""
STAGE=2
cat <<EOT > ds.json
{{"train_batch_size": 64, "zero_optimization": {{"stage": $STAGE}}, "fp16": {{"enabled": true}},
 "wall_clock_breakdown": false}}
EOT
{START.replace("--bf16", "")} --deepspeed --deepspeed_config ds.json
"""
    imported = parse(script)
    assert imported.plan["zero_stage"] == 2
    assert (imported.workload["flavour"], imported.workload["dtype"]) == ("megatron-deepspeed", "float16")
    assert imported.workload["ds_config"] == {
        "zero_optimization": {"stage": 2},
        "fp16": {"enabled": True},
        "wall_clock_breakdown": False,
    }
    assert (imported.questions, imported.notes) == ((), ())


def test_a_helper_before_the_start_is_none_itself():
    imported = parse(f"python prepare.py --output data\n{START}")
    assert imported.workload["script"] == "pretrain_gpt.py"
    assert imported.notes == ("line 1: `python` is not run by trials",)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo hello", "no line starts a Python program"),
        ('for i in $X; do\nA="torchrun p.py $i"\ndone', "no line starts a Python program .*; line 1: what `for` opens"),
        ("torchrun 'p.py --lr 1", "line 1: the quote that opens here is never closed"),
        ("", "no line starts a Python program"),
        ("run " + "${A:-" * 500 + "}" * 500, "line 1: its brackets are nested deeper than 50 levels"),
        ('sh -c "echo \'sh -c \\"p.py x\\"\'"', "no line starts a Python program"),
    ],
)
def test_what_is_no_launch_script_is_refused(script, error):
    with pytest.raises(CannotRead, match=error):
        parse(script)


@cases
def test_the_vocabulary_is_read_with_its_padding(argument, vocab, multiple, kept):
    imported = parse(f"{START} {argument}")
    assert (imported.model["vocab"], imported.model.get("vocab_multiple", 0)) == (vocab, multiple)
    assert imported.workload["arguments"] == kept


def test_a_vocabulary_is_not_padded_for_the_baseline_s_tensor_ranks_alone():
    imported = parse(START.replace("51200", "50257") + " --tensor-model-parallel-size 8")
    assert (imported.model["vocab"], "vocab_multiple" in imported.model) == (50257, False)
    assert imported.notes == ()


DEEPSPEED = f"{BARE} --deepspeed --deepspeed_config ds.json"


def asked(imported: Imported) -> dict[str, str]:
    """The questions' texts by path, several of one path together."""
    found: dict[str, str] = {}
    for question in imported.questions:
        found[question.path] = f"{found.get(question.path, '')}{question.text}\n"
    return found


def with_settings(script: str, text: str) -> Imported:
    """The import of a script beside which DeepSpeed's file lies."""
    return read_launch(replace(find_launch(script), files={"ds.json": text}))


@cases
def test_what_is_not_understood_is_asked_with_its_line(argument, path, text):
    imported = parse(f"{START} {argument}")
    assert text in asked(imported).get(path, ""), imported.questions
    assert all(question.text.startswith("line 1: ") for question in imported.questions)
    section, _, key = path.partition(".")
    written = {"baseline": imported.plan, "model": imported.model, "workload": imported.workload}.get(section, {})
    assert key not in written or key == "arguments"


def test_a_placeholder_may_hold_what_no_other_word_says():
    imported = parse(f"{BARE} --lr 1e-4 $PRECISION")
    assert "dtype" not in imported.workload
    assert asked(imported)["workload.dtype"] == (
        "line 1: no word that was read says --bf16 or --fp16, but $PRECISION may; else it is float32\n"
    )
    unread = {
        "baseline.tp",
        "baseline.pp",
        "baseline.zero_stage",
        "baseline.recompute",
        "model.norm",
        "model.tied_head",
    }
    assert unread <= asked(imported).keys()
    assert not {"tp", "pp", "zero_stage"} & imported.plan.keys()
    own = parse(f"{BARE} --lr 1e-4 $@")
    # Where the script is read, `$@` is asked; once is enough.
    assert "but $@ may" in asked(own)["workload.dtype"]
    assert "" not in asked(own)
    for data in ("$DATA", "/data/x", "0.5 $A 0.5 $B"):
        swallowed = parse(f"{BARE} --data-path {data} $PRECISION")
        assert "dtype" not in swallowed.workload
        assert "but $PRECISION may" in asked(swallowed)["workload.dtype"]


def test_a_placeholder_in_angle_brackets_swallows_no_argument_and_is_asked():
    imported = parse(f"{BARE} --vocab-file <VOCAB_FILE> --fp16 --lr 1")
    assert imported.workload["dtype"] == "float16"
    assert any("<VOCAB_FILE>" in question.text for question in imported.questions)


def test_bash_s_redirection_from_a_file_swallows_the_next_argument():
    start = find_launch(BARE)
    imported = read_launch(replace(start, words=(*start.words, "--vocab-file", "--lr", "1")))
    assert "dtype" not in imported.workload
    assert "but what follows --vocab-file may" in asked(imported)["workload.dtype"]


def test_redirections_in_a_text_that_eval_runs_are_no_arguments():
    imported = parse(f'RUN="{START} --swiglu &> log_$(date).txt"\neval ${{RUN}}')
    assert imported.questions == ()


def test_float32_is_megatron_s_default_where_every_word_was_read():
    imported = parse(BARE)
    assert (imported.workload["dtype"], imported.questions) == ("float32", ())
    assert "line 1: neither --bf16 nor --fp16: Megatron trains in float32" in imported.notes


OWN = "--seq-length 2048 --micro-batch-size 2 --global-batch-size=64 --train-iters 9 --save /c --bf16 --base-weights /w"


def test_a_trainer_that_took_arguments_over_is_a_plain_command():
    start = find_launch(f"srun -N 2 --ntasks-per-node 8 python fit.py {OWN} --shard-strategy FULL --unit-checkpointing")
    assert not is_program(start)
    imported = read_start(start)
    assert imported.questions == ()
    words = "python fit.py --seq-length 2048 --micro-batch-size {micro_batch_size} "
    words += "--global-batch-size={global_batch_size} --train-iters 9 --save /c --bf16"
    assert imported.workload["kind"] == "command"
    assert " ".join(imported.workload["command"]).startswith(words)
    assert imported.workload["trial_arguments"] == {"--save": "{directory}/save"}
    assert (imported.plan["micro_batch_size"], imported.model) == (2, {})
    assert (imported.global_batch_size, imported.workload["dtype"]) == (64, "bfloat16")


@pytest.mark.parametrize(
    ("script", "more", "own"),
    [
        ("fit.py", "--shard-strategy FULL --unit-checkpointing --base-weights /w", True),
        # Its name, an argument of Megatron alone, or few arguments of others.
        ("pretrain_gpt.py", "--shard-strategy FULL --unit-checkpointing --base-weights /w", False),
        ("fit.py", "--shard-strategy FULL --unit-checkpointing --tensor-model-parallel-size 2", False),
        ("fit.py", "--lr 1 --min-lr 0 --lr-decay-style cosine", False),
    ],
)
def test_a_program_is_megatron_by_its_name_or_by_megatrons_own_arguments(script, more, own):
    start = find_launch(f"torchrun {script} {OWN} {more}")
    assert is_program(start) is not own
    assert (read_start(start).workload["kind"] == "command") is own


def test_a_grid_of_tensor_ranks_is_asked_and_the_step_that_the_question_names_works():
    text = f"{START} --row-tensor-model-parallel-size 16"
    [asked_] = parse(text).questions
    assert (asked_.path, "--format plain" in asked_.text) == ("baseline.tp", True)
    imported = read_start(find_launch(text), "plain")
    assert "--row-tensor-model-parallel-size 16" in " ".join(imported.workload["command"])
    assert (imported.plan["micro_batch_size"], imported.model) == (2, {})


def test_an_unknown_argument_is_asked_or_noted_once_whatever_it_holds():
    imported = parse(f"{START} --wrap-layers $N --shuffle-within $M")
    assert len([question for question in imported.questions if "--wrap-layers" in question.text]) == 1
    assert len([question for question in imported.questions if "--shuffle-within" in question.text]) == 1
    noted = parse(f"{START} --shuffle-within yes --use-tcp-store")
    assert noted.questions == ()
    assert [note for note in noted.notes if "--shuffle-within yes, --use-tcp-store are no arguments" in note] != []


def test_what_is_not_said_is_left_out_and_asked():
    imported = parse("torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 --bf16")
    assert imported.model.keys() == {"layers", "hidden", "ffn", "norm", "activation", "position", "tied_head"}
    # torchrun starts one rank on one node unless it is told otherwise.
    assert imported.plan.keys() == {
        "tp",
        "pp",
        "cp",
        "ep",
        "zero_stage",
        "sequence_parallel",
        "recompute",
        "dp",
        "grad_accum_steps",
    }
    assert (imported.global_batch_size, imported.nodes, imported.devices_per_node) == (None, 1, 1)
    assert asked(imported).keys() >= {"model.heads", "model.seq_len", "model.vocab", "baseline.micro_batch_size"}


@cases
def test_what_deepspeed_s_file_leaves_open_is_asked(settings, argument, path, text):
    imported = with_settings(f"{DEEPSPEED} {argument}", settings)
    assert text in asked(imported).get(path, ""), imported.questions
    assert path != "workload.dtype" or "dtype" not in imported.workload
    assert path != "baseline.zero_stage" or "zero_stage" not in imported.plan


def test_deepspeed_s_file_beside_the_script_is_read_and_its_absence_asked():
    settings = '{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}, "bf16": {"enabled": true}}'
    imported = with_settings(DEEPSPEED, settings)
    assert (imported.plan["zero_stage"], imported.workload["dtype"], imported.questions) == (2, "bfloat16", ())
    assert any("offload_optimizer: stays as it is, but predictions do not know" in note for note in imported.notes)
    absent = parse(f"{DEEPSPEED} --zero-stage 1 --bf16")
    assert asked(absent).keys() == {"workload.ds_config"}
    assert "ds.json is not there" in asked(absent)["workload.ds_config"]
    assert "no --deepspeed_config" in asked(parse(f"{START} --deepspeed --zero-stage 1"))["workload.ds_config"]


@cases
def test_what_stays_as_it_is_and_predictions_do_not_know_is_noted(argument, note):
    imported = parse(f"{START} {argument}")
    assert len([told for told in imported.notes if note in told]) == 1, imported.notes
    assert [path for path in asked(imported) if path != "workload.ds_config"] == []


def test_the_experts_of_some_layers_stay_in_some_layers():
    imported = parse(f"{START} --num-experts 8 --zero-stage 0")
    assert "--expert-interval 2" in imported.workload["arguments"]


@pytest.mark.parametrize(
    ("start", "why"),
    [
        (START.replace("_gpt", "_bert"), "pretrain_bert.py trains BERT"),
        (START.replace("_gpt", "_t5"), "pretrain_t5.py trains T5"),
        (START.replace("_gpt", "_mamba"), "a state-space or hybrid model"),
        (START.replace("pretrain_gpt", "train") + " --mask-prob 0.15", "--mask-prob is for BERT or T5"),
        (START.replace("--num-layers", "--encoder-num-layers"), "--encoder-num-layers is for an encoder-decoder"),
        (START + " --hybrid-override-pattern M-M*", "a hybrid model"),
        (START.replace("pretrain_gpt", "tasks/main"), "tasks/main.py does not pretrain (tasks)"),
        (START.replace("pretrain_gpt", "main") + " --task LAMBADA", "does not pretrain (--task)"),
        (START + " --yaml-cfg a.yaml", "Next: import the log of a run"),
    ],
)
def test_what_no_decoder_only_transformer_is_is_refused_by_name(start, why):
    with pytest.raises(CannotRead, match=r"^line 1: Megatron") as raised:
        parse(start)
    assert why in str(raised.value)
    assert "Next: " in str(raised.value)


@pytest.mark.parametrize(
    ("start", "is_theirs"),
    [
        (START, True),
        ("torchrun pretrain_gpt.py $ARGS --lr 1", True),
        (START.replace("pretrain_gpt.py", "train.py"), True),
        ("torchrun run_clm.py --model_name_or_path gpt2 --seq-length 2 --num-layers 2 --hidden-size 4", False),
        ("torchrun train.py --lr 1 --epochs 2", False),
        ("python tools/sample.py --tokenizer-type GPT2BPETokenizer --input a", False),
    ],
)
def test_a_start_of_megatron_is_recognised(start, is_theirs):
    assert is_program(find_launch(start)) is is_theirs


@pytest.mark.parametrize(
    "name", ["deepseek-v3", "kimi-k2", "gpt-oss-20b", "qwen3-0.6b", "qwen3-30b-a3b", "llama4-scout", "llama4-maverick"]
)
def test_a_models_shapes_come_back(name):
    model = read_value(ModelSpec, described(model_presets()[name]))
    words = render_lines(arguments_of(model, Plan(), MegatronOptions(arguments=("--lr 1e-4",))))
    imported = parse(" ".join(["torchrun pretrain_gpt.py", *words]))
    assert imported.questions == ()
    assert read_value(ModelSpec, {"name": name, **imported.model}) == model
