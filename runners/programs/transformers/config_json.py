"""A model's config.json, as transformers writes it, as fields of ModelSpec but for seq_len, which no such file has.

Families, keys and the defaults of keys that a file leaves out stand in the table, by transformers 5.23.0
(models/*/configuration_*.py). Not counted there either: biases, and norms of queries, keys or after a block; gated
GELUs count as SwiGLU, which has as many matrices of the same widths, and attention in chunks (Llama 4) as whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshtune.runners.json_files import shown
from meshtune.runners.programs.table import table_of
from meshtune.search_spaces.checks import MAX_WHOLE, InvalidValue, Problem, names_in

_KEYS: Mapping[str, str] = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
}
# The field of ModelSpec that a key of the file says.
SHAPE_OF: Mapping[str, str] = {key: shape for shape, key in _KEYS.items()}
_REQUIRED = ("layers", "hidden", "heads", "ffn", "vocab")
_OF_LATENT = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_LISTS = table_of("meshtune.runners.programs.transformers").lists
# No decoders, by words of their names.
OTHERS = names_in(_LISTS["models"]["others"])
DECODERS = "meshtune knows decoder-only transformers alone"
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    name: {**_LISTS["plain_family"], **family} for family in _LISTS["family"] for name in family["of"].split()
}


def read_config(config: object) -> dict[str, Any]:
    """Raises InvalidValue with every key that is missing or not understood, `model_type` first."""
    if not isinstance(config, Mapping):
        raise InvalidValue([Problem("", "must be the mapping of a config.json")])
    outer = FAMILIES.get(str(config.get("model_type")), _LISTS["plain_family"])
    defaults, has_tower = outer["defaults"], bool({"vision_config", "mm_vision_tower"} & config.keys())
    if isinstance(inner := config.get("text_config"), Mapping):
        # Of a model of images and text what its text_config says, with what it shares.
        config = {**config, **inner}
    kind = config.get("model_type")
    family = FAMILIES.get(str(kind))
    if family is None:
        raise InvalidValue([Problem("model_type", f"is {shown(kind)}; known are {', '.join(FAMILIES)}")])
    if has_tower and not outer["tower"]:
        raise InvalidValue([Problem("vision_config", "a tower of this kind of model is not known: its weights count")])
    said = {key: value for key, value in config.items() if value is not None}
    fields = _Reading({**defaults, **family["defaults"], **said}, family).fields()
    return fields | ({"tower_parameters": outer["tower"]} if has_tower else {})


class _Reading:
    def __init__(self, config: Mapping[str, Any], family: Mapping[str, Any]) -> None:
        self.config, self.family = config, family
        self.problems: list[Problem] = []

    def fields(self) -> dict[str, Any]:
        family = self.family
        found = self.sizes()
        found |= {"norm": family["norm"], "activation": family["activation"], "position": family["position"]}
        found["tied_head"] = bool(self.config.get("tie_word_embeddings", False))
        found |= self.experts(found) | self.attention(found)
        if self.problems:
            raise InvalidValue(self.problems)
        return found

    def whole(self, key: str, default: int | None = None) -> int:
        """A size; 0, and a problem, where it is none."""
        value = self.config.get(key)
        value = default if value is None else value
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_WHOLE:
            return value
        self.problems.append(Problem(key, f"is {shown(value)}; it must be a whole number"))
        return 0

    def sizes(self) -> dict[str, Any]:
        keys = {**_KEYS, **self.family["keys"]}
        found: dict[str, Any] = {}
        for shape, key in keys.items():
            wider = shape == "ffn" and self.family["ffn_factor"] and self.config.get(key) is None
            if wider and "hidden" in found:
                found["ffn"] = self.family["ffn_factor"] * found["hidden"]
            elif shape in _REQUIRED or self.config.get(key) is not None:
                found[shape] = self.whole(key)
        return found

    def experts(self, found: Mapping[str, Any]) -> dict[str, Any]:
        if not self.family["experts"]:
            return {}
        fields = ("experts", "top_k", "ffn", "shared_ffn")
        said = {field: self.whole(key) for field, key in zip(fields, self.family["experts"], strict=False)}
        if self.family["dense_first"]:
            if self.config.get("moe_layer_freq", 1) != 1:
                self.problems.append(Problem("moe_layer_freq", f"is {shown(self.config['moe_layer_freq'])}, not 1"))
            shared = self.whole("n_shared_experts", 0) * said["ffn"]
            dense = self.whole("first_k_dense_replace")
            further = self.whole("num_nextn_predict_layers", 0)
            return said | {"shared_ffn": shared, "mtp_layers": further} | self.dense(dense, 1, found["ffn"])
        if self.family["shared"]:
            every = self.whole("interleave_moe_layer_step", 1)
            listed = self.config.get("moe_layers")
            if listed is not None and listed != list(range(every - 1, found["layers"], max(1, every))):
                self.problems.append(Problem("moe_layers", "is not every interleave_moe_layer_step-th layer"))
            of_dense = self.whole("intermediate_size_mlp") if every > 1 else 0
            return said | {"shared_ffn": said["ffn"]} | self.dense(0, every, of_dense)
        if self.config.get("mlp_only_layers") or self.config.get("decoder_sparse_step", 1) != 1:
            told = "and mlp_only_layers: only models with experts in every layer are read of this kind"
            self.problems.append(Problem("decoder_sparse_step", told))
        return said

    @staticmethod
    def dense(layers: int, every: int, width: int) -> dict[str, Any]:
        if layers == 0 and every == 1:
            return {}
        return {"dense_layers": layers, "moe_every": every, "dense_ffn": width}

    def attention(self, found: Mapping[str, Any]) -> dict[str, Any]:
        if self.family["latent"]:
            latent = {key: self.whole(key) for key in _OF_LATENT}
            return {"latent_attention": latent | {"q_lora_rank": self.whole("q_lora_rank", 0)}}
        said: dict[str, Any] = {}
        if self.config.get("head_dim") is not None:
            said["head_dim"] = self.whole("head_dim")
        return said | self.window(found["layers"])

    def window(self, layers: int) -> dict[str, Any]:
        """sliding_window, where the file has one and uses it, and which layers go without."""
        tokens = self.config.get("sliding_window") if self.family["windows"] else None
        if tokens is None or self.config.get("use_sliding_window") is False:
            return {}
        qwen = str(self.config["model_type"]).startswith("qwen")
        if qwen and self.config.get("use_sliding_window") is not True:
            return {}
        every = self.whole("sliding_window_pattern", 0)
        if (kinds := self.config.get("layer_types")) is not None:
            every = self.every_of(kinds, layers)
        elif qwen and self.config.get("max_window_layers") not in (None, 0):
            told = "layers without a window before those with one: only every so many-th can be said; give layer_types"
            self.problems.append(Problem("max_window_layers", told))
        if every == 1:
            return {}
        return {"window": self.whole("sliding_window"), "full_attention_every": every}

    def every_of(self, kinds: object, layers: int) -> int:
        """0 where all layers have the window, 1 where none has it."""
        windowed = [kind == "sliding_attention" for kind in kinds] if isinstance(kinds, list) else []
        every = windowed.index(False) + 1 if False in windowed else 0
        regular = [every == 0 or (index + 1) % every != 0 for index in range(len(windowed))]
        if len(windowed) != layers or windowed != regular:
            self.problems.append(Problem("layer_types", "do not repeat with one full layer at the end of each period"))
        return every
