"""The arguments that Megatron prints at its start, read from a long log as a launch script would be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dialect_cases import stored_for
from launches import parse

from meshtune.runners.programs.dialects.base import CannotRead
from meshtune.runners.programs.megatron import command_line, log_dump
from meshtune.runners.programs.megatron.flags import flags_by_dest
from meshtune.runners.programs.megatron.reader import is_log, read_log

GIVEN = stored_for(__name__)["given"]

TOLD = GIVEN["told"]
# What validate_args makes of the above, in core_v0.12.3.
MADE = GIVEN["made"]


def dump(release: str, said: dict[str, object], title: str = "arguments") -> list[str]:
    """The lines of _print_args (NVIDIA/Megatron-LM at d98e8a64, megatron/training/arguments.py) in a release of
    flags.txt, where `said` is not its default."""
    values = {dest: forms[0].default for dest, forms in flags_by_dest()[release].items()} | said
    lines = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in values.items()]
    return [
        f"------------------------ {title} ------------------------",
        *sorted(lines, key=str.lower),
        f"-------------------- end of {title} ---------------------",
    ]


LM = dump("n", TOLD | MADE)
SAID = GIVEN["said"]
DEEPSPEED = dump("D", {name: value for name, value in TOLD.items() if name != "vocab_size"} | SAID)
SETTINGS = GIVEN["settings"]
PREFIXES = GIVEN["prefixes"]


def log(lines: list[str], prefix: str = "") -> str:
    around = ["using world size: 16, data-parallel-size: 4", "1: a line ..... of another rank", "  x .... y"]
    steps = [f" iteration {step}/5000 | elapsed time per iteration (ms): 1.0 |" for step in range(100)]
    return "\n".join(f"{prefix}{line}" for line in [*around, *lines, *around, *steps])


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_a_dump_in_a_log_reads_as_the_command_line_that_it_is_of(prefix):
    text = log(LM, prefix)
    assert is_log(text)
    imported = read_log(text)
    script = parse(
        "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 24 --hidden-size 1024 --seq-length 2048 "
        "--num-attention-heads 16 --max-position-embeddings 2048 --vocab-size 51200 --swiglu --bf16 --lr 0.0003 "
        "--untie-embeddings-and-output-weights --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 "
        "--sequence-parallel --micro-batch-size 1 --global-batch-size 64 --min-lr 3e-05 --lr-decay-style cosine "
        "--train-iters 5000 --data-path 0.3 '/data/a b' 0.7 /data/c --disable-bias-linear "
        "--recompute-granularity selective"
    )
    assert (imported.model, imported.plan, imported.global_batch_size) == (script.model, script.plan, 64)
    assert imported.workload["dtype"] == script.workload["dtype"]
    assert sorted(imported.workload["arguments"]) == sorted(script.workload["arguments"])
    assert {question.path for question in imported.questions} == {
        *("workload.script", "workload.directory", "cluster.nodes"),
    }


def test_a_degree_by_a_name_of_a_newer_release_is_asked_and_one_more_name_in_its_row_reads_it(monkeypatch):
    newer = TOLD | MADE | {"data_parallel_size": 2, "context_ranks": 2}
    imported = read_log(log(dump("n", newer)))
    asked = [str(question) for question in imported.questions]
    assert any("tp(2) * pp(2) * dp(2) is not devices(16)" in text for text in asked), asked
    rows = [
        replace(row, names=(*row.names, "--context-ranks")) if row.field == "cp" else row
        for row in command_line.TABLE.rows
    ]
    table = replace(command_line.TABLE, rows=tuple(rows))
    for module in (command_line, log_dump):
        monkeypatch.setattr(module, "TABLE", table)
    imported = read_log(log(dump("n", newer)))
    assert imported.plan["cp"] == 2
    assert not any("is not devices" in str(question) for question in imported.questions)


def test_deepspeed_s_settings_and_the_vocabulary_are_in_the_log_too():
    vocabulary = [" > padded vocab (size: 50257) with 175 dummy tokens (new size: 50432)"]
    text = log([*DEEPSPEED, *vocabulary, *SETTINGS], "0: ")
    imported = read_log(text)
    assert imported.workload["flavour"] == "megatron-deepspeed"
    assert imported.workload["ds_config"] == {"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}}
    assert (imported.plan["zero_stage"], imported.plan["dp"], imported.model["vocab"]) == (1, 4, 50257)
    without = read_log(log(DEEPSPEED))
    assert {question.path for question in without.questions} >= {"workload.ds_config", "model.vocab"}
    assert without.plan["zero_stage"] == 1


def test_of_several_dumps_the_last_counts_and_a_torn_one_is_asked():
    again = dump("n", TOLD | MADE | {"micro_batch_size": 2})
    assert read_log(log([*LM, *again])).plan["micro_batch_size"] == 2
    assert [question.text for question in read_log(log(LM[:-1])).questions if not question.path] == [
        "line 4: the dump has no end: arguments may be missing"
    ]


def test_keys_are_not_copied():
    imported = read_log(log(dump("n", TOLD | MADE | {"wandb_api_key": "hush"})))
    assert "hush" not in str(imported)
    assert any("wandb_api_key, which may be secrets" in question.text for question in imported.questions)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["nothing of the kind"], "no dump of Megatron's arguments"),
        ([*LM, "building BERT model ..."], "`building BERT model`"),
        (dump("n", TOLD | MADE | {"decoder_seq_length": 128}), "a decoder of its own"),
    ],
)
def test_a_log_of_something_else_is_refused(lines, why):
    with pytest.raises(CannotRead, match=why):
        read_log(log(lines))
