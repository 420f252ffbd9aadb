"""What no row of Megatron's table can say: widths that follow from others, layers without experts, unequal stages of a
pipeline, the layers that recompute, and DeepSpeed's own file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from meshtune.runners.programs.dialects.base import without
from meshtune.runners.programs.dialects.bash.expansion import as_written
from meshtune.runners.programs.megatron.command_line import CommandLine
from meshtune.runners.programs.megatron.flags import Program
from meshtune.runners.programs.megatron.options import VOCAB_MULTIPLE, WHOLE_VOCABULARY, Dtype, MegatronOptions
from meshtune.runners.programs.megatron.pipeline_split import (
    ACCOUNTS,
    ENDS,
    LAYOUT,
    METHOD,
    UNEVEN,
    split_of_ends,
    split_of_layout,
    split_of_method,
    words_of,
    written_out,
)
from meshtune.runners.programs.table import facts_of
from meshtune.runners.untrusted_text import UnreadableText, read_json
from meshtune.search_spaces.layer_shapes import Shape
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.framework_profiles import MEGATRON_DEEPSPEED
from meshtune.search_spaces.plan import Plan, Recompute
from meshtune.search_spaces.stages import EVEN, Split, plain_split

_FIRST_DENSE = re.compile(r"\(?\[0\](?:\*(?P<dense>\d{1,4}))?\+\[1\](?:\*\d{1,4})?\)?")
_REPEATED = re.compile(r"\(*\[0\](?:\*(?P<dense>\d{1,4}))?\+\[1\]\)\*\d{1,4}\)?")
_CHUNKS = ("--num-virtual-stages-per-pipeline-rank", "--num-layers-per-virtual-pipeline-stage")
_FORMATS = {"bf16": Dtype.BFLOAT16, "fp16": Dtype.FLOAT16}


# Written.
def facts(model: ModelSpec, plan: Plan, options: MegatronOptions) -> dict[str, Any]:
    """What the table's rows write of a run (Megatron-LM d98e8a64: core/transformer/transformer_config.py, by whose
    fields the arguments are called; megatron/training/arguments.py, moe_freq_type and tuple_type)."""
    found = {**facts_of(model, plan), "dtype": str(options.dtype), "run": (model, plan, options.given)}
    mixed = model.expert_layers not in (0, model.layers)
    found["dense_width"] = (model.dense_ffn or model.ffn) if mixed else model.ffn
    if mixed:
        found |= {"expert_width": model.ffn, "layer_pattern": _layer_pattern(model)}
    if options.given.keys() & set(WHOLE_VOCABULARY):
        found.pop("model.vocab_multiple", None)
    if Shape.WINDOW in model.shapes:
        # flash_attn's window: so many keys to the left of the token, which it counts besides.
        found["window_size"] = f"{model.window - 1},0"
    if plan.recompute is Recompute.FULL:
        some = plan.recompute_interval > 1
        found["recompute_method"] = "block" if some else "uniform"
        found["recompute_layers"] = model.layers // (plan.pp * plan.vpp * plan.recompute_interval) if some else 1
    if not options.has_data:
        found["made_up_vocab"] = model.vocab
    return found


def _layer_pattern(model: ModelSpec) -> str:
    """--moe-layer-freq: which layers have experts."""
    plain = f"[0]*{model.dense_layers}"
    period = f"([0]*{model.moe_every - 1}+[1])*{model.expert_layers}"
    rest = model.layers - model.dense_layers - model.moe_every * model.expert_layers
    parts = (plain if model.dense_layers else "", period if model.moe_every > 1 else f"[1]*{model.expert_layers}")
    return "(" + "+".join(filter(None, (*parts, f"[0]*{rest}" if rest else ""))) + ")"


def split_settings(facts: Mapping[str, Any]) -> dict[str, Any]:
    model, plan, given = facts["run"]
    return {name: values[0] if values else True for name, *values in words_of(model, plan, given)}


# The model.
def ffn(line: CommandLine) -> None:
    names = [name for name in ("--moe-ffn-hidden-size", "--ffn-hidden-size") if line.has(name)]
    hidden, activation = line.fields.get("model.hidden"), line.fields.get("model.activation")
    if len(names) == 2 and line.has("--expert-interval"):
        line.ask("model.ffn", f"{' and '.join(names)}: trials have one width, and your layers without experts another")
    elif names:
        line.put("model.ffn", line.whole(names[0], "model.ffn"), *names)
    elif hidden is None or activation is None:
        line.ask("model.ffn", "--ffn-hidden-size is not said; fill in what training uses")
    elif activation == "swiglu" and not line.programs & {Program.LM, Program.DEEPSPEED, Program.ARGONNE}:
        line.ask("model.ffn", "--ffn-hidden-size is not said, and this fork's width for --swiglu is not known")
    else:
        # arguments.py, validate_args: gated ones get two thirds, in multiples of 64.
        width = hidden // 24 * 64 if activation == "swiglu" else 4 * hidden
        if line.complete("model.ffn", "--ffn-hidden-size", width):
            line.fields["model.ffn"] = width


def head_dim(line: CommandLine) -> None:
    """A width of heads that latent attention does not use."""
    if not line.has("--multi-latent-attention") and line.has("--kv-channels"):
        line.put("model.head_dim", line.whole("--kv-channels", "model.head_dim"), "--kv-channels")


def vocab_multiple(line: CommandLine) -> None:
    """What is padded to it where that is not Megatron's default; 1 where the size after padding is said."""
    multiple = 1 if line.has(*WHOLE_VOCABULARY) else line.whole(VOCAB_MULTIPLE, "model.vocab_multiple")
    if multiple not in (None, MEGATRON_DEEPSPEED.vocab_multiple):
        line.fields["model.vocab_multiple"] = multiple


