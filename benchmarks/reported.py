"""What a row of a table measured, in the product's own words: a Training and a Plan.

What a row leaves open is filled in from what is known of its source: benchmarks/accuracy.md says what and from
where. A row that cannot be expressed raises LeftOut, to be counted and shown; it is never dropped in silence.

    LeftOut(ValueError)         this row cannot be expressed; the others may be
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError
from tables import Row, Status, TableError

from meshtune.runners.documents import read_value
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind, DeviceSpec
from meshtune.search_spaces.model import Activation, ModelSpec, Norm, Position
from meshtune.search_spaces.physics.framework_profiles import (
    FRAMEWORKS,
    FSDP,
    MEGATRON_CORE,
    MEGATRON_DEEPSPEED,
    MEGATRON_DEEPSPEED_BF16,
    NANOTRON,
    FrameworkProfile,
    Reports,
)
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import Plan, Recompute, Schedule
from meshtune.search_spaces.presets import cluster_presets, described, model_presets

# The memory of a device and of a run is stated in units of 2^30 bytes: nanotron divides by 1024^3 (src/nanotron/
# helpers.py, create_table_log), nvidia-smi counts in MiB, and both call it GB.
GB = 2**30
# Megatron-LM's functional tests: their memory is that of the last stage's rank, which need not be the fullest.
LAST_STAGES = ("megatron_ci",)
# Megatron-LM pads GPT-2's 50257 to it; the tables that leave the vocabulary out are of that family.
DEFAULT_VOCAB = 51200
# Published sizes are rounded, and some leave the embeddings out.
SIZE_TOLERANCE = 0.1
# Device, its memory in GB and the devices of a node (None: any), further words of the text; the first match counts.
HARDWARE: tuple[tuple[str, int | None, int | None, tuple[str, ...], str], ...] = (
    ("gh200", None, 4, (), "alps-gh200"),
    ("gb200", None, 4, (), "gb200-trays"),
    ("gb200", None, None, (), "gb200-nvl72"),
    ("b200", None, None, (), "dgx-b200"),
    ("h200", None, None, (), "dgx-h200"),
    ("h100", 80, None, ("aws",), "aws-p5"),
    ("h100", 80, None, (), "dgx-h100"),
    ("a100", 40, None, ("aws",), "aws-p4d"),
    ("a100", 40, None, (), "dgx-a100-40gb"),
    ("a100", 80, None, ("jean zay",), "jean-zay-a100"),
    ("a100", 80, None, ("800gb/s",), "a100-800g"),
    ("a100", 80, None, ("4x", "100gb/s"), "a100-400g"),
    ("a100", 80, None, (), "dgx-a100"),
    ("v100", 32, 4, ("jean zay",), "jean-zay-v100"),
    ("v100", 32, None, (), "dgx-1"),
    ("mi300x", None, None, (), "mi300x"),
    ("mi250x", None, None, (), "frontier"),
    ("t4", None, None, (), "aws-g4dn"),
)
# What a device has of which nothing is known.
SOME_MEMORY_GB = 80
# What the device has where neither the column nor the text says it.
USUAL_MEMORY_GB: Mapping[str, int] = {"h100": 80, "a100": 80, "v100": 32}
# The newest devices were never seen by Megatron-DeepSpeed's releases.
MEGATRON_DEVICES = ("h100", "h200", "b200", "gb200", "gh200")
# Of a model's name, the training code: nanotron's own tables, llm-foundry's, and the two lines of Megatron.
FAMILIES = ("gpt", "megatron", "mpt", "llama", "nanotron", "internevo")
NAMES: tuple[tuple[str, str], ...] = (
    ("gpt", "gpt"),
    ("opt", "gpt"),
    ("mpt", "mpt"),
    ("nanotron", "nanotron"),
    ("llama-like", "nanotron"),
    ("internlm", "internevo"),
    ("llama", "llama"),
)
# By the beginning of a name that tables give a model with latent attention, whose widths they do not state, the preset
# that has them; a table's model has fewer layers, of which LATENT_DENSE are dense.
LATENT: Mapping[str, str] = {"deepseekv2-l": "deepseek-v2", "deepseekv3-l": "deepseek-v3"}
# SimuMax's have one (docs/b200/b200_release_v1.2_summary.md: "DeepSeekV3 formal rows use dense_layers=1").
LATENT_DENSE = 1
# By table, what its memory column says, where that is not what the code's jobs report: BLOOM's logs and Sailor's
# (ae_scripts/clariden_scripts/process_results.py: the total) what nvidia-smi does, LUMI's max_memory_reserved.
REPORTS: Mapping[str, Reports] = {
    "a100_v100_bigscience": Reports.PROCESS,
    "gh200_sailor": Reports.PROCESS,
    "lumi_mi250x": Reports.RESERVED,
}
# Below this many weights a step of a functional test is launching alone.
LEAST_PARAMETERS = 1e9
RECOMPUTES: Mapping[str | None, Recompute] = {None: Recompute.NONE} | {str(one): one for one in Recompute}


# Dropout is on by default (megatron/training/arguments.py: 0.1 of attention and of hidden states).
DROPOUT = replace(MEGATRON_CORE["bfloat16"].kept, dropout=True)
GPT: Mapping[str, Any] = {"norm": Norm.LAYERNORM, "activation": Activation.GELU, "position": Position.LEARNED}


# A preset's name, a cluster, or None: by each row's hardware.
NamedCluster = str | ClusterSpec | None


class LeftOut(ValueError):
    """A row that cannot be expressed. kind: the reason without the row's numbers, to count by."""

    def __init__(self, kind: str, detail: str) -> None:
        self.kind, self.detail = kind, detail
        super().__init__(f"{kind}: {detail}")


