"""Presets of today come back whole from the arguments that a trial of Megatron-LM is started with."""

from __future__ import annotations

import pytest

from meshtune.runners.documents import read_value
from meshtune.runners.programs.dialects.base import render_lines
from meshtune.runners.programs.dialects.megatron.arguments import MegatronOptions, arguments_of
from meshtune.runners.programs.dialects.megatron.reader import parse
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.presets import described, model_presets


@pytest.mark.parametrize(
    "name", ["deepseek-v3", "kimi-k2", "gpt-oss-20b", "qwen3-0.6b", "qwen3-30b-a3b", "llama4-scout", "llama4-maverick"]
)
def test_a_models_shapes_come_back(name):
    model = read_value(ModelSpec, described(model_presets()[name]))
    words = render_lines(arguments_of(model, Plan(), MegatronOptions(arguments=("--lr 1e-4",))))
    imported = parse(" ".join(["torchrun pretrain_gpt.py", *words]))
    assert imported.questions == ()
    assert read_value(ModelSpec, {"name": name, **imported.model}) == model
