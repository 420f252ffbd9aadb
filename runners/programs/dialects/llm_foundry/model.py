"""The shapes that an llm-foundry configuration says of an MPT model, or names of a Hugging Face one.

Defaults are of mosaicml/llm-foundry at 8c8dd48f (July 2025), llmfoundry/models/mpt/configuration_mpt.py and
models/utils/config_defaults.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshtune.runners.programs.dialects.base import CannotRead
from meshtune.runners.programs.dialects.config_import import ConfigReading
from meshtune.search_spaces.checks import names_in
from meshtune.search_spaces.model import Activation, Norm, Position
from meshtune.search_spaces.presets import model_presets, preset_on_hub

_NORMS = {
    "layernorm": Norm.LAYERNORM,
    "low_precision_layernorm": Norm.LAYERNORM,
    "rmsnorm": Norm.RMSNORM,
    "low_precision_rmsnorm": Norm.RMSNORM,
    "triton_rmsnorm": Norm.RMSNORM,
}
_ACTIVATIONS = {"mptmlp": Activation.GELU, "te_ln_mlp": Activation.GELU, "mptglu": Activation.SWIGLU}
_EXPERTS = ("mb_moe", "mb_dmoe", "torch_dmoe")
# Arguments of MPTConfig and of ComposerMPTCausalLM.
_MPT_KEYS = names_in("""
    additional_train_metrics allow_embedding_resizing attention_bias attn_config block_overrides config_overrides
    d_model emb_pdrop embedding_fraction expansion_ratio fc_type ffn_config final_logit_softcapping head_dim
    init_config init_device learned_pos_emb logit_scale loss_fn master_weights_dtype max_seq_len n_heads n_layers name
    no_bias norm_eps norm_type peft_config resid_pdrop tie_word_embeddings tokenizer_name use_cache use_pad_tok_in_ffn
    use_train_metrics verbose vocab_size
