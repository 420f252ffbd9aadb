"""The shapes that a configuration on Megatron-Core says, and those that NeMo's classes have built in.

Defaults are of megatron-core's TransformerConfig and of GPTConfig in nemo/collections/llm/gpt/model/base.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshtune.runners.programs.dialects.base import CannotRead
from meshtune.runners.programs.dialects.config_import import ConfigReading, holds
from meshtune.runners.programs.dialects.nemo.layouts import BRIDGE, NEMO_1, Layout
from meshtune.search_spaces.model import Activation, Norm, Position
from meshtune.search_spaces.physics.framework_profiles import MEGATRON_DEEPSPEED

_GPT = {"normalization": "LayerNorm", "gated_linear_unit": False, "position_embedding_type": "learned_absolute"}
_LLAMA = {
    "normalization": "RMSNorm",
    "gated_linear_unit": True,
    "position_embedding_type": "rope",
    "share_embeddings_and_output_weights": False,
}


def _sized(layers: int, hidden: int, heads: int, groups: int, ffn: int, **more: Any) -> dict[str, Any]:
    shapes = {"num_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
    return {**_LLAMA, **shapes, "num_query_groups": groups, "ffn_hidden_size": ffn, **more}


_TIED = {"share_embeddings_and_output_weights": True}
# nemo/collections/llm/gpt/model/base.py, llama.py, mistral.py, mixtral.py: what a class says without arguments.
_CLASSES: Mapping[str, Mapping[str, Any]] = {
    "GPTConfig": {**_GPT, **_TIED},
    "LlamaConfig": _LLAMA,
    "Llama2Config7B": _sized(32, 4096, 32, 32, 11008),
    "Llama2Config13B": _sized(40, 5120, 40, 40, 13824),
    "Llama2Config70B": _sized(80, 8192, 64, 8, 28672),
    "Llama3Config": {**_LLAMA, "num_query_groups": 8},
    "Llama3Config8B": _sized(32, 4096, 32, 8, 14336),
    "Llama3Config70B": _sized(80, 8192, 64, 8, 28672),
    "Llama31Config8B": _sized(32, 4096, 32, 8, 14336),
    "Llama31Config70B": _sized(80, 8192, 64, 8, 28672),
    "Llama31Config405B": _sized(126, 16384, 128, 8, 53248),
    "Llama32Config1B": _sized(16, 2048, 32, 8, 8192, **_TIED),
    "Llama32Config3B": _sized(28, 3072, 24, 8, 8192, **_TIED),
    "MistralConfig7B": _sized(32, 4096, 32, 8, 14336),
    "MixtralConfig8x7B": _sized(32, 4096, 32, 8, 14336, num_moe_experts=8, moe_router_topk=2),
    "MixtralConfig8x22B": _sized(56, 6144, 48, 8, 16384, num_moe_experts=8, moe_router_topk=2),
}
_OTHERS = ("bert", "t5", "ssm", "mamba", "hyena", "vlm", "llava", "clip", "retro", "hfautomodel", "griffin", "bart")
# What only such configurations of NeMo 1 have.
_OTHER_KEYS = {"encoder": "t5", "hyena": "hyena", "bert_binary_head": "bert", "mamba_state_dim": "mamba"}
_NORMS = {"layernorm": Norm.LAYERNORM, "layernorm1p": Norm.LAYERNORM, "rmsnorm": Norm.RMSNORM}
_POSITIONS = {"rope": Position.ROPE, "learned_absolute": Position.LEARNED}
_GATED = ("swiglu", "geglu", "reglu", "fast-swiglu", "fast-geglu", "fast-reglu")
# What predictions count otherwise, or not at all, unless it has one of these values.
_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "multi_latent_attention": (False,),
    "mtp_num_layers": (0,),
    "mtp_enabled": (False,),
    "moe_layer_freq": (1,),
    "moe_shared_expert_intermediate_size": (0,),
    "num_layers_in_first_pipeline_stage": (),
    "num_layers_in_last_pipeline_stage": (),
    "pipeline_model_parallel_layout": (),
    "heterogeneous_block_specs": (False,),
    "cpu_offloading": (False,),
    "window_size": (),
    "drop_layers": ([],),
    "expert_tensor_parallel_size": (),
    "hybrid_override_pattern": (),
    "hybrid_layer_pattern": (),
    "experimental_attention_variant": (),
    "num_micro_batches_with_partial_activation_checkpoints": (),
    "activations_checkpoint_layers_per_pipeline": (),
}


class Shapes:
    """Looks a field up in the model's section, and then in what its class says. fields: a class's; None: unknown."""

    def __init__(self, reading: ConfigReading, layout: Layout) -> None:
        self.reading, self.layout = reading, layout
        target = str(reading.get(f"{layout.model}._target_") or "")
        self.kind = target.rpartition(".")[2]
        # A whole configuration of Megatron-Bridge says every field; one of NeMo 1 without layers restores its model.
        kind = {"GPTModelProvider": "GPTConfig"}.get(self.kind, self.kind)
        if layout is NEMO_1:
            kind = "GPTConfig" if reading.get("model.num_layers") is not None else "model that is restored"
        self.known = known = _CLASSES.get(kind)
        self.built_in = {
            name: value for name, value in (known or {}).items() if not holds(reading.config, f"{layout.model}.{name}")
        }

    def get(self, name: str) -> Any:
        return self.built_in.get(name, self.reading.get(f"{self.layout.model}.{name}"))

    def whole(self, name: str, answer: str) -> int | None:
        value = self.built_in.get(name)
        return value if isinstance(value, int) else self.reading.whole(f"{self.layout.model}.{name}", answer)


def model_of(reading: ConfigReading, layout: Layout) -> dict[str, Any]:
    """Fields of ModelSpec; what is not said is left out. Raises CannotRead for what is no decoder."""
    _refuse_others(reading, layout)
    shapes = Shapes(reading, layout)
    hidden, heads = shapes.whole("hidden_size", "model.hidden"), shapes.whole("num_attention_heads", "model.heads")
    ffn = shapes.whole("ffn_hidden_size", "model.ffn")
    sizes = {
        "layers": shapes.whole("num_layers", "model.layers"),
        "hidden": hidden,
        "heads": heads,
        # TransformerConfig: without words four times as wide, and a group per head.
        "ffn": ffn or (4 * hidden if hidden is not None and shapes.known is not None else None),
        "kv_heads": shapes.whole("num_query_groups", "model.kv_heads"),
        "seq_len": next(filter(None, (reading.whole(key, "model.seq_len") for key in layout.seq_len)), None),
        **_vocabulary(shapes),
    }
    found: dict[str, Any] = {name: value for name, value in sizes.items() if value is not None}
    if shapes.known is None and "kv_heads" not in found:
        reading.ask("model.kv_heads", "num_query_groups is not said; how many heads have keys and values?")
    if shapes.known is None and {"layers", "hidden", "heads", "ffn"} - found.keys():
        told = f"{layout.model} is a {shapes.kind or 'restored model'}, whose shapes are not in the configuration"
        reading.ask("model.layers", f"{told}; fill in layers, hidden, heads, ffn and what differs")
    found |= _kinds(shapes) | _experts(shapes)
    width = shapes.whole("kv_channels", "model.heads")
    if width and hidden and heads and width * heads != hidden:
        reading.ask(
            "", f"kv_channels({width}) * {heads} heads is not hidden({hidden}), which predictions take it to be"
        )
    for name, plain in _PLAIN.items():
        for section in dict.fromkeys((layout.model, layout.parallel)):
            value = reading.get(f"{section}.{name}")
            if value is not None and value not in plain:
                reading.ask("", f"{section}.{name} is set, which predictions do not know; it stays in every trial")
    if reading.get("peft") or reading.get("model.peft.peft_scheme"):
        reading.ask("", "peft: few weights are trained, and predictions count all of them; is that meant?")
    return found


def _refuse_others(reading: ConfigReading, layout: Layout) -> None:
    target = " ".join(str(reading.get(key) or "") for key in ("model._target_", f"{layout.model}._target_"))
    other = next((kind for kind in _OTHERS if kind in target.lower()), None)
    if layout is NEMO_1:
        # Its files are named megatron_t5, ... by NeMo; the parts of an encoder and decoder by keys.
        stem = str(reading.get("name")).partition("megatron_")[2].partition("_")[0]
        parts = str(reading.get("defaults"))
        keys = (key for key in _OTHER_KEYS if reading.get(f"model.{key}") is not None or f"@model.{key}" in parts)
        other = stem if stem in _OTHERS else _OTHER_KEYS.get(next(keys, ""))
    if other is not None:
        told = f"{reading.place}: {layout.name} with a model of the kind {other}; only decoders are read"
        raise CannotRead(f"{told}: write a spec with the workload command (docs/how-to/workloads.md)")


def _kinds(shapes: Shapes) -> dict[str, Any]:
    """Norm, position, activation and tied head, each where it is said or its class is known."""
    reading, found = shapes.reading, dict[str, Any]()
    for field, name, words in (("norm", "normalization", _NORMS), ("position", "position_embedding_type", _POSITIONS)):
        said = shapes.get(name)
        if str(said).lower() in words:
            found[field] = str(words[str(said).lower()])
        elif said is not None or shapes.known is None:
            names = " or ".join(sorted({str(word) for word in words.values()}))
            reading.ask(f"model.{field}", f"{name} is {'not said' if said is None else said}; {names}?")
    gated = shapes.get("gated_linear_unit")
    if shapes.layout is NEMO_1 and shapes.get("activation") is not None:
        gated = str(shapes.get("activation")) in _GATED
    if isinstance(gated, bool):
        found["activation"] = str(Activation.SWIGLU if gated else Activation.GELU)
    else:
        reading.ask("model.activation", "gated_linear_unit is not said; swiglu for three matrices, gelu for two")
    tied = shapes.get("share_embeddings_and_output_weights")
    if isinstance(tied, bool):
        found["tied_head"] = tied
    else:
        reading.ask("model.tied_head", "share_embeddings_and_output_weights is not said; true or false?")
    return found


def _experts(shapes: Shapes) -> dict[str, Any]:
    experts = shapes.whole("num_moe_experts", "model.experts")
    if experts is None or experts <= 1:
        return {}
    width = shapes.whole("moe_ffn_hidden_size", "model.ffn")
    top_k = shapes.whole("moe_router_topk", "model.top_k") or 2
    return {"experts": experts, "top_k": top_k, **({} if width is None else {"ffn": width})}


def _vocabulary(shapes: Shapes) -> dict[str, int | None]:
    """The entries, and what they are padded to where that is not Megatron-Core's 128: NeMo 2 pads the tokenizer's, but
    no vocab_size (nemo/collections/llm/gpt/model/base.py, configure_model), Megatron-Bridge pads where it is asked to
    (models/gpt_provider.py, should_pad_vocab)."""
    reading, layout = shapes.reading, shapes.layout
    whole, entries = (shapes.whole(name, "model.vocab") for name in ("override_vocab_size", "vocab_size"))
    said = reading.get("model.tokenizer.type") if layout is NEMO_1 else None
    if entries is None and said in ("GPT2BPETokenizer", "gpt2", "megatron-gpt-345m"):
        # OpenAI's vocabulary, which these names stand for.
        entries = 50257
    if whole is None and entries is None:
        reading.ask(
            "model.vocab", "the vocabulary is the tokenizer's, which the configuration only names; how many entries?"
        )
    padded = shapes.get("should_pad_vocab") is True if layout is BRIDGE else layout is NEMO_1 or entries is None
    if whole is not None or not padded:
        reading.note("nothing pads the vocabulary, so the tensor ranks must divide it: bound space.tp to those that do")
        return {"vocab": whole or entries, "vocab_multiple": 1}
    each = shapes.whole("make_vocab_size_divisible_by", "model.vocab_multiple")
    return {"vocab": entries, "vocab_multiple": None if each == MEGATRON_DEEPSPEED.vocab_multiple else each}
