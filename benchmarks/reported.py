"""What a row of a table measured, in the product's own words: a Training and a Plan.

What a row leaves open is filled in from what is known of its source: docs/explanation/accuracy.md says what and from
where. A row that cannot be expressed raises LeftOut, to be counted and shown; it is never dropped in silence.

    LeftOut(ValueError)         this row cannot be expressed; the others may be
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError
from tables import Row, Status, TableError

from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind, DeviceSpec
from meshtune.search_spaces.model import Activation, ModelSpec, Norm, Position
from meshtune.search_spaces.physics.framework_profiles import FSDP, MEGATRON_DEEPSPEED, NANOTRON, FrameworkProfile
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import Plan, Recompute, Schedule
from meshtune.search_spaces.presets import cluster_presets

# The memory of a device and of a run is stated in units of 2^30 bytes: nanotron divides by 1024^3 (src/nanotron/
# helpers.py, create_table_log), nvidia-smi counts in MiB, and both call it GB.
GB = 2**30
# Megatron-LM pads GPT-2's 50257 to it; the tables that leave the vocabulary out are of that family.
DEFAULT_VOCAB = 51200
# Published sizes are rounded, and some leave the embeddings out.
SIZE_TOLERANCE = 0.1
# Device, its memory in GB and the devices of a node (None: any), further words of the text; the first match counts.
HARDWARE: tuple[tuple[str, int | None, int | None, tuple[str, ...], str], ...] = (
    ("gb200", None, None, (), "gb200-nvl72"),
    ("b200", None, None, (), "dgx-b200"),
    ("h200", None, None, (), "dgx-h200"),
    ("h100", 80, None, ("aws",), "aws-p5"),
    ("h100", 80, None, (), "dgx-h100"),
    ("a100", 40, None, ("aws",), "aws-p4d"),
    ("a100", 40, None, (), "dgx-a100-40gb"),
    ("a100", 80, None, ("jean zay",), "jean-zay-a100"),
    ("a100", 80, None, ("800gb/s",), "a100-800g"),
    ("a100", 80, None, (), "dgx-a100"),
    ("v100", 32, 4, ("jean zay",), "jean-zay-v100"),
    ("v100", 32, 8, (), "dgx-1"),
    ("mi300x", None, None, (), "mi300x"),
    ("mi250x", None, None, (), "frontier"),
    ("t4", None, None, (), "aws-g4dn"),
)
# What a device has of which nothing is known.
SOME_MEMORY_GB = 80
# What the device has where neither the column nor the text says it.
USUAL_MEMORY_GB: Mapping[str, int] = {"h100": 80, "a100": 80, "v100": 32}
RECOMPUTES: Mapping[str | None, Recompute] = {None: Recompute.NONE} | {str(one): one for one in Recompute}
MEGATRON_BF16 = replace(
    # DeepSpeed's BF16_Optimizer adds gradients up in float32 beside the bf16 ones, and reduces the sums.
    MEGATRON_DEEPSPEED,
    name="Megatron-DeepSpeed, bf16",
    dtype="bfloat16",
    gradient_bytes=6,
    reduce_bytes=4,
)


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
    def timed(self) -> bool:
        """True where the run ended well and its step time is stated."""
        return self.row.status is Status.OK and self.row.step_time_s is not None

    @property
    def peak_memory_bytes(self) -> float | None:
        return self.row.mem_gb * GB if self.row.status is Status.OK and self.row.mem_gb is not None else None


@dataclass(frozen=True, slots=True)
class Leaving:
    """The rows left out for one reason: how many, and the first of them."""

    kind: str
    rows: int
    first: str


def reported(
    rows: Sequence[Row], cluster: str | None = None, *, guess: bool = False
) -> tuple[tuple[Reported, ...], tuple[Leaving, ...]]:
    """The rows that can be estimated, and what was left out of them, reason by reason.

    cluster: the preset for all rows; None: by each row's hardware. Raises TableError where no preset answers to it.
    guess: unknown models, number formats and hardware are taken for something alike, and shapes need not give the
    stated size, as for a search, which learns how wrong that is; never where predictions are judged.
    """
    kept: list[Reported] = []
    left: dict[str, Leaving] = {}
    for row in rows:
        try:
            kept.append(_reported(row, cluster, guess))
        except LeftOut as why:
            known = left.get(why.kind, Leaving(why.kind, 0, f"{row.place}: {why.detail}"))
            left[why.kind] = replace(known, rows=known.rows + 1)
    return tuple(kept), tuple(left.values())


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


def _reported(row: Row, preset: str | None, guess: bool) -> Reported:
    try:
        model, cluster = _model(row, guess), _cluster(row, preset, guess)
        framework = _framework(row, cluster, guess)
        plan = _plan(row, framework)
        if plan.pp > model.layers:
            raise LeftOut("more stages than layers", f"pp({plan.pp}), layers({model.layers})")
        return Reported(row, Training(model, cluster, framework), plan)
    except (InvalidValue, ValidationError) as problem:
        raise LeftOut("breaks the rules of a model or a plan", str(problem)) from None


def _cluster(row: Row, preset: str | None, guess: bool) -> ClusterSpec:
    nodes, per_node = _stated(row, "nodes", "gpus_per_node")
    if nodes * per_node != row.gpus:
        raise LeftOut("nodes and devices disagree", f"nodes({nodes}) * gpus_per_node({per_node}), gpus({row.gpus})")
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
    entry: dict[str, Any] = {key: value for key, value in presets[preset].items() if key != "source"}
    entry |= {"nodes": nodes, "devices_per_node": devices_per_node}
    spec: ClusterSpec = TypeAdapter(ClusterSpec).validate_python(entry)
    return spec


def _framework(row: Row, cluster: ClusterSpec, guess: bool) -> FrameworkProfile:
    """The training code and its number formats: by the model's name and the precision."""
    precision = row.precision if guess else _stated(row, "precision")[0]
    family = _family(row, guess)
    if family == "mpt":
        # llm-foundry's tables: bf16 went with FSDP's mixed precision PURE, which reduces in bf16, amp_* with DEFAULT,
        # which reduces in float32. Weights and AdamW's state are float32 in both.
        known = {"bf16": FSDP, "amp_bf16": replace(FSDP, name="torch FSDP, amp_bf16", reduce_bytes=4)}
        known["amp_fp8"] = replace(known["amp_bf16"], name="torch FSDP, amp_fp8", dtype="float8")
        if "float8" not in cluster.device.peak_flops:
            known["amp_fp8"] = replace(known["amp_fp8"], dtype="bfloat16")
    elif family == "gpt":
        known = {"fp16": MEGATRON_DEEPSPEED, "bf16": MEGATRON_BF16}
    else:
        known = {"bf16": NANOTRON}
    if guess:
        return known.get(precision or "", next(iter(known.values())))
    if precision not in known:
        raise LeftOut("unknown precision for the training code", f"{precision} of {row.model}")
    framework = known[precision]
    if framework.dtype not in cluster.device.peak_flops:
        raise TableError(f"{row.place}: the cluster preset {cluster.name} has no peak FLOP/s for {framework.dtype}")
    return framework


