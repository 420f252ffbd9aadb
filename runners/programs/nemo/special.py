"""What no row of the table of NeMo and Megatron-Bridge can say: shapes that a model's class has built in, what pads the
vocabulary, and settings of megatron-core that stand for each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshtune.runners.json_files import shown
from meshtune.runners.programs.dialects.config_import import holds
from meshtune.runners.programs.reading import Reading
from meshtune.runners.programs.table import table_of
from meshtune.search_spaces.physics.framework_profiles import MEGATRON_DEEPSPEED
from meshtune.search_spaces.plan import Schedule

TABLE = table_of("meshtune.runners.programs.nemo")
_CLASSES: Mapping[str, Mapping[str, Any]] = TABLE.lists["classes"]


# The model.
def built_in(reading: Reading) -> None:
    """What the model's class says without arguments counts as said; what another class says is not known."""
    kind = str(reading.get("{model}._target_") or "").rpartition(".")[2]
    # NeMo 1 names no class, and a file without layers restores its model.
    kind = kind or ("GPTConfig" if reading.has("model.num_layers") else "model that is restored")
    if kind not in _CLASSES:
        reading.more = f"the {kind}"
        return
    own = _CLASSES[kind]
    named = {
        reading.placed(f"{{model}}.{name}"): value
        for name, value in {**_CLASSES.get(own.get("of", ""), {}), **own}.items()
    }
    reading.given = {
        **{name: value for name, value in named.items() if not holds(reading.given, name)},
        **reading.given,
    }


def kv_heads(reading: Reading) -> None:
    """A group per head without words (TransformerConfig)."""
    name, path = "{model}.num_query_groups", "model.kv_heads"
    if reading.has(name):
        reading.put(path, reading.whole(name, path), name)
    else:
        reading.complete(path, reading.placed(name), "as many as heads")


def q_lora_rank(reading: Reading) -> None:
    """Of latent attention; null has queries from the hidden state."""
    name, path = "{model}.q_lora_rank", "model.latent_attention"
    if not reading.flag("{model}.multi_latent_attention", path):
        return
    if holds(reading.given, reading.placed(name)):
        reading.put(f"{path}.q_lora_rank", reading.whole(name, path, least=0) or 0, name)
    else:
        reading.ask(path, f"{reading.placed(name)} is not said; fill in what training uses")


def head_dim(reading: Reading) -> None:
    """Said where heads are not as wide as the model together; latent attention does not use it."""
    width = reading.whole("{model}.kv_channels", "model.head_dim")
    latent = reading.flag("{model}.multi_latent_attention")
    if width and not latent and width * (reading.fields.get("model.heads") or 0) != reading.fields.get("model.hidden"):
        reading.put("model.head_dim", width, "{model}.kv_channels")


def experts(reading: Reading) -> None:
    number = reading.whole("{model}.num_moe_experts", "model.experts", least=0)
    if number is not None and number > 1:
        reading.put("model.experts", number, "{model}.num_moe_experts")


def ffn(reading: Reading) -> None:
    """Without words four times as wide as the model (TransformerConfig)."""
    path, hidden = "model.ffn", reading.fields.get("model.hidden")
    of_experts = "model.experts" in reading.fields and reading.has("{model}.moe_ffn_hidden_size")
    name = "{model}.moe_ffn_hidden_size" if of_experts else "{model}.ffn_hidden_size"
    if reading.has(name):
        reading.put(path, reading.whole(name, path), name)
    elif hidden and reading.complete(path, reading.placed(name), 4 * hidden):
        reading.fields[path] = 4 * hidden
    elif not hidden:
        reading.ask(path, f"{reading.placed(name)} is not said; fill in what training uses")


def vocab(reading: Reading) -> None:
    whole, entries = (
        reading.whole(f"{{model}}.{name}", "model.vocab") for name in ("override_vocab_size", "vocab_size")
    )
    tokenizer = reading.get("model.tokenizer.type")
    if entries is None and isinstance(tokenizer, str):
        entries = TABLE.lists["tokenizers"].get(tokenizer)
    if whole is None and entries is None:
        told = "the vocabulary is the tokenizer's, which the configuration only names; how many entries?"
        reading.ask("model.vocab", told)
    pads = whole is None and reading.fields.get("pads", entries is None)
    reading.fields |= {"model.vocab": whole or entries, "pads": pads}


def vocab_multiple(reading: Reading) -> None:
    """What the vocabulary is padded to, where that is not Megatron-Core's 128."""
    # It is the last of the model: of the rest of the file defaults are known.
    reading.more = ""
    if not reading.fields.pop("pads"):
        told = "nothing pads the vocabulary, so the tensor ranks must divide it: bound space.tp to those that do"
        reading.note(told)
        reading.fields["model.vocab_multiple"] = 1
        return
    each = reading.whole("{model}.make_vocab_size_divisible_by", "model.vocab_multiple")
    reading.fields["model.vocab_multiple"] = None if each == MEGATRON_DEEPSPEED.vocab_multiple else each


# The plan.
def devices(reading: Reading) -> None:
    """What the file says goes before the start's; -1 devices are all of them."""
    started = reading.fields.get("devices_per_node")
    for field, name in (("nodes", "trainer.num_nodes"), ("devices_per_node", "trainer.devices")):
        value = reading.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            reading.put(field, value, name)
    nodes, each = reading.fields.get("nodes"), reading.fields.get("devices_per_node")
    if started not in (None, each):
        told = f"but the start has {started} ranks per node; the baseline counts {each}"
        reading.ask("", f"{reading.written('trainer.devices')}, {told}")
    reading.devices = nodes * each if nodes and each else None


