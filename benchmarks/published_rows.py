"""Published results of large training runs: the numbers, their settings and sources; `published` predicts them.

What comes from memory and was not read in its source says so in `unverified`. Where a source leaves a setting open, a
row has all plausible ones. No number here was fitted to anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from published_codes import FRONTIER, LLAMA, MEGATRON_2021, MEGATRON_2021_TORCH, MEGATRON_2022, MEGATRON_CORE
from pydantic import TypeAdapter
from reported import cluster_spec

from meshtune.search_spaces.model import Activation, ModelSpec, Norm
from meshtune.search_spaces.physics.framework_profiles import FRAMEWORKS, FrameworkProfile
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import ContextParallel, Plan, Recompute, Schedule
from meshtune.search_spaces.presets import cluster_presets, described, model_presets


class Reading(StrEnum):
    """What a published number is taken for.

    MODEL, CAUSAL, HARDWARE: 1e12 FLOP/s per device. MODEL counts 6 FLOPs a weight and 12 layers hidden seq_len a token
    (PaLM, appendix B; Megatron-Core's num_floating_point_operations is the same); CAUSAL half of the latter; HARDWARE
    the layers' forward pass once more (Narayanan et al. 2021, equation 3). SECONDS: of one step. BUBBLE_OF_STEP,
    BUBBLE_OF_PIPELINE: the pipeline bubble's share of the step, and of it without the replicas' collectives and the
    optimizer.
    """

    MODEL = "model TFLOP/s"
    CAUSAL = "causal TFLOP/s"
    HARDWARE = "hardware TFLOP/s"
    SECONDS = "s a step"
    BUBBLE_OF_STEP = "bubble of step"
    BUBBLE_OF_PIPELINE = "bubble of pipeline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One published number. plans: its setting, or all plausible ones where the source leaves it open (`assumed` says
    what). devices: as the source says. unverified: what of the row is from memory."""

    group: str
    name: str
    value: float
    reading: Reading
    training: Training
    plans: tuple[Plan, ...]
    devices: int
    source: str
    assumed: str = ""
    unverified: str = ""


_MEGATRON = "NVIDIA/Megatron-LM"
SC21_README = f"{_MEGATRON} at f2e5db40, images/cases_april2021.png; settings: examples/sc21/run_table_1.sh at 79a3bb6b"
# Model, tp, pp, micro-batch, layers per virtual stage (0: no interleaving), GPUs, batch, TFLOP/s.
SC21: tuple[tuple[str, int, int, int, int, int, int, float], ...] = (
    ("megatron-1.7b", 1, 1, 16, 0, 32, 512, 137),
    ("megatron-3.6b", 2, 1, 16, 0, 64, 512, 138),
    ("megatron-7.5b", 4, 1, 16, 0, 128, 512, 142),
    ("megatron-18b", 8, 1, 8, 0, 256, 1024, 135),
    ("megatron-39b", 8, 2, 4, 0, 512, 1536, 138),
    ("megatron-76b", 8, 4, 2, 5, 1024, 1792, 140),
    ("megatron-145b", 8, 8, 2, 5, 1536, 2304, 148),
    ("megatron-310b", 8, 16, 1, 3, 1920, 2160, 155),
    ("megatron-530b", 8, 35, 1, 1, 2520, 2520, 163),
    ("megatron-1t", 8, 64, 1, 0, 3072, 3072, 163),
)
CORE_README = f"{_MEGATRON} at d98e8a64, images/model_table.png (core_r0.8.0)"
# Name, heads, hidden, layers, tp, pp, GPUs, batch, TFLOP/s.
CORE: tuple[tuple[str, int, int, int, int, int, int, int, float], ...] = (
    ("1.7B", 16, 2048, 24, 1, 1, 48, 192, 408.8),
    ("7.1B", 32, 4096, 30, 2, 1, 96, 192, 465.9),
    ("16B", 48, 6144, 32, 4, 1, 192, 192, 489.1),
    ("32B", 56, 7168, 48, 8, 1, 384, 192, 459.6),
    ("70B", 64, 8192, 84, 8, 2, 768, 384, 419.7),
    ("119B", 80, 10240, 92, 8, 4, 1536, 768, 420.5),
    ("177B", 96, 12288, 96, 8, 6, 2304, 1152, 432.8),
    ("314B", 128, 16384, 96, 8, 8, 3072, 1536, 474.4),
    ("462B", 144, 18432, 112, 8, 16, 6144, 3072, 459.9),
)
FRONTIER_SOURCE = "Dash et al. 2023 (arXiv 2312.12705): percent of peak in the abstract, of 191.5 TFLOP/s (ORNL, press)"
LLAMA_SOURCE = "Dubey et al. 2024, table 4, as quoted at glennklockwood.com/garden/llama-3.1"
MULA_SOURCE = "IntelLabs/Optimus-LM submit scripts (arXiv 2604.00785): (p - 1) / (m + p - 1) of their p and m"
KORTHIKANTI_SOURCE = "Korthikanti et al. 2022 (arXiv 2205.05198), table 5"
FRONTIER_MEMORY = "the setting (tp, pp, micro-batch, batch, ZeRO 1, recomputation) and the model's shape"


def model(preset: str, **changes: Any) -> ModelSpec:
    """The preset with some fields changed."""
    entry = described(model_presets()[preset])
    spec: ModelSpec = TypeAdapter(ModelSpec).validate_python(entry | changes)
    return spec


def training(spec: ModelSpec, cluster: str, devices: int, framework: FrameworkProfile) -> Training:
    """On as many whole nodes of the preset as hold the devices."""
    per_node: int = cluster_presets()[cluster]["devices_per_node"]
    return Training(spec, cluster_spec(cluster, -(-devices // per_node), per_node), framework)


def rows() -> tuple[Published, ...]:
    return (*_frontier(), *_llama(), *_gpt3(), *_sc21(), *_core(), *_mula(), *_korthikanti())


def _frontier() -> Iterator[Published]:
    """Recomputation is on in the recipe; whether the TFLOP/s count it is not known: both readings."""
    full: dict[str, Any] = {"zero_stage": 1, "recompute": Recompute.FULL, "sequence_parallel": False}
    small = tuple(
        Plan(
            tp=tp,
            pp=pp,
            dp=dp,
            micro_batch_size=size,
            grad_accum_steps=640 // dp // size,
            **full | {"sequence_parallel": tp == 1},
        )
        for tp in (1, 2, 4, 8)
        for pp in (1, 2, 4, 8, 16)
        for size in (1, 2, 4)
        if (dp := 64 // tp // pp) > 0 and 640 % (dp * size) == 0
    )
    known = (
        ("22B", "gpt-22b", 64, small, 73.5),
        ("175B", "gpt3-175b", 1024, (Plan(tp=4, pp=16, dp=16, grad_accum_steps=640, **full),), 69.2),
        ("1T", "gpt-1t", 3072, (Plan(tp=8, pp=64, dp=6, grad_accum_steps=1600, **full),), 61.2),
    )
    open_setting = "all of it: 64 GCDs, tp 1 to 8, pp 1 to 16, micro-batches of 1 to 4, 10 sequences a GCD as for 175B"
    for name, preset, devices, plans, value in known:
        for reading in (Reading.HARDWARE, Reading.MODEL):
            yield Published(
                group="Frontier",
                name=name,
                value=value,
                reading=reading,
                training=training(model(preset), "frontier", devices, FRONTIER),
                plans=plans,
                devices=devices,
                source=FRONTIER_SOURCE,
                assumed=open_setting if len(plans) > 1 else "",
                unverified=FRONTIER_MEMORY if len(plans) == 1 else "the model's shape",
            )


def _llama() -> Iterator[Published]:
    """Batches of 16M tokens (2^24). How many virtual stages is not said."""
    known = ((8192, 64, 1, 8192, 430.0), (16384, 128, 1, 8192, 400.0), (16384, 8, 16, 131072, 380.0))
    for devices, dp, cp, seq_len, value in known:
        plans = tuple(
            Plan(
                tp=8,
                pp=16,
                dp=dp,
                cp=cp,
                vpp=vpp,
                grad_accum_steps=2**24 // seq_len // dp,
                zero_stage=2,
                schedule=Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B,
                context=ContextParallel.ALL_GATHER,
            )
            for vpp in (1, 2, 4, 8)
        )
        for reading in (Reading.MODEL, Reading.CAUSAL):
            yield Published(
                group="Llama 3 405B",
                name=f"{devices} GPUs, {seq_len // 1024}k",
                value=value,
                reading=reading,
                training=training(model("llama3-405b", seq_len=seq_len), "dgx-h100", devices, LLAMA),
                plans=plans,
                devices=devices,
                source=LLAMA_SOURCE,
                assumed="1, 2, 4 or 8 chunks a stage; micro-batches of 1",
                unverified="dp and sequence lengths, ZeRO 2, its overlap, float32 reduction, no recomputation",
            )


def _gpt3() -> Iterator[Published]:
    yield Published(
        group="Megatron 2021",
        name="175B, README",
        value=138,
        reading=Reading.HARDWARE,
        training=training(model("gpt3-175b"), "dgx-a100", 1024, MEGATRON_2021),
        plans=(_megatron(8, 16, 1, 0, 96, 1024, 1536),),
        devices=1024,
        source=f"{_MEGATRON} at f2e5db40, README.md; setting: examples/pretrain_gpt3_175B.sh at 090e141c",
    )


def _sc21() -> Iterator[Published]:
    for preset, tp, pp, size, chunk, devices, batch, value in SC21:
        spec = model(preset)
        code = MEGATRON_2021_TORCH if pp == 1 else MEGATRON_2021
        yield Published(
            group="Megatron 2021",
            name=preset.removeprefix("megatron-"),
            value=value,
            reading=Reading.HARDWARE,
            training=training(spec, "dgx-a100", devices, code),
            plans=(_megatron(tp, pp, size, chunk, spec.layers, devices, batch),),
            devices=devices,
            source=SC21_README,
        )


def _megatron(tp: int, pp: int, size: int, chunk: int, layers: int, devices: int, batch: int) -> Plan:
    """Full recomputation, no ZeRO. chunk: layers per virtual stage, 0 where the schedule is not interleaved."""
    dp = devices // tp // pp
    vpp = layers // pp // chunk if chunk else 1
    return Plan(
        tp=tp,
        pp=pp,
        dp=dp,
        vpp=vpp,
        micro_batch_size=size,
        grad_accum_steps=batch // dp // size,
        recompute=Recompute.FULL,
        schedule=Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B,
        sequence_parallel=tp == 1,
    )


def _core() -> Iterator[Published]:
    """48 replicas, the distributed optimizer (ZeRO 1), MFU without recomputation. V = 131072, s = 4096."""
    for name, heads, hidden, layers, tp, pp, devices, batch, value in CORE:
        spec = ModelSpec(
            name=name,
            layers=layers,
            hidden=hidden,
            heads=heads,
            ffn=4 * hidden,
            vocab=131072,
            seq_len=4096,
            norm=Norm.LAYERNORM,
            activation=Activation.GELU,
        )
        per_replica = batch // 48
        # Its README: no interleaving in pipelines of two stages.
        chunks = [vpp for vpp in range(1, layers // pp + 1) if layers % (pp * vpp) == 0] if pp > 2 else [1]
        plans = tuple(
            Plan(
                tp=tp,
                pp=pp,
                dp=48,
                vpp=vpp,
                micro_batch_size=size,
                grad_accum_steps=per_replica // size,
                zero_stage=1,
                recompute=recompute,
                schedule=Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B,
            )
            for vpp in chunks
            for size in (1, 2, 4)
            for recompute in (Recompute.NONE, Recompute.FULL)
        )
        yield Published(
            group="Megatron-Core r0.8",
            name=name,
            value=value,
            reading=Reading.MODEL,
            training=training(spec, "dgx-h100", devices, MEGATRON_CORE),
            plans=plans,
            devices=devices,
            source=CORE_README,
            assumed="micro-batches of 1, 2 or 4; any number of chunks; recomputation or none",
        )


def _mula() -> Iterator[Published]:
    """EP 12 is a node's tiles. dp here is DP times EP. Level 7 recomputes all of a layer; level 1 its experts, which
    this physics does not have: full."""
    known = (("mula-100b", 3072, 4, 0.429), ("mula-220b", 3072, 8, 0.467), ("deepseek-v3-1t", 2304, 24, 0.489))
    for preset, devices, pp, value in known:
        for reading in (Reading.BUBBLE_OF_PIPELINE, Reading.BUBBLE_OF_STEP):
            full: dict[str, Any] = {"zero_stage": 1, "recompute": Recompute.FULL}
            yield Published(
                group="Aurora",
                name=preset,
                value=value,
                reading=reading,
                training=training(model(preset), "aurora", devices, FRAMEWORKS["optimus"]),
                plans=(Plan(pp=pp, dp=devices // pp, ep=12, grad_accum_steps=pp, **full),),
                devices=devices,
                source=MULA_SOURCE,
                assumed="all of a layer is recomputed, not its experts alone" if preset == "mula-100b" else "",
            )


def _korthikanti() -> Iterator[Published]:
    """One replica each. Full recomputation without, then selective with sequence parallelism."""
    known = (
        ("22B", model("gpt-22b", heads=64), 1, 1, 4, 4, (1.42, 1.10)),
        ("175B", model("gpt3-175b"), 8, 3, 1, 64, (18.13, 13.75)),
        ("530B", model("megatron-530b"), 35, 3, 1, 280, (49.05, 37.83)),
        ("1T", model("megatron-1t"), 64, 1, 1, 512, (94.42, 71.49)),
    )
    for name, spec, pp, vpp, size, batch, seconds in known:
        for value, recompute, split in zip(seconds, (Recompute.FULL, Recompute.SELECTIVE), (False, True), strict=True):
            plan = Plan(
                tp=8,
                pp=pp,
                vpp=vpp,
                micro_batch_size=size,
                grad_accum_steps=batch // size,
                recompute=recompute,
                schedule=Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B,
                sequence_parallel=split,
            )
            yield Published(
                group="Korthikanti 2022",
                name=f"{name}, {recompute}",
                value=value,
                reading=Reading.SECONDS,
                training=training(spec, "dgx-a100", 8 * pp, MEGATRON_2022),
                plans=(plan,),
                devices=8 * pp,
                source=KORTHIKANTI_SOURCE,
                unverified="times and settings; that gradients add up in float32",
            )