@dataclass(frozen=True, slots=True)
class Reported:
    """One row that can be estimated."""

    row: Row
    training: Training
    plan: Plan

    @property
    def telling(self) -> bool:
        """False where the time says nothing of the plan: toys of functional tests, whose steps are launching alone."""
        return not self.row.file.startswith(LAST_STAGES) or self.training.model.parameters >= LEAST_PARAMETERS

    @property
    def timed(self) -> bool:
        """True where the run ended well, its step time is stated, and that says something."""
        return self.telling and self.row.status is Status.OK and self.row.step_time_s is not None

    @property
    def peak_memory_bytes(self) -> float | None:
        """None for a pipeline of a table that tells its last stage's alone."""
        other = self.row.file.startswith(LAST_STAGES) and self.plan.pp > 1
        told = self.row.status is Status.OK and self.row.mem_gb is not None and not other
        return self.row.mem_gb * GB if told and self.row.mem_gb is not None else None


@dataclass(frozen=True, slots=True)
class Leaving:
    """The rows left out for one reason: how many, and the first of them."""

    kind: str
    rows: int
    first: str


def reported(
    rows: Sequence[Row], cluster: NamedCluster = None, family: str | None = None, *, guess: bool = False
) -> tuple[tuple[Reported, ...], tuple[Leaving, ...]]:
    """The rows that can be estimated, and what was left out of them, reason by reason.

    cluster: the preset or the cluster of all rows; None: by each row's hardware. family: one of FAMILIES for all rows.
    Raises TableError where no preset answers to it.
    guess: unknown models, number formats and hardware are taken for something alike, and shapes need not give the
    stated size, as for a search, which learns how wrong that is; never where predictions are judged.
    """
    kept: list[Reported] = []
    left: dict[str, Leaving] = {}
    for row in rows:
        try:
            kept.append(_reported(row, cluster, guess, family))
        except LeftOut as why:
            known = left.get(why.kind, Leaving(why.kind, 0, f"{row.place}: {why.detail}"))
            left[why.kind] = replace(known, rows=known.rows + 1)
    return tuple(kept), tuple(left.values())


