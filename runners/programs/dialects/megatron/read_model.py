"""The model that a command line of Megatron trains. Defaults are those of all releases in flags.txt."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshtune.runners.programs.dialects.megatron.arguments import VOCAB_MULTIPLE, WHOLE_VOCABULARY
from meshtune.runners.programs.dialects.megatron.command_line import CommandLine
from meshtune.runners.programs.dialects.megatron.flags import Program
from meshtune.search_spaces.physics.framework_profiles import MEGATRON_DEEPSPEED

_SIZES: Mapping[str, tuple[str, ...]] = {
    "layers": ("--num-layers",),
    "hidden": ("--hidden-size",),
    "heads": ("--num-attention-heads",),
    "seq_len": ("--seq-length",),
    "vocab": (*WHOLE_VOCABULARY, "--vocab-size"),
}
_NORMS = {"rmsnorm": "rmsnorm", "layernorm": "layernorm"}
_POSITIONS = {"rope": "rope", "learned_absolute": "learned", "absolute": "learned"}
# Activations that are none of meshtune's two: the feed-forward width and its memory follow from them.
_OTHER_ACTIVATIONS = ("--squared-relu", "--quick-geglu", "--glu-activation")
_FIRST_DENSE = re.compile(r"\(?\[0\](?:\*(?P<dense>\d{1,4}))?\+\[1\](?:\*\d{1,4})?\)?")
_REPEATED = re.compile(r"\(*\[0\](?:\*(?P<dense>\d{1,4}))?\+\[1\]\)\*\d{1,4}\)?")
# The shapes are those that a checkpoint was written with.
_FROM_CHECKPOINT = "--use-checkpoint-args"


def read_model(line: CommandLine) -> dict[str, Any]:
    """Fields of ModelSpec; those that are neither said nor Megatron's default for certain are left out, and asked."""
    if line.has(_FROM_CHECKPOINT):
        line = replace(line, unread=(*line.unread, _FROM_CHECKPOINT))
    found: dict[str, Any] = {}
    for field, names in _SIZES.items():
        found[field] = line.number(f"model.{field}", *names)
        if not line.has(*names):
            tokenizer = " (the tokenizer decides; GPT-2's has 50257 words)" if field == "vocab" else ""
            line.ask(f"model.{field}", f"{names[-1]} is not said{tokenizer}; fill in what training uses")
    found |= {"kv_heads": _kv_heads(line), "activation": _activation(line), "norm": _norm(line)}
    found |= {"ffn": _ffn(line, found), "position": _position(line), "tied_head": _tied_head(line)}
    found |= _latent(line) or {"head_dim": _optional(line, "head_dim", "--kv-channels")}
    found |= {"vocab_multiple": _vocab_multiple(line)}
    found |= {"mtp_layers": _optional(line, "mtp_layers", "--mtp-num-layers")} | _window(line)
    found |= _experts(line)
    found |= _kinds(line, found)
    return {field: value for field, value in found.items() if value is not None}


def _optional(line: CommandLine, field: str, name: str) -> int | None:
    return line.number(f"model.{field}", name) if line.has(name) else None


def _latent(line: CommandLine) -> dict[str, Any]:
    """Defaults: MLATransformerConfig in core/transformer/transformer_config.py (d98e8a64); the parser's --q-lora-rank
    is None, queries from the hidden state."""
    if not line.has("--multi-latent-attention"):
        return {}
    keys = {"kv_lora_rank": ("--kv-lora-rank", 32), "qk_nope_head_dim": ("--qk-head-dim", 128)}
    keys |= {"qk_rope_head_dim": ("--qk-pos-emb-head-dim", 64), "v_head_dim": ("--v-head-dim", 128)}
    keys |= {"q_lora_rank": ("--q-lora-rank", 0)}
    said = {key: line.number_or(default, "model.latent_attention", name) for key, (name, default) in keys.items()}
    return {"latent_attention": said}


def _window(line: CommandLine) -> dict[str, Any]:
    """--window-size LEFT,RIGHT: keys beside the token's own."""
    if not line.has("--window-size"):
        return {}
    text = (line.text("--window-size", "model.window") or "").strip("()").replace(" ", "")
    left, _, right = text.partition(",")
    if not left.isdigit() or right not in ("0", "-1"):
        line.ask("model.window", f"--window-size {text}: how many tokens does a token attend to, itself included?")
        return {}
    every: int | None = None
    if line.has("--window-attn-skip-freq"):
        every = line.number("model.full_attention_every", "--window-attn-skip-freq")
    return {"window": int(left) + 1, "full_attention_every": every}