def context(reading: Reading) -> None:
    """The kind stays in trials, and a plan has it where there is one."""
    kind = reading.fields.pop("context", None)
    reading.kept |= {"context": kind} if kind else {}
    if kind and reading.fields.get("cp", 1) > 1:
        reading.fields["context"] = kind


def chunks(reading: Reading) -> None:
    """Model chunks of a rank stay as they are; without a pipeline there are none."""
    name, pp = "{parallel}.virtual_pipeline_model_parallel_size", reading.fields.get("pp")
    number = reading.whole(name, "baseline.vpp")
    if number in (None, 1) or pp == 1:
        return
    own = {"vpp": number, "schedule": str(Schedule.INTERLEAVED)}
    reading.fields |= own
    reading.kept |= {**own, **({"pp": pp} if pp else {})}
    reading.note(f"{reading.written(name)} and pp {pp} stay as they are in trials")


def ends(reading: Reading) -> None:
    """Embedding and loss counted as a layer each, whatever pp is; else predictions would not know it."""
    said = {
        field: int(
            any(reading.get(f"{section}.account_for_{part}_in_pipeline_split") for section in ("{model}", "{parallel}"))
        )
        for field, part in (("first_stage_less_layers", "embedding"), ("last_stage_less_layers", "loss"))
    }
    pp = reading.fields.get("pp", 1)
    if not any(said.values()) or ("pp" in reading.kept and not reading.fields.get("vpp")):
        return
    if pp * reading.fields.get("vpp", 1) > 2:
        reading.fields |= said
        reading.kept |= said
    else:
        # Of one or two chunks it says nothing, and of more it would.
        reading.kept["pp"] = pp
        reading.note(f"embedding and loss count as layers of the pipeline: pp {pp} stays as it is in trials")


def interval(reading: Reading) -> None:
    """Which layers recompute, of `full`: units of so many, or with `block` so many of each chunk."""
    name, path = "{recompute}_num_layers", "baseline.recompute_interval"
    some = reading.whole(name, path)
    if reading.get("{recompute}_method") != "block":
        if some is not None and some > 1:
            reading.note(f"units of {some} layers are computed again together; predictions take them one by one")
        return
    chunks, layers = reading.fields.get("pp", 1) * reading.fields.get("vpp", 1), reading.fields.get("model.layers")
    each = layers // chunks if layers else 0
    if not some or not each or (some < each and each % some):
        told = f"so many of a chunk's {each or 'unknown'} layers are computed again; one in how many is that?"
        reading.ask(path, f"{reading.written(name)}: {told}")
    elif some < each:
        reading.put("recompute_interval", each // some, name)
        reading.kept["recompute_interval"] = each // some


def recompute_settings(reading: Reading) -> dict[str, Any]:
    """TransformerConfig: `full` needs a method and a number, and `selective` takes neither. The user's own words stand
    for the user's own plan."""
    own = reading.fields.get("recompute")
    if own is None:
        return {}
    words: dict[str, dict[str, Any]] = {
        "granularity": {"none": None, "selective": "selective", "full": "full"},
        "method": {"none": None, "selective": None, "full": "uniform"},
        "num_layers": {"none": None, "selective": None, "full": 1},
    }
    found = {}
    for part, word in words.items():
        name = reading.placed(f"{{recompute}}_{part}")
        if holds(reading.given, name):
            word[own] = reading.get(name)
        found[name] = {"{recompute}": word}
    return found


def expert_degree(reading: Reading) -> dict[str, Any]:
    """Said always, as its default follows from ep."""
    name = reading.placed("{parallel}.expert_tensor_parallel_size")
    return {name: "{expert_tp}"} if reading.fields.get("model.experts") else {}


def zero_stage(reading: Reading) -> None:
    """The stage of Megatron-FSDP, or 1 with the distributed optimizer; one that is on stays on, because overlaps that
    recipes turn on with it are refused without it."""
    path, sharding = "baseline.zero_stage", "{ddp}.data_parallel_sharding_strategy"
    on = [name for name in TABLE.lists["sharding"]["distributed"].split() if reading.flag(name, path)]
    stage: int | None = int(bool(on))
    if any(reading.get(name) not in (None, False) for name in TABLE.lists["sharding"]["fsdp"].split()):
        stage = TABLE.lists["sharding"]["stages"].get(reading.text(sharding, path))
        if stage is None:
            told = f"FSDP is on, {reading.placed(sharding)} is {shown(reading.get(sharding))}"
            reading.ask(path, f"{told}; which stage, here and in workload.fixed?")
    reading.fields["zero_stage"] = stage


def stage_stays(reading: Reading) -> None:
    if stage := reading.fields.get("zero_stage"):
        reading.kept["zero_stage"] = stage


def plugin(reading: Reading) -> None:
    """The precision that a plugin of Lightning's sets counts as the trainer's, and so do its 8 bits."""
    plugins = reading.get("trainer.plugins")
    for own in plugins if isinstance(plugins, list) else [plugins]:
        if isinstance(own, Mapping) and own.get("precision") is not None:
            said = {f"trainer.{name}": own.get(name) for name in ("precision", "fp8", "fp4")}
            reading.given = {**reading.given, **said}
            return


def timing(reading: Reading) -> None:
    if "TimingCallback" not in str(reading.get("trainer")):
        reading.ask("", "trainer.callbacks has no TimingCallback, which prints step times; add it, or a pattern")


def composed(reading: Reading) -> None:
    """Files that hydra lays under this one."""
    names = [name for name in reading.get("defaults") or [] if name != "_self_" and "optional" not in str(name)]
    if names:
        reading.ask("", f"defaults names other files ({names}), which are not read; trials have this file alone")