def named_cluster(text: str | None) -> NamedCluster:
    """The cluster of `--cluster`: a preset's name, or a file as `meshtune cluster probe` writes it. Raises TableError,
    OSError."""
    if text is None or text in cluster_presets():
        return text
    file = Path(text)
    if not file.is_file():
        known = ", ".join(sorted(cluster_presets()))
        raise TableError(f"no cluster preset {text!r}, and no such file; presets are {known}")
    try:
        spec: ClusterSpec = TypeAdapter(ClusterSpec).validate_python(yaml.safe_load(file.read_text())["cluster"])
    except (yaml.YAMLError, KeyError, TypeError, ValidationError, InvalidValue) as problem:
        raise TableError(f"{file}: is no cluster file: {problem}") from None
    return spec


def preset_of(row: Row) -> str:
    """The cluster preset that the row's hardware names. Raises TableError, which lists the presets."""
    text = row.hardware.lower()
    sizes = re.findall(r"(?<![a-z0-9])(\d+)\s?gb(?!/)", text)
    for device, memory_gb, per_node, words, preset in HARDWARE:
        if not re.search(rf"(?<![a-z0-9]){device}(?![a-z0-9])", text.replace("_", " ")):
            continue
        stated = row.gpu_mem_gb or (int(sizes[0]) if sizes else USUAL_MEMORY_GB.get(device))
        fits = memory_gb in (None, stated) and per_node in (None, row.gpus_per_node)
        if fits and all(word in text for word in words):
            return preset
    size = "" if row.gpu_mem_gb is None else f", {row.gpu_mem_gb:g} GB"
    nodes = "" if row.gpus_per_node is None else f", {row.gpus_per_node} devices a node"
    raise TableError(
        f"{row.place}, column hardware: no cluster preset is known for {row.hardware!r}{size}{nodes}; "
        f"name one with --cluster: {', '.join(sorted(cluster_presets()))}"
    )


def _reported(row: Row, preset: NamedCluster, guess: bool, family: str | None) -> Reported:
    try:
        family = family or _family(row)
        model, cluster = _model(row, family, guess), _cluster(row, preset, guess)
        framework = _framework(row, cluster, family, guess)
        plan = _plan(row, framework)
        if plan.pp > model.layers:
            raise LeftOut("more stages than layers", f"pp({plan.pp}), layers({model.layers})")
        return Reported(row, Training(model, cluster, framework), plan)
    except (InvalidValue, ValidationError) as problem:
        raise LeftOut("breaks the rules of a model or a plan", str(problem)) from None


def _cluster(row: Row, preset: NamedCluster, guess: bool) -> ClusterSpec:
    nodes, per_node = _stated(row, "nodes", "gpus_per_node")
    if row.gpus < nodes * per_node and row.gpus % nodes == 0:
        per_node = row.gpus // nodes  # nodes that are not full
    if nodes * per_node != row.gpus:
        raise LeftOut("nodes and devices disagree", f"nodes({nodes}) * gpus_per_node({per_node}), gpus({row.gpus})")
    if isinstance(preset, ClusterSpec):
        return replace(preset, nodes=nodes, devices_per_node=per_node)
    try:
        return cluster_spec(preset or preset_of(row), nodes, per_node)
    except TableError:
        if preset is not None or not guess:
            raise
    memory_bytes = round((row.gpu_mem_gb or SOME_MEMORY_GB) * GB)
    device = DeviceSpec(name=row.hardware, kind=DeviceKind.CUDA, memory_bytes=memory_bytes)
    return ClusterSpec(name=row.hardware, nodes=nodes, devices_per_node=per_node, device=device)


@cache
def cluster_spec(preset: str, nodes: int, devices_per_node: int) -> ClusterSpec:
    """The preset with this many nodes and devices. Raises TableError for an unknown name."""
    presets = cluster_presets()
    if preset not in presets:
        raise TableError(f"no cluster preset {preset!r}; there are: {', '.join(sorted(presets))}")
    entry: dict[str, Any] = described(presets[preset])
    entry |= {"nodes": nodes, "devices_per_node": devices_per_node}
    spec: ClusterSpec = TypeAdapter(ClusterSpec).validate_python(entry)
    return spec