def _kinds(line: CommandLine, found: Mapping[str, Any]) -> dict[str, Any]:
    """Shared experts, and which layers have none (arguments.py, moe_freq_type, of which the plain forms are read)."""
    said: dict[str, Any] = {}
    shared = "--moe-shared-expert-intermediate-size"
    if line.has(shared) and found.get("experts"):
        said["shared_ffn"] = line.number("model.shared_ffn", shared)
    if not line.has("--moe-layer-freq") or not found.get("experts"):
        return said
    text = (line.text("--moe-layer-freq", "model.dense_layers") or "").replace(" ", "")
    if text == "1":
        return said
    pattern = _FIRST_DENSE.fullmatch(text)
    if pattern is not None:
        said["dense_layers"] = int(pattern["dense"] or 1)
    elif (repeated := _REPEATED.fullmatch(text)) is not None:
        said["moe_every"] = int(repeated["dense"] or 1) + 1
    elif text.isdigit() and found["layers"] and found["layers"] % int(text) == 0:
        # One in so many has experts, its first one: as many of each kind as where it is the last.
        said["moe_every"] = int(text)
    else:
        line.ask("model.dense_layers", f"--moe-layer-freq {text}: how many first layers are dense, and then how many?")
        return said
    return said | {"dense_ffn": _optional(line, "dense_ffn", "--ffn-hidden-size")}


def _kv_heads(line: CommandLine) -> int | None:
    if line.has("--num-key-value-heads"):
        return line.number("model.kv_heads", "--num-key-value-heads")
    # Megatron-LM counts --num-query-groups with --group-query-attention alone.
    if line.has("--group-query-attention"):
        return line.number_or(1, "model.kv_heads", "--num-query-groups")
    if line.unread and not line.through_deepspeed:
        line.complete("model.kv_heads", "--group-query-attention", "as many as heads")
    return None


def _activation(line: CommandLine) -> str | None:
    if line.has("--swiglu"):
        return "swiglu"
    if other := next((name for name in _OTHER_ACTIVATIONS if line.has(name)), ""):
        line.ask("model.activation", f"{other}: meshtune knows swiglu and gelu alone")
        return None
    return "gelu" if line.complete("model.activation", "--swiglu", "gelu") else None


def _norm(line: CommandLine) -> str | None:
    if not line.has("--normalization"):
        return "layernorm" if line.complete("model.norm", "--normalization", "layernorm") else None
    norm = line.text("--normalization", "model.norm")
    if norm is not None and norm.lower() not in _NORMS:
        line.ask("model.norm", f"--normalization {norm}: meshtune knows RMSNorm and LayerNorm")
    return _NORMS.get((norm or "").lower())


def _position(line: CommandLine) -> str | None:
    if line.has("--use-rotary-position-embeddings"):
        return "rope"
    if not line.has("--position-embedding-type"):
        return "learned" if line.complete("model.position", "--position-embedding-type", "learned") else None
    position = line.text("--position-embedding-type", "model.position")
    if position is not None and position not in _POSITIONS:
        told = "trials have rope and learned positions; with others use `kind: command`"
        line.ask("model.position", f"--position-embedding-type {position}: {told}")
    return _POSITIONS.get(position or "")


def _tied_head(line: CommandLine) -> bool | None:
    name = "--untie-embeddings-and-output-weights"
    if line.has(name):
        return False
    return True if line.complete("model.tied_head", name, "tied") else None


def _vocab_multiple(line: CommandLine) -> int | None:
    """What is padded to it where that is not Megatron's default; 1 where the size after padding is said."""
    if line.has(*WHOLE_VOCABULARY):
        return 1
    multiple = line.number("model.vocab_multiple", VOCAB_MULTIPLE)
    return None if multiple == MEGATRON_DEEPSPEED.vocab_multiple else multiple


def _ffn(line: CommandLine, found: Mapping[str, Any]) -> int | None:
    names = [name for name in ("--moe-ffn-hidden-size", "--ffn-hidden-size") if line.has(name)]
    if len(names) == 2 and line.has("--expert-interval"):
        line.ask("model.ffn", f"{' and '.join(names)}: trials have one width, and your layers without experts another")
        return None
    if names:
        return line.number("model.ffn", *names)
    hidden: int | None = found["hidden"]
    if hidden is None or found["activation"] is None:
        line.ask("model.ffn", "--ffn-hidden-size is not said; fill in what training uses")
        return None
    # arguments.py, validate_args: gated ones get two thirds, in multiples of 64.
    width = hidden // 24 * 64 if found["activation"] == "swiglu" else 4 * hidden
    if found["activation"] == "swiglu" and not line.programs & {Program.LM, Program.DEEPSPEED, Program.ARGONNE}:
        line.ask("model.ffn", "--ffn-hidden-size is not said, and this fork's width for --swiglu is not known")
        return None
    return width if line.complete("model.ffn", "--ffn-hidden-size", str(width)) else None


def _experts(line: CommandLine) -> dict[str, Any]:
    if not line.has("--num-experts"):
        line.complete("model.experts", "--num-experts", "none")
        return {}
    experts = line.number("model.experts", "--num-experts")
    if experts is None or experts == 0 or (experts == 1 and line.through_deepspeed):
        return {}
    if line.through_deepspeed:
        if line.number_or(2, "", "--expert-interval") != 1:
            line.note("--expert-interval is not 1: trials keep it; predictions know experts in every layer alone")
        chosen = line.number_or(1, "model.top_k", "--topk")
    else:
        if not line.has("--disable-bias-linear"):
            told = "experts with biases: trials leave the biases out, because Megatron refuses them with tp > 1"
            line.ask("", f"{told}. That trains another model; say --disable-bias-linear, or use `kind: command`")
        chosen = line.number_or(2, "model.top_k", "--moe-router-topk")
    return {"experts": experts} | ({} if chosen is None else {"top_k": chosen})