def _model(row: Row, guess: bool) -> ModelSpec:
    layers, hidden, heads, ffn, seq_len = _stated(row, "layers", "hidden", "heads", "ffn", "seq_len")
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
    if _family(row, guess) in ("gpt", "mpt"):
        gpt: dict[str, Any] = {"norm": Norm.LAYERNORM, "activation": Activation.GELU, "position": Position.LEARNED}
        return _of_stated_size(row, [ModelSpec(**shapes, **gpt, tied_head=True)], guess)
    return _of_stated_size(row, [ModelSpec(**shapes, tied_head=tied) for tied in (False, True)], guess)


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
        recompute=RECOMPUTES[row.act_ckpt],
        schedule=Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B,
        sequence_parallel=split or tp == 1,
    )


def _family(row: Row, guess: bool) -> str:
    """gpt, mpt (both LayerNorm, GELU, learned positions, tied head) or llama (RMSNorm, SwiGLU, rope), the last where it
    is a guess."""
    name = row.model.lower()
    for start, family in (("gpt", "gpt"), ("mpt", "mpt"), ("llama", "llama"), ("nanotron", "llama")):
        if name.startswith(start):
            return family
    if guess:
        return "llama"
    raise LeftOut("unknown family: known are gpt, mpt, llama and nanotron", row.model)


def _stated(row: Row, *names: str) -> list[Any]:
    values = [getattr(row, name) for name in names]
    if None in values:
        missing = ", ".join(name for name, value in zip(names, values, strict=True) if value is None)
        raise LeftOut("not stated", f"{missing} of {row.model}")
    return values