def experts(line: CommandLine) -> None:
    if not line.has("--num-experts"):
        line.complete("model.experts", "--num-experts", "none")
        return
    number = line.whole("--num-experts", "model.experts", least=0)
    if not number or (number == 1 and line.through_deepspeed):
        return
    line.put("model.experts", number, "--num-experts")
    if line.through_deepspeed and str(line.get("--expert-interval") or 2) != "1":
        line.note("--expert-interval is not 1: trials keep it; predictions know experts in every layer alone")
    if not line.through_deepspeed and not line.has("--disable-bias-linear"):
        told = "experts with biases: trials leave the biases out, because Megatron refuses them with tp > 1"
        line.ask("", f"{told}. That trains another model; say --disable-bias-linear, or use `kind: command`")


def layers_without_experts(line: CommandLine) -> None:
    """Of arguments.py, moe_freq_type, the plain forms."""
    if not line.has("--moe-layer-freq"):
        return
    text = (line.text("--moe-layer-freq", "model.dense_layers") or "").replace(" ", "")
    layers = line.fields.get("model.layers")
    if text == "1":
        return
    if pattern := _FIRST_DENSE.fullmatch(text):
        line.fields["model.dense_layers"] = int(pattern["dense"] or 1)
    elif repeated := _REPEATED.fullmatch(text):
        line.fields["model.moe_every"] = int(repeated["dense"] or 1) + 1
    elif text.isdigit() and layers and layers % int(text) == 0:
        # One in so many has experts, its first one: as many of each kind as where it is the last.
        line.fields["model.moe_every"] = int(text)
    else:
        line.ask("model.dense_layers", f"--moe-layer-freq {text}: how many first layers are dense, and then how many?")
        return
    if line.has("--ffn-hidden-size"):
        line.fields["model.dense_ffn"] = line.whole("--ffn-hidden-size", "model.dense_ffn")


def window(line: CommandLine) -> None:
    """--window-size LEFT,RIGHT: keys beside the token's own."""
    if not line.has("--window-size"):
        return
    text = (line.text("--window-size", "model.window") or "").strip("()").replace(" ", "")
    left, _, right = text.partition(",")
    if left.isdigit() and right in ("0", "-1"):
        line.put("model.window", int(left) + 1, "--window-size")
    else:
        line.ask("model.window", f"--window-size {text}: how many tokens does a token attend to, itself included?")


# The plan.
def chunks(line: CommandLine) -> None:
    """Model chunks of a rank, which interleave."""
    number = _chunks(line, line.fields.get("pp"))
    line.chunks = number
    if number is not None and number > 1:
        line.fields |= {"vpp": number, "schedule": "interleaved"}