def _framework(row: Row, cluster: ClusterSpec, family: str, guess: bool) -> FrameworkProfile:
    """The training code and its number formats: by the model's name and the precision."""
    precision = row.precision if guess else _stated(row, "precision")[0]
    if family == "mpt":
        # llm-foundry's tables: bf16 went with FSDP's mixed precision PURE, which reduces in bf16, amp_* with DEFAULT,
        # which reduces in float32. Weights and AdamW's state are float32 in both.
        # Of attention submit_benchmarks.py at b2a43a14 says triton, later releases flash: FlashAttention 2 is taken.
        code = replace(FSDP, attention_kernels=("flash2",))
        known = {"bf16": code, "amp_bf16": replace(code, name="torch FSDP, amp_bf16", reduce_bytes=4)}
        known["amp_fp8"] = replace(known["amp_bf16"], name="torch FSDP, amp_fp8", product_dtype="float8")
    elif family == "nanotron":
        known = {"bf16": NANOTRON}
    elif family == "internevo":
        known = {"bf16": FRAMEWORKS["internevo"]}
    else:
        known = {short: MEGATRON_CORE[dtype] for short, dtype in (("bf16", "bfloat16"), ("fp16", "float16"))}
        known["fp32"] = FRAMEWORKS["megatron-core-tf32"]  # Sailor's, whose models have no dropout (sailor/models)
        if family == "megatron":
            known |= {name: replace(code, kept=DROPOUT) for name, code in known.items()}
        if "unfused" in row.model or "local" in row.model:
            known |= {name: replace(code, fused_attention=False) for name, code in known.items()}
        if family == "gpt" and not any(name in row.hardware.lower() for name in MEGATRON_DEVICES):
            known |= {"fp16": MEGATRON_DEEPSPEED, "bf16": MEGATRON_DEEPSPEED_BF16}
        for word, dtype in (("fp8", "float8"), ("fp4", "float4"), ("nvfp4", "float4")):
            known[word] = replace(known["bf16"], name=f"{known['bf16'].name}, {word}", product_dtype=dtype)
    if guess:
        return known.get(precision or "", next(iter(known.values())))
    if precision not in known:
        raise LeftOut("unknown precision for the training code", f"{precision} of {row.model}")
    framework = known[precision]
    if (reports := REPORTS.get(Path(row.file).stem)) is not None:
        framework = replace(framework, reports=reports)
    if framework.dtype not in cluster.device.peak_flops:
        raise TableError(f"{row.place}: the cluster preset {cluster.name} has no peak FLOP/s for {framework.dtype}")
    return framework


def _model(row: Row, family: str, guess: bool) -> ModelSpec:
    layers, hidden, heads, ffn, seq_len = _stated(row, "layers", "hidden", "heads", "ffn", "seq_len")
    if row.model.lower().startswith("deepseek"):
        return _latent(row)
    shapes: dict[str, Any] = {
        "name": row.model,
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": row.kv_heads or 0,
        "ffn": ffn,
        "vocab": row.vocab or DEFAULT_VOCAB,
        "seq_len": seq_len,
        "experts": row.experts or 0,
        "top_k": row.topk or 0,
    }
    if family in ("gpt", "megatron", "mpt"):
        return _of_stated_size(row, [ModelSpec(**shapes, **GPT, tied_head=tied) for tied in (True, False)], guess)
    return _of_stated_size(row, [ModelSpec(**shapes, tied_head=tied) for tied in (False, True)], guess)


def _latent(row: Row) -> ModelSpec:
    name = next((preset for start, preset in LATENT.items() if row.model.lower().startswith(start)), None)
    if name is None:
        raise LeftOut("multi-head latent attention, whose widths the table does not state", row.model)
    whole = read_value(ModelSpec, described(model_presets()[name]))
    own = {field: getattr(row, field) for field in ("hidden", "heads", "ffn", "vocab", "experts")}
    known = {field: getattr(whole, field) for field in own}
    if own != known:
        raise LeftOut("other shapes than the model of its name", f"{row.model}: {own}, {name}: {known}")
    own = {"layers": row.layers, "dense_layers": LATENT_DENSE, "seq_len": row.seq_len, "mtp_layers": 0}
    return replace(whole, name=row.model, **own)


