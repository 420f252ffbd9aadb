"""What no row of llm-foundry's table can say.

Line references are to mosaicml/llm-foundry at 8c8dd48f (July 2025), llmfoundry/."""

from __future__ import annotations

from collections.abc import Mapping

from meshtune.runners.programs.dialects.base import CannotRead
from meshtune.runners.programs.named_models import read_shapes
from meshtune.runners.programs.reading import Reading
from meshtune.runners.programs.table import table_of

TABLE = table_of("meshtune.runners.programs.llm_foundry")


def kind(reading: Reading) -> str:
    """The rows that a model has. Raises CannotRead for what is no decoder."""
    name = reading.get("model.name")
    if name == "hf_t5":
        told = f"{reading.place}: llm-foundry with an encoder and a decoder (hf_t5); only decoders are read"
        raise CannotRead(f"{told}: write a spec with the workload command (docs/how-to/workloads.md)")
    return {"mpt_causal_lm": "mpt", "hf_causal_lm": "pretrained"}.get(str(name), "other")


# The model.
def pretrained(reading: Reading) -> None:
    changed = reading.get("model.config_overrides")
    own = changed if isinstance(changed, Mapping) else {}
    if sizes := [key for key in own if key not in ("max_seq_len", "attn_config")]:
        told = f"the model has config_overrides of {', '.join(sizes)}"
        reading.ask("model.layers", f"{told}; fill in layers, hidden, heads, ffn, vocab and what differs")
    else:
        read_shapes(reading, {"names": ["model.pretrained_model_name_or_path"]})


def ffn(reading: Reading) -> None:
    """models/layers/ffn.py, resolve_ffn_hidden_size."""
    path, name = "model.ffn", "model.expansion_ratio"
    given, hidden = reading.whole("model.ffn_config.ffn_hidden_size", path), reading.fields.get("model.hidden")
    ratio = 4 if reading.get(name) is None else reading.get(name)
    if given is not None or hidden is None:
        reading.fields[path] = given
    elif isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio * hidden == int(ratio * hidden):
        told = f"{name} is {ratio}, which gives no whole width; how wide is the block inside?"
        reading.ask(path, told)
    else:
        reading.put(path, int(hidden * ratio), name)


def kv_heads(reading: Reading) -> None:
    path, name = "model.kv_heads", "model.attn_config.kv_n_heads"
    kind_ = reading.get("model.attn_config.attn_type") or "multihead_attention"
    if kind_ == "multiquery_attention":
        reading.fields[path] = 1
    elif kind_ == "grouped_query_attention":
        reading.put(path, reading.whole(name, path), name)
    elif kind_ != "multihead_attention":
        reading.ask(path, f"model.attn_config.attn_type is {kind_}; how many heads have keys and values?")


def experts(reading: Reading) -> None:
    name = "model.ffn_config.moe_num_experts"
    if reading.get("model.ffn_config.ffn_type") not in TABLE.words("layers.experts"):
        return
    if not reading.has(name):
        reading.ask("model.experts", f"{name} is not said; fill in what training uses")
    elif number := reading.whole(name, "model.experts"):
        reading.put("model.experts", number, name)


# The plan.
def sharding(reading: Reading) -> None:
    """Without fsdp_config nothing is sharded."""
    if reading.get("fsdp_config") is None:
        reading.fields["zero_stage"] = 0
        told = "no fsdp_config: replicas shard nothing, and so do trials; write `fsdp_config: {}` to try sharding"
        reading.note(told)


def micro_batch(reading: Reading) -> None:
    """utils/config_utils.py, calculate_batch_size_info: the default is auto; no more than a device's share."""
    path, name = "baseline.micro_batch_size", "device_train_microbatch_size"
    if reading.get(name) in (None, "auto"):
        told = f"{name} is auto: composer halves it until a step fits; its log tells the size that it found"
        reading.ask(path, told)
        return
    micro, batch, tp = reading.whole(name, path), reading.fields.get("global_batch_size"), reading.fields.get("tp", 1)
    share = batch // (reading.devices // tp) if batch and reading.devices and reading.devices >= tp else micro
    if micro and share and micro > share:
        reading.note(f"{name}({micro}) is more than a device's {share} sequences, which composer takes")
        micro = share
    reading.put("micro_batch_size", micro, name)
