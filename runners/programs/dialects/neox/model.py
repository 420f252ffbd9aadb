"""The shapes that a gpt-neox configuration says, or that its release derives from it.

Line references are to EleutherAI/gpt-neox at ea7aefd8 (May 2026), megatron/."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

from meshtune.runners.programs.dialects.base import CannotRead
from meshtune.runners.programs.dialects.config_import import ConfigReading
from meshtune.search_spaces.model import Activation, Norm, Position
from meshtune.search_spaces.physics.framework_profiles import MEGATRON_DEEPSPEED

_NORMS = {
    "layernorm": Norm.LAYERNORM,
    "te_layernorm": Norm.LAYERNORM,
    "rmsnorm": Norm.RMSNORM,
    "te_rmsnorm": Norm.RMSNORM,
}
_POSITIONS = {"learned": Position.LEARNED, "rotary": Position.ROPE}
_GATED = ("geglu", "reglu", "swiglu", "bilinear", "glu")
_PLAIN = ("gelu", "relu", "softsign", "swish", "mish", "silu")
# Layers of these kinds are no attention (neox_args.py, ATTENTION_TYPE_CHOICES).
_OTHER_LAYERS = ("mamba", "rwkv", "gmlp", "amlp")
# Entries of public vocabularies, by tokenizer_type and the name of vocab_file: OpenAI's, and EleutherAI's, of which the
# tokenizer prints `padded vocab (size: 50277)`.
_VOCABULARIES = {
    ("gpt2bpetokenizer", "gpt2-vocab.json"): 50257,
    ("hftokenizer", "20B_tokenizer.json"): 50277,
}


def model_of(reading: ConfigReading) -> dict[str, Any]:
    """Fields of ModelSpec; what is not said is left out. Raises CannotRead for what is no transformer."""
    _refuse_other_layers(reading)
    found: dict[str, Any] = {
        "layers": reading.whole("num_layers", "model.layers"),
        "hidden": reading.whole("hidden_size", "model.hidden"),
        "heads": reading.whole("num_attention_heads", "model.heads"),
        "kv_heads": reading.whole("num_kv_heads", "model.kv_heads"),
        "seq_len": reading.whole("seq_length", "model.seq_len"),
        "ffn": _ffn(reading),
        **_vocabulary(reading),
    }
    for name, key, default, words in (
        ("norm", "norm", "layernorm", _NORMS),
        ("position", "pos_emb", "learned", _POSITIONS),
    ):
        said = reading.get(key) or default
        if said in words:
            found[name] = str(words[said])
        else:
            reading.ask(
                f"model.{name}", f"{key} is {said}; answer with the nearest of {', '.join(sorted(set(words.values())))}"
            )
    activation = _activation(reading)
    if activation in (*_GATED, *_PLAIN):
        gated = activation in _GATED or reading.get("mlp_type") == "llama"
        found["activation"] = str(Activation.SWIGLU if gated else Activation.GELU)
        if activation not in ("gelu", "swiglu") and reading.get("mlp_type") != "llama":
            reading.note(f"activation {activation}: the model says {found['activation']}, which has as many matrices")
    else:
        reading.ask("model.activation", f"activation is {activation}; answer swiglu for three matrices, gelu for two")
    found["tied_head"] = not reading.flag("no_weight_tying", "model.tied_head")
    return found | _experts(reading)


def _refuse_other_layers(reading: ConfigReading) -> None:
    said = str(reading.get("attention_config") or "")
    other = next((kind for kind in _OTHER_LAYERS if re.search(rf"\b{kind}\b", said)), None)
    if other is not None:
        told = f"{reading.place}: gpt-neox with {other} layers (attention_config); only transformers are read"
        raise CannotRead(f"{told}: write a spec with the workload command (docs/how-to/workloads.md)")
    kinds = set(re.findall(r"[a-z_]+", said)) - {"global", "flash", "all"}
    if kinds:
        reading.ask(
            "", f"attention_config has {', '.join(sorted(kinds))}: predictions count full attention; is that near?"
        )


def _activation(reading: ConfigReading) -> str:
    return str(reading.get("activation") or "gelu").lower()


def _ffn(reading: ConfigReading) -> int | None:
    """The inner width, by release: until September 2024 `mlp_type` chose the block, since then `activation` does."""
    hidden = reading.whole("hidden_size", "model.hidden")
    given = reading.whole("intermediate_size", "model.ffn")
    kind, activation = reading.get("mlp_type"), _activation(reading)
    if kind == "llama":
        # 0d4bdb96^, model/transformer.py, LLaMAParallelMLP: multiples of 256.
        return given or (None if hidden is None else _up(int(2 * hidden * 4 / 3), 256))
    if kind not in (None, "regular"):
        reading.ask("model.ffn", f"mlp_type is {kind}, which is none of regular, llama; how wide is the block inside?")
        return None
    if hidden is None:
        return None
    if activation == "geglu":
        # 0d4bdb96^, ParallelMLP: int(4 * 2 / 3) = 2.
        old, new = 2 * hidden, _gated(given or 4 * hidden, reading)
        reading.ask(
            "model.ffn", f"activation geglu: {old} wide in releases before September 2024, {new} in later ones; which?"
        )
        return None
    if kind == "regular":
        return 4 * hidden
    factor = reading.get("expansion_factor")
    width = given or (int(factor * hidden) if isinstance(factor, int | float) and factor > 0 else 4 * hidden)
    multiple = reading.whole("mlp_multiple_of", "model.ffn") or 1
    if activation not in _GATED:
        # model/transformer.py, ParallelMLP: whole pairs of mlp_multiple_of.
        return _up(width, 2 * multiple)
    inner = _gated(width, reading)
    if given is not None:
        reading.note(
            f"activation {activation}: gpt-neox makes the block {inner} wide, a third of intermediate_size({given})"
        )
    return inner


def _gated(width: int, reading: ConfigReading) -> int:
    """model/transformer.py, ParallelMLP: "auto scale so gated activations has equal parameters", half for the gate."""
    return _up(int(width * 2 / 3) // 2, reading.whole("mlp_multiple_of", "model.ffn") or 1)


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _vocabulary(reading: ConfigReading) -> dict[str, int | None]:
    """The entries, which the program learns from a file, and what it pads them to where that is not its default
    (tokenizer/tokenizer.py, _vocab_size_with_padding)."""
    each = reading.whole("make_vocab_size_divisible_by", "model.vocab_multiple")
    multiple = None if each == MEGATRON_DEEPSPEED.vocab_multiple else each
    kind, file = str(reading.get("tokenizer_type") or "GPT2BPETokenizer"), str(reading.get("vocab_file") or "")
    entries = _VOCABULARIES.get((kind.lower(), PurePosixPath(file).name))
    if entries is not None:
        reading.note(f"vocab {entries}: the entries of {PurePosixPath(file).name}")
        return {"vocab": entries, "vocab_multiple": multiple}
    padded = reading.get("padded_vocab_size")
    if isinstance(padded, int) and padded > 0:
        return {"vocab": padded, "vocab_multiple": multiple}
    named = f"of {kind} with vocab_file {file}" if file else f"of {kind}"
    reading.ask(
        "model.vocab",
        f"the vocabulary {named} is known to the training alone; its log says `padded vocab (size: N)`",
    )
    return {"vocab_multiple": multiple}


def _experts(reading: ConfigReading) -> dict[str, Any]:
    experts = reading.whole("moe_num_experts", "model.experts") or 1
    if experts <= 1:
        return {}
    if (reading.whole("moe_expert_interval", "model.experts") or 1) != 1 or reading.get("expert_interval") not in (
        None,
        1,
    ):
        reading.ask("", "only some layers have experts (moe_expert_interval); predictions put them into every layer")
    if reading.get("moe_expert_parallel_size") not in (None, 1) or (reading.get("model_parallel_size") or 1) != 1:
        reading.ask("baseline.ep", "gpt-neox spreads experts over its model-parallel ranks; over how many?")
    return {"experts": experts, "top_k": reading.whole("moe_top_k", "model.top_k") or 1}