def _of_stated_size(row: Row, candidates: Sequence[ModelSpec], guess: bool) -> ModelSpec:
    """The candidate whose number of weights is nearest to what the row states; the first where it states none."""
    if row.params_b is None:
        return candidates[0]
    stated = row.params_b * 1e9
    model = min(candidates, key=lambda one: abs(one.parameters - stated))
    without = model.layers * model.layer_parameters
    off = min(abs(size / stated - 1) for size in (model.parameters, without))
    if off > SIZE_TOLERANCE and not guess:
        detail = (
            f"{row.model} of {model.layers} layers has {model.parameters / 1e9:.1f}, params_b says {row.params_b:g}"
        )
        raise LeftOut("shapes and parameters disagree", detail)
    return model


def _plan(row: Row, framework: FrameworkProfile) -> Plan:
    tp, pp, vpp, dp, cp, ep = (getattr(row, name) or 1 for name in ("tp", "pp", "vpp", "dp", "cp", "ep"))
    micro_batch, global_batch = _stated(row, "micro_batch", "global_batch")
    if tp * pp * dp * cp != row.gpus:
        raise LeftOut("degrees and devices disagree", f"tp({tp}) * pp({pp}) * dp({dp}) * cp({cp}), gpus({row.gpus})")
    accumulation = row.grad_accum or global_batch // (micro_batch * dp)
    if accumulation * micro_batch * dp != global_batch:
        detail = f"micro_batch({micro_batch}) * grad_accum({accumulation}) * dp({dp}), global_batch({global_batch})"
        raise LeftOut("batches disagree", detail)
    if row.act_ckpt not in RECOMPUTES:
        raise LeftOut("unknown recomputation", str(row.act_ckpt))
    # nanotron's scaling benchmarks run tp_mode REDUCE_SCATTER (scripts/scaling_benchmarks.py), which splits the
    # sequence; Megatron-DeepSpeed of 2021 to 2023 did not. Without tp, true is the only spelling.
    split = bool(row.sp) if row.sp is not None else framework is NANOTRON
    return Plan(
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        ep=ep,
        vpp=vpp,
        micro_batch_size=micro_batch,
        grad_accum_steps=accumulation,
        zero_stage=row.zero_stage or 0,
        zero_group=row.zero_group if row.zero_group not in (None, dp * cp) else 0,
        recompute=RECOMPUTES[row.act_ckpt],
        schedule=Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B,
        sequence_parallel=split or tp == 1,
    )


def _family(row: Row) -> str:
    """By the table, the model's name, else its shapes: gpt, megatron and mpt (LayerNorm, GELU, learned positions),
    or llama and nanotron (RMSNorm, SwiGLU, rope), whose block has three matrices. gpt stands for Megatron-DeepSpeed on
    devices that it knew, megatron for Megatron-Core."""
    name = row.model.lower()
    if row.file.startswith(LAST_STAGES):  # Megatron-LM's own functional tests
        return "llama" if "swiglu" in name else "megatron"
    for start, family in NAMES:
        if name.startswith(start):
            return family
    shapes = (row.params_b, row.layers, row.hidden, row.ffn)
    if None in shapes or row.experts:
        return "llama"
    size, layers, hidden, ffn = (float(value or 0) for value in shapes)
    attention = 2 * hidden**2 * (1 + (row.kv_heads or row.heads or 1) / (row.heads or 1))
    gated, plain = (layers * (attention + count * hidden * ffn) for count in (3, 2))
    return "llama" if abs(gated / 1e9 - size) < abs(plain / 1e9 - size) else "gpt"


def _stated(row: Row, *names: str) -> list[Any]:
    values = [getattr(row, name) for name in names]
    if None in values:
        missing = ", ".join(name for name, value in zip(names, values, strict=True) if value is None)
        raise LeftOut("not stated", f"{missing} of {row.model}")
    return values
