"""The shapes of torchtitan's models by name and flavor, and what its configuration functions of 0.3.0 set.

Flavors from torchtitan/models/*/__init__.py of 0.1.0 to 0.3.0; the llama3 flavors named here have had one shape since
2024-04 but for `debugmodel`, whose layers and vocabulary changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meshtune.search_spaces.presets import model_presets

# Flavors that are a preset's model. vocab is 128256 in 0.2 and 0.3; before, the tokenizer's.
_PRESETS: Mapping[tuple[str, str], str] = {
    **{("llama3", flavor): "llama3-8b" for flavor in ("8B", "8B_flex", "8B_varlen")},
    ("llama3", "70B"): "llama3-70b",
    ("llama3", "405B"): "llama3-405b",
    ("llama3", "1B"): "llama3.2-1b",
    ("llama3", "3B"): "llama3.2-3b",
    ("llama2", "13B"): "llama2-13b",
}
_QWEN3 = {"heads": 32, "kv_heads": 8, "vocab": 151936}
# Of llama2 the vocabulary is the tokenizer's. Of qwen3 those whose heads of 128 make up the width; norms of queries and
# keys are not counted.
_SHAPES: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("llama2", "7B"): {"layers": 32, "hidden": 4096, "heads": 32, "ffn": 11008, "vocab": 32000},
    ("llama2", "70B"): {"layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672, "vocab": 32000},
    ("qwen3", "1.7B"): _QWEN3 | {"layers": 28, "hidden": 2048, "heads": 16, "ffn": 6144, "tied_head": True},
    ("qwen3", "8B"): _QWEN3 | {"layers": 36, "hidden": 4096, "ffn": 12288},
    ("qwen3", "14B"): _QWEN3 | {"layers": 40, "hidden": 5120, "heads": 40, "ffn": 17408},
}
# Models that a decoder of equal layers does not describe, and why.
UNLIKE: Mapping[str, str] = {
    "deepseek_v3": "latent attention, shared experts and dense first layers",
    "gpt_oss": "attention in windows, biases and heads wider than the model",
    "kimi_k2_7": "latent attention and shared experts",
    "llama3": "shapes that changed between releases",
    "llama4": "shared experts, and layers without experts in between",
    "muse_glimmer": "a layout of its own",
    "qwen3": "heads that are wider than the model",
    "qwen3_5": "linear attention in some layers",
}
# What is no language model.
NO_DECODER: Mapping[str, str] = {"flux": "an image model", "vlm": "a model of images and text"}
_FIELDS = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "tied_head")


# The same from 0.2.0 to 0.3.0, and another one before.
_DEBUG = {"name": "debugmodel", "layers": 6, "hidden": 256, "heads": 16, "ffn": 768, "vocab": 2048}


def shapes_of(name: str, flavor: str, *, since_0_2: bool = True) -> dict[str, Any] | None:
    """Fields of ModelSpec but for seq_len; None where the flavor is not known or has no such shape."""
    # Llama 2 was called llama in April 2024; the names with torchft train the same models.
    name = "llama2" if name == "llama" else name.removesuffix("_ft")
    if (name, flavor) == ("llama3", "debugmodel") and since_0_2:
        return dict(_DEBUG)
    if preset := _PRESETS.get((name, flavor)):
        found = model_presets()[preset]
        return {"name": preset, **{key: found[key] for key in _FIELDS if key in found}}
    shapes = _SHAPES.get((name, flavor))
    return None if shapes is None else {"name": f"{name}-{flavor}".lower(), **shapes}


@dataclass(frozen=True, slots=True)
class ConfigFunction:
    """What a function of torchtitan/models/*/config_registry.py at 0.3.0 sets otherwise than the defaults. batch: of a
    rank of data parallelism."""

    model: str
    flavor: str
    batch: int = 8
    seq_len: int = 2048
    recompute: str = "selective"
    parallelism: Mapping[str, Any] = field(default_factory=dict)
    compile: Mapping[str, Any] = field(default_factory=dict)
    disable_cuda_graphs: bool = False

    def sections(self) -> dict[str, dict[str, Any]]:
        graphs = {"disable_cuda_graphs": True} if self.disable_cuda_graphs else {}
        return {
            "training": {"local_batch_size": self.batch, "seq_len": self.seq_len, **graphs},
            "parallelism": dict(self.parallelism),
            "compile": dict(self.compile),
            "activation_checkpoint": {"mode": self.recompute},
        }


_INTERLEAVED = {"pipeline_parallel_schedule": "Interleaved1F1B"}
_TENSOR = {"tensor_parallel_degree": 8}
_ASYNC = {"enable": True, "enable_async_tensor_parallel": True}
_MODEL, _LOSS = ({"enable": True, "components": [component]} for component in ("model", "loss"))
_SPREAD, _SPREAD_BY_2 = (_INTERLEAVED | {"expert_parallel_degree": degree} for degree in (8, 2))
CONFIG_FUNCTIONS: Mapping[str, ConfigFunction] = {
    "llama3_debugmodel": ConfigFunction("llama3", "debugmodel", parallelism=_INTERLEAVED),
    "llama3_8b": ConfigFunction("llama3", "8B", 1, 8192),
    "llama3_8b_mxfp8": ConfigFunction("llama3", "8B", 1, 8192, compile=_MODEL),
    "llama3_70b": ConfigFunction("llama3", "70B", 8, 8192, "full", _TENSOR),
    "llama3_405b": ConfigFunction("llama3", "405B", 2, 8192, "full", _TENSOR, _ASYNC),
    "qwen3_0_6b": ConfigFunction("qwen3", "0.6B", 4, 4096),
    "qwen3_1_7b": ConfigFunction("qwen3", "1.7B", 4, 4096),
    "qwen3_14b": ConfigFunction("qwen3", "14B", 4, 4096, "full"),
    "qwen3_32b": ConfigFunction("qwen3", "32B", 2, 4096, "full"),
    "qwen3_30b_a3b": ConfigFunction("qwen3", "30B-A3B", 2, 4096, "full"),
    "deepseek_v3_16b": ConfigFunction("deepseek_v3", "16B", 4, 4096, "selective", _SPREAD, _LOSS, True),
    "deepseek_v3_671b": ConfigFunction("deepseek_v3", "671B", 4, 4096, "selective", _SPREAD_BY_2, _LOSS, True),
    "gpt_oss_20b": ConfigFunction("gpt_oss", "20b", 1, 8192, "full"),
    "gpt_oss_120b": ConfigFunction("gpt_oss", "120b", 1, 8192, "full"),
}