""")
_SHAPES = ("layers", "hidden", "heads", "ffn", "vocab")


def model_of(reading: ConfigReading) -> dict[str, Any]:
    """Fields of ModelSpec; what is not said is left out. Raises CannotRead for what is no decoder."""
    kind = reading.get("model.name")
    if kind == "mpt_causal_lm":
        found = _mpt(reading)
    elif kind == "hf_causal_lm":
        found = _pretrained(reading)
    elif kind == "hf_t5":
        told = f"{reading.place}: llm-foundry with an encoder and a decoder (hf_t5); only decoders are read"
        raise CannotRead(f"{told}: write a spec with the workload command (docs/how-to/workloads.md)")
    else:
        reading.ask(
            "model.layers",
            f"model.name is {kind}, which is read for mpt_causal_lm and hf_causal_lm alone; fill in its shapes",
        )
        found = {}
    if reading.get("model.peft_config"):
        reading.ask("", "model.peft_config: few weights are trained, and predictions count all of them; is that meant?")
    return {**found, "seq_len": reading.whole("max_seq_len", "model.seq_len")}


def _mpt(reading: ConfigReading) -> dict[str, Any]:
    reading.ask_unknown([f"model.{key}" for key in reading.get("model") if key not in _MPT_KEYS], "llm-foundry's MPT")
    if reading.get("model.attn_config.attn_impl") == "torch":
        reading.note("model.attn_config.attn_impl torch stays as it is; predictions count fused attention")
    if reading.get("model.attn_config.sliding_window_size") not in (None, -1):
        reading.note("model.attn_config.sliding_window_size stays as it is; predictions count full attention")
    hidden = reading.whole("model.d_model", "model.hidden")
    found: dict[str, Any] = {
        "layers": reading.whole("model.n_layers", "model.layers"),
        "hidden": hidden,
        "heads": (heads := reading.whole("model.n_heads", "model.heads")),
        "ffn": _ffn(reading, hidden),
        "vocab": reading.whole("model.vocab_size", "model.vocab"),
        "kv_heads": _kv_heads(reading),
    }
    norm = str(reading.get("model.norm_type") or "low_precision_layernorm").lower()
    if norm in _NORMS:
        found["norm"] = str(_NORMS[norm])
    else:
        reading.ask("model.norm", f"model.norm_type is {norm}; layernorm or rmsnorm?")
    found |= _position(reading)
    found["tied_head"] = reading.get("model.tie_word_embeddings") is not False
    kind = str(reading.get("model.ffn_config.ffn_type") or "mptmlp")
    if kind in _ACTIVATIONS:
        found["activation"] = str(_ACTIVATIONS[kind])
    elif kind in _EXPERTS:
        gated = reading.get("model.ffn_config.mlp_type") == "glu"
        found |= {"activation": str(Activation.SWIGLU if gated else Activation.GELU), **_experts(reading)}
    else:
        reading.ask("model.activation", f"model.ffn_config.ffn_type is {kind}; swiglu for three matrices, gelu for two")
    if reading.get("model.block_overrides"):
        reading.ask("", "model.block_overrides: layers of several kinds, which predictions count as one")
    width = reading.whole("model.head_dim", "model.heads")
    if width is not None and (hidden is None or heads is None or width * heads != hidden):
        reading.ask(
            "", f"model.head_dim is {width}: attention is not as wide as the model, which predictions take it to be"
        )
    if reading.get("model.fc_type") not in (None, "torch") or kind == "te_ln_mlp":
        reading.ask("", "Transformer Engine's layers may compute in 8 bits; predictions take the 16-bit format")
    return found


def _ffn(reading: ConfigReading, hidden: int | None) -> int | None:
    """models/layers/ffn.py, resolve_ffn_hidden_size."""
    given = reading.whole("model.ffn_config.ffn_hidden_size", "model.ffn")
    ratio = reading.get("model.expansion_ratio")
    ratio = 4 if ratio is None else ratio
    if given is not None or hidden is None:
        return given
    if (
        isinstance(ratio, bool)
        or not isinstance(ratio, int | float)
        or ratio <= 0
        or int(hidden * ratio) != hidden * ratio
    ):
        reading.ask(
            "model.ffn", f"model.expansion_ratio is {ratio}, which gives no whole width; how wide is the block inside?"
        )
        return None
    return int(hidden * ratio)


def _kv_heads(reading: ConfigReading) -> int | None:
    kind = reading.get("model.attn_config.attn_type") or "multihead_attention"
    if kind == "multihead_attention":
        return None
    if kind == "multiquery_attention":
        return 1
    if kind == "grouped_query_attention":
        return reading.whole("model.attn_config.kv_n_heads", "model.kv_heads")
    reading.ask("model.kv_heads", f"model.attn_config.attn_type is {kind}; how many heads have keys and values?")
    return None


def _position(reading: ConfigReading) -> dict[str, str]:
    if reading.get("model.attn_config.rope"):
        return {"position": str(Position.ROPE)}
    if reading.get("model.attn_config.alibi"):
        reading.ask("model.position", "model.attn_config.alibi: rope has as few weights, learned has some per position")
        return {}
    if reading.get("model.learned_pos_emb") is False:
        reading.ask(
            "model.position", "no positions are learned, and neither rope nor alibi is on; rope has no weights either"
        )
        return {}
    return {"position": str(Position.LEARNED)}


def _experts(reading: ConfigReading) -> dict[str, Any]:
    experts = reading.whole("model.ffn_config.moe_num_experts", "model.experts")
    top_k = reading.whole("model.ffn_config.moe_top_k", "model.top_k")
    if experts is None or top_k is None:
        reading.ask("model.experts", "ffn_config has experts, and does not say moe_num_experts and moe_top_k")
        return {}
    return {"experts": experts, "top_k": top_k}


def _pretrained(reading: ConfigReading) -> dict[str, Any]:
    name = str(reading.get("model.pretrained_model_name_or_path") or "")
    preset = preset_on_hub(name)
    changed = reading.get("model.config_overrides")
    sizes = (
        [key for key in changed if key not in ("max_seq_len", "attn_config")] if isinstance(changed, Mapping) else []
    )
    if preset is None or sizes:
        why = f"with config_overrides of {', '.join(sizes)}" if sizes else "whose shapes are in its config.json"
        reading.ask(
            "model.layers", f"the model is {name or 'not named'}, {why}; fill in {', '.join(_SHAPES)} and what differs"
        )
        return {}
    reading.note(f"the shapes of {name} are those of the preset {preset}")
    return {key: value for key, value in model_presets()[preset].items() if key not in ("source", "name", "seq_len")}
