"""Models of today have the weights that their authors published, and their layers cost what their shapes say."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import pytest

from meshtune.runners.documents import read_value
from meshtune.runners.programs.named_models import model_named
from meshtune.runners.programs.transformers.config_json import read_config
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.model import ModelSpec, layer_kinds
from meshtune.search_spaces.physics.framework_profiles import MEGATRON_CORE, TRAINER_FLOAT32
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.presets import described, model_presets

# Weights in 1e9: of the main model, and met by a token. DeepSeek-V3: README_WEIGHTS.md of its repository. Qwen3: model
# cards. gpt-oss: model card, table 1. Kimi K2: arXiv 2507.20534, by its text; its shapes have 1.026e12. Llama 4: model
# cards, which count the vision part as well.
PUBLISHED = {
    "deepseek-v3": (671.0, 36.6, 0.001),
    "qwen3-30b-a3b": (30.5, 3.04, 0.01),
    "qwen3-235b-a22b": (235.0, 22.0, 0.025),
    "gpt-oss-20b": (20.91, 3.61, 0.002),
    "gpt-oss-120b": (116.83, 5.13, 0.002),
    "kimi-k2": (1040.0, 32.0, 0.015),
    "llama4-scout": (109.0, 17.0, 0.06),
    "llama4-maverick": (400.0, 17.0, 0.06),
}
NON_EMBEDDING = {"0.6b": 0.44, "1.7b": 1.4, "4b": 3.6, "8b": 6.95, "14b": 13.2, "32b": 31.2, "30b-a3b": 29.9}


def preset(name: str) -> ModelSpec:
    return read_value(ModelSpec, described(model_presets()[name]))


@pytest.mark.parametrize("name", PUBLISHED)
def test_weights_and_those_that_a_token_meets_are_those_published(name):
    model, (total, met, within) = preset(name), PUBLISHED[name]
    assert (model.parameters - model.mtp_parameters) / 1e9 == pytest.approx(total, rel=within)
    # All but the look-up's, the experts that a token is not sent to, and the layers for further tokens.
    idle = model.expert_layers * (model.experts - model.top_k) * model.feed_forward_parameters
    looked_up = model.embedding_parameters - (model.vocab * model.hidden if model.tied_head else 0)
    activated = model.parameters - model.mtp_parameters - idle - looked_up
    assert activated / 1e9 == pytest.approx(met, rel=within)


def test_deepseeks_layer_for_a_further_token_is_as_large_as_published():
    assert preset("deepseek-v3").mtp_parameters / 1e9 == pytest.approx(11.5, rel=0.015)


@pytest.mark.parametrize("size", NON_EMBEDDING)
def test_qwen3s_layers_have_the_weights_of_its_model_cards(size):
    model = preset(f"qwen3-{size}")
    layers = model.parameters - (1 if model.tied_head else 2) * model.vocab * model.hidden
    assert layers / 1e9 == pytest.approx(NON_EMBEDDING[size], rel=0.012)


@pytest.mark.parametrize(("dense", "every", "full"), list(product((0, 1, 3), (1, 2, 3), (0, 1, 2, 4, 6))))
def test_kinds_of_layers_are_those_counted_one_by_one(make_model, dense, every, full):
    model = make_model(
        layers=13, experts=2, top_k=1, dense_layers=dense, moe_every=every, window=8, full_attention_every=full
    )
    counted: dict[tuple[bool, bool], int] = {}
    for index in range(13):
        place = index - dense + 1
        kind = place > 0 and place % every == 0, full == 0 or (index + 1) % full != 0
        counted[kind] = counted.get(kind, 0) + 1
    assert {(kind.experts > 0, kind.window > 0): count for count, kind in layer_kinds(model)} == counted


def test_vocabularies_are_padded_as_their_code_does(make_model):
    tp = columns_of([Plan(tp=1), Plan(tp=8)])["tp"]
    assert list(MEGATRON_CORE["bfloat16"].padded_vocab(make_model(vocab=50257), tp)) == [50304, 51200]
    assert list(TRAINER_FLOAT32.padded_vocab(make_model(vocab=50257), tp)) == [50257, 50264]
    assert list(MEGATRON_CORE["bfloat16"].padded_vocab(make_model(vocab=50257, vocab_multiple=1), tp)) == [50257, 50264]


def test_a_config_json_says_the_shapes_of_its_preset():
    config = {
        "model_type": "gpt_oss",
        "num_hidden_layers": 36,
        "hidden_size": 2880,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "intermediate_size": 2880,
        "vocab_size": 201088,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 18,
    }
    read = read_value(ModelSpec, {"name": "gpt-oss-120b", "seq_len": 4096, **read_config(config)})
    assert read == preset("gpt-oss-120b")


def test_a_config_json_of_another_kind_is_refused_by_its_name():
    with pytest.raises(InvalidValue, match=r"^model_type: is 'mamba'"):
        read_config({"model_type": "mamba"})


# What the files of the Hub say, or leave to the defaults of their kind, and the preset with the same shapes.
_SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size")
_LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "q_lora_rank": None}
_ROUTED = {"n_routed_experts": 64, "num_experts_per_tok": 6, "moe_intermediate_size": 1408, "n_shared_experts": 2}
_AIR = {"n_routed_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1408, "n_shared_experts": 1}
_A2_7B = {"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408}
_GEMMA3 = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}


def config_of(kind: str, *sizes: int, vocab: int, **more: object) -> dict[str, object]:
    return {"model_type": kind, **dict(zip(_SIZES, sizes, strict=True)), "vocab_size": vocab, **more}


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("gemma-2b", config_of("gemma", 18, 2048, 8, 1, 16384, vocab=256000, head_dim=256)),
        ("phi-2", config_of("phi", 32, 2560, 32, 32, 10240, vocab=51200)),
        ("glm4-9b", config_of("glm4", 40, 4096, 32, 2, 13696, vocab=151552)),
        ("olmo-1b", config_of("olmo", 16, 2048, 16, 16, 8192, vocab=50304, tie_word_embeddings=True)),
        ("mula-7b", config_of("olmoe", 16, 2048, 16, 16, 1024, vocab=50304, num_experts=64, num_experts_per_tok=8)),
        (
            "qwen1.5-moe-a2.7b",
            config_of(
                *("qwen2_moe", 24, 2048, 16, 16, 5632), vocab=151936, shared_expert_intermediate_size=5632, **_A2_7B
            ),
        ),
        (
            "deepseek-v2-lite",
            config_of(
                *("deepseek_v2", 27, 2048, 16, 16, 10944), vocab=102400, first_k_dense_replace=1, **_ROUTED, **_LATENT
            ),
        ),
        (
            "glm4.5-air",
            config_of(
                *("glm4_moe", 46, 4096, 96, 8, 10944),
                vocab=151552,
                first_k_dense_replace=1,
                num_nextn_predict_layers=1,
                **_AIR,
            ),
        ),
        ("phi-3-mini", config_of("phi3", 32, 3072, 32, 32, 8192, vocab=32064)),
        (
            "gemma3-4b",
            {"model_type": "gemma3", "text_config": {**_GEMMA3, "sliding_window": 1024}, "vision_config": {}},
        ),
        ("qwen2.5-vl-7b", config_of("qwen2_5_vl", 28, 3584, 28, 4, 18944, vocab=152064, vision_config={})),
        (
            "llava-1.5-7b",
            {"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064}, "vision_config": {}},
        ),
        (
            "mistral-small-3.1-24b",
            {
                "model_type": "mistral3",
                "text_config": config_of("mistral", 40, 5120, 32, 8, 32768, vocab=131072, head_dim=128),
                "vision_config": {},
            },
        ),
    ],
)
def test_a_config_json_counts_as_many_weights_as_the_preset_of_its_model(name, config):
    known = preset(name)
    read = read_value(ModelSpec, {"name": name, "seq_len": known.seq_len, **read_config(config)})
    assert read.tower_parameters == pytest.approx(known.tower_parameters, rel=0.01)
    assert replace(read, tower_parameters=0) == replace(known, tower_parameters=0)


def test_a_tower_of_a_kind_that_is_not_known_is_refused():
    with pytest.raises(InvalidValue, match="tower"):
        read_config(
            {**config_of("mllama", 40, 4096, 32, 8, 14336, vocab=128256), "model_type": "qwen3", "vision_config": {}}
        )


def test_a_model_is_found_by_what_a_user_names_the_cache_before_presets(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert model_named("Qwen/Qwen3-8B")["layers"] == 36
    own = config_of("qwen3", 7, 4096, 32, 8, 12288, vocab=151936)
    snapshot = tmp_path / "hub" / "models--Qwen--Qwen3-8B" / "snapshots" / "abc"
    folder = tmp_path / "checkpoint"
    for place in (snapshot, folder):
        place.mkdir(parents=True)
        (place / "config.json").write_text(json.dumps(own))
    named = [model_named(name) for name in ("Qwen/Qwen3-8B", str(folder), f"{folder}/", str(folder / "config.json"))]
    assert [each["layers"] for each in named] == [7, 7, 7, 7]
    assert [each["name"] for each in named] == ["Qwen3-8B", "checkpoint", "checkpoint", "checkpoint"]
    # A mapping of files stands for this machine's.
    assert model_named("Qwen/Qwen3-14B", {})["layers"] == 40
    with pytest.raises(InvalidValue, match="no folder"):
        model_named(str(folder), {})


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Qwen/Qwen3-9B", "did you mean 'qwen3-8b'"),
        ("google-bert/bert-base-uncased", "^google-bert/bert-base-uncased is a model of bert"),
        ("meta-llama/Llama-3.2-11B-Vision", "no preset"),
    ],
)
def test_a_model_that_is_not_known_is_refused_by_its_name(name, told, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InvalidValue, match=told) as caught:
        model_named(name)
    assert name in str(caught.value)
