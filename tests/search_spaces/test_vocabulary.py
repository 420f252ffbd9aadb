"""A vocabulary that the tensor ranks do not divide is padded, by rules, memory and time alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind, DeviceSpec, LinkSpec
from meshtune.search_spaces.columns import Capabilities, columns_of
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.constants import DEFAULTS
from meshtune.search_spaces.physics.framework_profiles import (
    FSDP,
    MEGATRON_CORE,
    MEGATRON_DEEPSPEED,
    NANOTRON,
    TRAINER_BFLOAT16,
    FrameworkProfile,
)
from meshtune.search_spaces.physics.memory import memory_parts
from meshtune.search_spaces.physics.timing import time_parts
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Bounds, Space

LINK = LinkSpec(latency_s=1e-6, bandwidth_bytes_per_s=1e11)
DEVICE = DeviceSpec(
    name="d",
    kind=DeviceKind.CUDA,
    memory_bytes=80 * 2**30,
    peak_flops={"bfloat16": 3e14, "float16": 3e14},
    memory_bandwidth_bytes_per_s=2e12,
)
CLUSTER = ClusterSpec(name="c", nodes=2, devices_per_node=8, device=DEVICE, node_link=LINK, network_link=LINK)
GPT2 = ModelSpec(name="g", layers=12, hidden=768, heads=16, ffn=3072, vocab=50257, seq_len=1024, tied_head=True)
PLANS = columns_of(
    [
        Plan(tp=tp, pp=pp, dp=16 // (tp * pp), grad_accum_steps=4, zero_stage=stage)
        for tp, pp, stage in [(8, 1, 1), (8, 2, 0), (4, 2, 1), (8, 1, 3)]
    ]
)


def costs(model: ModelSpec, framework: FrameworkProfile) -> np.ndarray:
    training = Training(model, CLUSTER, framework)
    return np.array(
        [*memory_parts(training, PLANS, DEFAULTS).values(), *time_parts(training, PLANS, DEFAULTS).values()]
    )


@pytest.mark.parametrize(
    ("vocab", "own", "multiple", "tp", "rows"),
    [
        (50257, 0, 1, 1, 50257),
        (50257, 0, 1, 2, 25129),
        # Megatron-LM prints `padded vocab (size: 50257) with 47 dummy tokens (new size: 50304)`, and 943 with tp 8.
        (50257, 0, 128, 1, 50304),
        (50257, 0, 128, 8, 51200 // 8),
        (50257, 64, 128, 8, 50688 // 8),
        (51200, 0, 128, 8, 6400),
        (128256, 1, 128, 8, 16032),
    ],
)
def test_each_rank_holds_as_many_rows(vocab, own, multiple, tp, rows):
    model = replace(GPT2, vocab=vocab, vocab_multiple=own)
    assert model.vocab_rows(tp, multiple) == rows
    assert model.vocab_rows(np.array([tp, tp], dtype=np.float64), multiple).tolist() == [rows, rows]


def test_a_multiple_is_no_negative_number():
    with pytest.raises(InvalidValue, match="vocab_multiple"):
        replace(GPT2, vocab_multiple=-1)
    with pytest.raises(InvalidValue, match="vocab_multiple"):
        replace(FSDP, vocab_multiple=0)


def test_tensor_ranks_need_not_divide_the_vocabulary(make_setting):
    space = Space(Bounds(), make_setting(able=Capabilities(uneven_vocab=True), vocab=50257))
    assert {plan.tp for plan in space} == {1, 2, 4, 8}
    assert not space.explain(space.complete(tp=8, pp=1))


@pytest.mark.parametrize("framework", [MEGATRON_CORE["bfloat16"], MEGATRON_DEEPSPEED], ids=lambda f: f.name)
def test_memory_and_time_are_those_of_the_padded_vocabulary(framework):
    # Multiples of 128 * 8 and of 128 * 4.
    padded = [costs(replace(GPT2, vocab=vocab), framework) for vocab in (51200, 50688)]
    assert costs(GPT2, framework) == pytest.approx(np.where(PLANS["tp"] == 8, *padded))


@pytest.mark.parametrize("framework", [TRAINER_BFLOAT16, NANOTRON, FSDP], ids=lambda f: f.name)
def test_other_codes_pad_to_the_tensor_ranks_and_the_model_can_say_otherwise(framework):
    assert costs(GPT2, framework)[:, 0] == pytest.approx(costs(replace(GPT2, vocab=50264), framework)[:, 0])
    assert costs(replace(GPT2, vocab_multiple=128), framework)[:, 0] == pytest.approx(
        costs(replace(GPT2, vocab=51200), framework)[:, 0]
    )
