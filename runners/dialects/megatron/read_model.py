"""The model that a command line of Megatron trains. Defaults are those of all releases in flags.txt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshtune.runners.dialects.megatron.command_line import CommandLine
from meshtune.runners.dialects.megatron.flags import Program

_SIZES: Mapping[str, tuple[str, ...]] = {
    "layers": ("--num-layers",),
    "hidden": ("--hidden-size",),
    "heads": ("--num-attention-heads",),
    "seq_len": ("--seq-length",),
    "vocab": ("--padded-vocab-size", "--vocab-size"),
}
_NORMS = {"rmsnorm": "rmsnorm", "layernorm": "layernorm"}
_POSITIONS = {"rope": "rope", "learned_absolute": "learned", "absolute": "learned"}
# Activations that are none of meshtune's two: the feed-forward width and its memory follow from them.
_OTHER_ACTIVATIONS = ("--squared-relu", "--quick-geglu", "--glu-activation")
_DENSE_LAYERS = ("--moe-layer-freq", "--expert-interval")
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
    return {field: value for field, value in found.items() if value is not None} | _experts(line)


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


def _ffn(line: CommandLine, found: Mapping[str, Any]) -> int | None:
    names = [name for name in ("--moe-ffn-hidden-size", "--ffn-hidden-size") if line.has(name)]
    if len(names) == 2 and line.has(*_DENSE_LAYERS):
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