def _chunks(line: CommandLine, pp: int | None) -> int | None:
    if line.has(_CHUNKS[0]):
        return line.whole(_CHUNKS[0], "baseline.vpp")
    if line.has(LAYOUT) and pp is not None:
        stages = written_out(line.text(LAYOUT) or "").count("|") + 1
        if stages % pp:
            line.ask("baseline.vpp", f"{LAYOUT} has {stages} stages, no multiple of pp({pp})")
            return None
        return stages // pp
    if not line.has(_CHUNKS[1]):
        return 1
    each, layers = line.whole(_CHUNKS[1], "baseline.vpp"), line.fields.get("model.layers")
    if layers is None or pp is None or not each:
        line.ask("baseline.vpp", f"{_CHUNKS[1]}: into how many chunks it cuts a stage is not known here")
        return None
    layers += sum(line.has(name) for name in ACCOUNTS)
    if layers % (pp * each):
        line.ask("baseline.vpp", f"pp({pp}) chunks of {each} layers do not divide the model's {layers}")
        return None
    return int(layers // (pp * each))


def split(line: CommandLine) -> None:
    """The layers that the first and the last chunk hold fewer; what a plan has no word for is asked, and stays."""
    said = [name for name in (*UNEVEN, METHOD) if line.has(name)]
    pp, chunks = line.fields.get("pp"), line.chunks
    if not said:
        return
    found = EVEN if pp == 1 else None
    if found is None and pp is not None and chunks is not None:
        found = _split_said(line, pp, chunks)
    if found is None:
        told = "stages that no plan has a word for: all hold as many layers, at least one, but the first and the last"
        fit = "they fit this pp alone: keep it by `space: {pp: [...]}`, or delete the argument"
        written = ", ".join(map(line.written, said))
        line.ask("", f"{written}: {told}; {fit}. Predictions do not know them")
        return
    # What the plan says trials write; which argument they write is a matter of what the program knows.
    line.given = without(line.given, UNEVEN)
    ends = zip(("first_stage_less_layers", "last_stage_less_layers"), found, strict=True)
    line.fields |= {field: fewer for field, fewer in ends if fewer}


def _split_said(line: CommandLine, pp: int, chunks: int) -> Split | None:
    if line.has(METHOD):
        method = split_of_method(line.text(METHOD) or "")
        return None if method is None else plain_split(method, pp * chunks)
    if line.has(LAYOUT):
        layout = written_out(line.text(LAYOUT) or "")
        return split_of_layout(layout, pp * chunks, line.fields.get("model.mtp_layers") or 0)
    if line.has(*ENDS):
        layers, ends = line.fields.get("model.layers"), [line.whole(name) for name in ENDS]
        unknown = layers is None or any(line.has(name) and end is None for name, end in zip(ENDS, ends, strict=True))
        return None if unknown or layers is None else split_of_ends(layers, pp, chunks, *ends)
    first, last = (int(line.has(name)) for name in ACCOUNTS)
    return plain_split((first, last), pp * chunks)


def interval(line: CommandLine) -> None:
    """Which layers recompute: one in so many, where they are a number of each chunk."""
    path, names = "baseline.recompute_interval", ("--recompute-num-layers", "--checkpoint-num-layers")
    name = line.first(names)
    some = line.whole(name, path) if name else 1 if line.complete(path, names[0], 1) else None
    if some is None:
        return
    if line.text("--recompute-method", path) != "block":
        if some > 1:
            told = f"units of {some} layers recompute together; trials recompute layer by layer, which keeps more"
            line.ask("", told)
        return
    layers, pp = line.fields.get("model.layers"), line.fields.get("pp")
    each = layers // (pp * line.chunks) if layers and pp and line.chunks else 0
    if not each or each % some:
        line.ask(path, f"{some} of a chunk's {each} layers recompute; meshtune recomputes one in a whole number")
    elif some < each:
        line.put("recompute_interval", each // some, name)


# DeepSpeed's file.
def deepspeed_stage(line: CommandLine) -> None:
    """DeepSpeed shards by its own file; --zero-stage says the same, or is wrong."""
    path = "baseline.zero_stage"
    stage = line.whole("--zero-stage", path, least=0)
    config = deepspeed_config(line)
    if config is None:
        if not line.has("--zero-stage"):
            line.ask(path, "the ZeRO stage is not said: it is zero_optimization.stage of DeepSpeed's file")
        elif stage is not None:
            line.put("zero_stage", stage, "--zero-stage")
        return
    section = config.get("zero_optimization")
    # deepspeed/runtime/zero/config.py, 0.19.8: stage 0 unless said.
    configured = section.get("stage", 0) if isinstance(section, dict) else 0
    if type(configured) is not int or configured not in range(4):
        said = json.dumps(configured)
        line.ask(path, f"DeepSpeed's settings have zero_optimization.stage {said}, which Megatron fills in nowhere")
    elif stage not in (None, configured):
        said = "say" if section else "have no zero_optimization, which is"
        line.ask(path, f"--zero-stage {stage}, but DeepSpeed's settings {said} stage {configured}; say which is right")
    else:
        line.put("zero_stage", configured, "--zero-stage", "--deepspeed_config")


def deepspeed_config(line: CommandLine) -> Mapping[str, Any] | None:
    """DeepSpeed's settings, where the file is there; None where it is not or cannot be read."""
    text = line.launch.files.get(str(line.get("--deepspeed_config")))
    try:
        found = read_json(as_written(text)) if text is not None else None
    except UnreadableText:
        return None
    return found if isinstance(found, dict) else None


def dtype(line: CommandLine) -> None:
    path, config = "workload.dtype", deepspeed_config(line) if line.through_deepspeed else None
    said = {format_ for name, format_ in _FORMATS.items() if line.has(f"--{name}")}
    sections = {key: (config or {}).get(key) for key in _FORMATS}
    enabled = {key: section.get("enabled") for key, section in sections.items() if isinstance(section, Mapping)}
    formats = said | {_FORMATS[key] for key, value in enabled.items() if value is True}
    if odd := [key for key, value in enabled.items() if not isinstance(value, bool)]:
        line.ask(path, f"whether {', '.join(odd)} is enabled in DeepSpeed's settings is not known")
    elif len(formats) > 1:
        line.ask(path, f"{', '.join(sorted(formats))} at once: --bf16, --fp16 and DeepSpeed's file must say one")
    elif formats:
        line.put("dtype", str(formats.pop()), "--bf16", "--fp16")
    elif line.through_deepspeed and config is None:
        line.ask(path, "neither --bf16 nor --fp16, and DeepSpeed's file, which may say one, was not read")
    elif line.complete(path, "--bf16 or --fp16", "float32"):
        line.note("neither --bf16 nor --fp16: Megatron trains in float32")
        line.fields["dtype"] = str(Dtype.FLOAT32)
