"""The trainer's job file (`job.json`, version 1): everything one profiling run needs. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Any, get_type_hints

from meshtune.runners.json_files import read_versioned, render_versioned
from meshtune.runners.measuring import WINDOW, is_tight, warmup_length
from meshtune.runners.told_knobs import ToldKnob
from meshtune.search_spaces.checks import (
    Amount,
    Checks,
    Closed,
    Limit,
    Natural,
    Positive,
    Some,
    StrEnum,
    limits_of,
    raising,
)
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.layer_shapes import Shape
from meshtune.search_spaces.model import Activation, ModelSpec
from meshtune.search_spaces.plan import LOSS_CHUNKS, ContextParallel, Plan, Recompute, Schedule, Selective
from meshtune.search_spaces.recipe import PLAIN, Offload, Optimizer, Recipe

JOB_FILE = "job.json"
JOB_VERSION = 1


class JobMalformed(ValueError):
    """The job file breaks the contract; the message names the field."""


class Dtype(StrEnum):
    """The number format of weights and activations."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Router(StrEnum):
    """Who sends tokens to experts: the model, or a fixed rule that gives every expert equally many, or one that gives
    each its share by `search_spaces.routing`."""

    LEARNED = "learned"
    BALANCED = "balanced"
    SKEWED = "skewed"


class AttentionKernel(StrEnum):
    """Which kernels torch's attention may run; auto: it chooses."""

    AUTO = "auto"
    FLASH = "flash"
    EFFICIENT = "efficient"
    CUDNN = "cudnn"
    MATH = "math"


def unfit_option(name: str, value: object) -> str:
    """Why a value is none of an option; empty where it is."""
    kind = OPTIONS[name]
    if kind is bool:
        return "" if isinstance(value, bool) else "must be true or false"
    if kind is int:
        return limits_of(TrainerOptions)[name].unfit(value)  # type: ignore[arg-type]  # which it tells
    known = [str(member) for member in kind]  # type: ignore[attr-defined]  # an enumeration
    return "" if value in known else f"must be one of {', '.join(known)}"


def uneven_copies(model: ModelSpec, cp: Any, parts: Any) -> Any:
    """Copies of a rank's tokens of a sequence that are left when its experts have got equally many, for the router that
    is balanced. parts: over how many ranks of tp the tokens are split, whole numbers or a column."""
    return model.seq_len // (cp * parts) * model.top_k % max(1, model.experts)


def unshared(model: ModelSpec, plan: Plan) -> str:
    """Why the router that is balanced cannot run under the plan."""
    slices = f"cp({plan.cp})" + f" / tp({plan.tp})" * bool(plan.etp)
    shared = f"seq_len({model.seq_len}) / {slices} * top_k({model.top_k})"
    return f"experts({model.experts}) do not share {shared} tokens evenly"


def too_uneven(model: ModelSpec, imbalance: float | None) -> str:
    """Why no router can load the busiest expert so; empty where one can."""
    if imbalance is None or model.experts == 0 or imbalance <= model.experts / model.top_k:
        return ""
    most = f"experts({model.experts}) / top_k({model.top_k}) = {model.experts / model.top_k:g}"
    return f"imbalance({imbalance:g}) is above {most}, where the busiest expert gets every token"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring(Closed):
    # Warm-up steps are dropped until step times settle, at most so many.
    max_warmup_steps: Natural = 10
    # Fewest timed steps.
    min_steps: Some = 6
    # Most timed steps, beyond those of `min_seconds`.
    max_steps: int = 30
    # Steps are timed, and looked at for whether they have settled, for at least this time, whatever `max_steps` says;
    # warm-up ends with the step that brings it to this. On accelerators 3 where `max_steps` is left out.
    min_seconds: Amount = 0.0
    # After this time of timed steps `min_steps` suffice, whatever `min_seconds` says.
    max_seconds: Positive = 60.0
    # Steps are timed until the 95 % interval of their median lies within this share of it.
    precision: Annotated[float, Limit(above=0, below=1)] = 0.03
    # Steps that are profiled afterwards, on accelerators 3 by default; 0: no time by part and no straggler.
    profile_steps: Natural = 5
    # First losses that are kept, to compare the training of two plans.
    loss_steps: Natural = 4
    # A rank that has not met its peers, built its model and, where asked for, compiled it after so many seconds ends
    # the job as `timed_out`; `trial.time_limit_s` may end it before.
    start_limit_s: Positive = 600.0
    # A job whose model is built and that finishes no step for so many seconds ends as `timed_out`.
    stall_s: Positive = 120.0

    def _check(self, checks: Checks) -> None:
        problem = f"max_steps({self.max_steps}) is below min_steps({self.min_steps})"
        checks.require(self.max_steps >= self.min_steps, "max_steps", problem)

    @property
    def window(self) -> tuple[int, float]:
        """The least steps and seconds that show whether step times have settled."""
        return min(WINDOW, self.max_steps), min(self.min_seconds, self.max_seconds)

    def warmup(self, step_times_s: Sequence[float]) -> int | None:
        """How many of the first steps are warm-up; None while too few are known to say."""
        window, seconds = self.window
        most, tolerance = self.max_warmup_steps, self.precision
        return warmup_length(step_times_s, most=most, window=window, tolerance=tolerance, seconds=seconds)

    def enough(self, step_times_s: Sequence[float]) -> bool:
        """Whether these timed steps are all that are wanted."""
        taken_s = sum(step_times_s)
        if len(step_times_s) < self.min_steps or taken_s < min(self.min_seconds, self.max_seconds):
            return False
        spent = len(step_times_s) >= self.max_steps or taken_s >= self.max_seconds
        return spent or is_tight(step_times_s, self.precision)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerOptions(Closed):
    """What a spec may set of its jobs, and knobs the most of it (OPTIONS)."""

    # Number format, by default `bfloat16` on accelerators that have it (their `peak_flops` or `sustained_flops` name
    # it); `float16` with dynamic loss scaling, and on a CPU slowly.
    dtype: Dtype = Dtype.FLOAT32
    # Of the few steps.
    learning_rate: Positive = 1e-3
    # Who sends tokens to experts: the model; a rule by which every expert gets equally many; a rule by which they get
    # uneven shares.
    router: Router = Router.LEARNED
    # With `router: skewed` alone, from 1 to `experts` / `top_k`: load of the busiest expert over the mean; the others
    # follow Zipf's law, the same in every layer. No token is dropped.
    imbalance: float | None = None
    # `torch.compile` for every layer; by default on `cuda` devices.
    compile: bool = False
    # Communication of tensor parallelism overlaps with products (PyTorch's asynchronous TP); `cuda` with NVLink,
    # `compile` and sequence parallelism only. It has not been tried on a GPU.
    async_tp: bool = False
    # Which of PyTorch's attention kernels runs; `efficient` and `cudnn` on `cuda` alone, `flash` and `cudnn` there with
    # 16 bits; with `cp` above 1 for `context: ulysses` alone.
    attention: AttentionKernel = AttentionKernel.AUTO
    # What `recompute: selective` computes again: norms, activation functions, rotations and casts; core attention
    # alone, as Megatron; as `products`, and every second matrix product, as torchtitan (here query, key and value are
    # one product, gate and up another). Predictions follow this option, not a knob of it.
    selective: Selective = Selective.PRODUCTS
    # Chunks of a micro-batch's tokens in which the loss is computed, each of at least 1024 tokens; at most 1024.
    loss_chunks: Annotated[int, Limit(1, 1024, whole=True)] = LOSS_CHUNKS
    # Products of the layers' projections in 8 bits (e4m3, gradients e5m2), each tensor scaled as it is cast; head and
    # attention as `dtype` says. NVIDIA devices of compute capability 8.9 and newer with 16 bits, and CPUs; no experts.
    # It has not been tried on a GPU.
    float8: bool = False
    # Threads of PyTorch's operations per rank, at most 1024.
    threads: Annotated[int, Limit(1, 1024, whole=True)] = 1
    # Layers whose weights FSDP2 (ZeRO 2 and 3) gathers ahead of the one that computes, at most 1024; 0: PyTorch's own
    # order, on a CPU none ahead.
    prefetch: Annotated[int, Limit(0, 1024, whole=True)] = 0
    # ZeRO 1 gathers the moved weights beside the next step's forward pass; false: before it.
    gather_ahead: bool = True
    # How long to measure.
    measuring: Measuring = field(default_factory=Measuring)

    def _check(self, checks: Checks) -> None:
        load = self.imbalance
        if self.router == Router.SKEWED:
            problem = f"skewed needs the load of the busiest expert over the mean, at least 1 and finite, not {load}"
            checks.require(load is not None and 1 <= load < inf, "imbalance", problem)
        else:
            checks.require(load is None, "imbalance", f"is of the router skewed alone, not of {self.router}")
        for name, kind in {**OPTIONS, "router": Router}.items():
            if issubclass(kind, StrEnum):
                object.__setattr__(self, name, kind(getattr(self, name)))


_NO_KNOBS = ("learning_rate", "router", "imbalance", "measuring", "__pydantic_config__")
# What a knob may set by `option`: by the name of the job's field, its type.
OPTIONS: Mapping[str, type] = {
    name: kind for name, kind in get_type_hints(TrainerOptions).items() if name not in _NO_KNOBS
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerJob(TrainerOptions):
    """One profiling run of `model` under `plan`.

    memory_limit_bytes: on CPU, the cap each rank sets on itself. peak_flops: FLOP/s of one device in `dtype`, where
    known, for MFU. incumbent_step_time_s: the run stops as PRUNED once it is surely slower than this; best the upper
    end of the incumbent's interval, scaled to this plan's tokens per step. knobs: which of its options the plan's knobs
    told, and what else."""

    name: str
    model: ModelSpec
    plan: Plan
    recipe: Recipe = PLAIN
    device: DeviceKind = DeviceKind.CPU
    seed: int = 0
    knobs: Mapping[str, ToldKnob] = field(default_factory=dict)
    memory_limit_bytes: int | None = None
    peak_flops: Positive | None = None
    incumbent_step_time_s: Positive | None = None

    def _check(self, checks: Checks) -> None:
        TrainerOptions._check(self, checks)
        object.__setattr__(self, "device", DeviceKind(self.device))


def render_job(job: TrainerJob) -> str:
    return render_versioned(job, JOB_VERSION)


def parse_job(text: str) -> TrainerJob:
    """Raises JobMalformed."""
    with raising(JobMalformed, "", ValueError):
        return read_versioned(TrainerJob, text, JOB_VERSION)


# What models may have beyond plain layers and mixtures of experts.
SHAPES = frozenset({Shape.HEAD_DIM})


def compile_obstacle(job: TrainerJob) -> str:
    """Why no layer of the job can be compiled; empty where they can."""
    plan = job.plan
    if plan.pp > 1 and plan.schedule.splits_backward:
        return f"{plan.schedule} splits backward passes, and a compiled one cannot be split"
    if plan.cp > 1 and plan.context is not ContextParallel.ULYSSES:
        return f"the compiler cannot follow {plan.context}, which calls attention's kernels and collectives itself"
    return ""


def require_supported(job: TrainerJob) -> None:
    """Raise InvalidValue naming everything that the trainer cannot run as asked; memory is not judged."""
    checks = Checks()
    _check_features(job, checks)
    _check_settings(job, checks)
    _check_float8(job, checks)
    _check_shapes(job, checks)
    _check_pipeline(job, checks)
    _check_experts(job, checks)
    for name, problem in recipe_obstacles(job.recipe, job.model, job):
        checks.require(False, f"recipe.{name}", problem)
    checks.done()


def recipe_obstacles(recipe: Recipe, model: ModelSpec, options: TrainerOptions) -> list[tuple[str, str]]:
    """What of a recipe the trainer does not run, by its key, and why."""
    adapter, bits = recipe.adapter, 32 if options.dtype is Dtype.FLOAT32 else 16
    own = f"frozen weights are in {options.dtype}, which the trainer computes in: give {bits}"
    ends = recipe.frozen_embedding, recipe.frozen_head
    found = [
        ("base_bits", own, (recipe.base_bits or (16 if adapter else bits)) != bits),
        ("plain_bits", own, recipe.plain_bits not in (0, bits)),
        ("optimizer", "it has adamw and sgd", recipe.optimizer not in (Optimizer.ADAMW, Optimizer.SGD)),
        ("offload", "it keeps all on the device", recipe.offload is not Offload.NONE),
        ("offload_activations", "it keeps all on the device", recipe.offload_activations),
        ("trained_tower", "its model has no tower", recipe.trained_tower),
        ("rows_per_sample", "its samples are rows", recipe.rows_per_sample > 1),
        ("beside", "its model is alone", bool(recipe.beside)),
        ("mean_tokens", "its rows have seq_len tokens", recipe.mean_tokens > 0),
        ("frozen_layers", "nothing is left to train", recipe.frozen_layers >= model.layers and all(ends)),
        ("frozen_head", "a tied head is the embedding: freeze both or none", model.tied_head and ends[0] != ends[1]),
    ]
    if adapter is not None:
        absent = {"experts", *("gate", "up", "down") * (model.experts > 0)}
        absent |= set() if model.activation is Activation.SWIGLU else {"gate"}
        found += [
            ("adapter.dora", "its adapters have no magnitudes", adapter.dora),
            ("adapter.dropout", "its adapters drop nothing", adapter.dropout > 0),
            ("adapter.bits", "its adapters have float32 masters: give 32", adapter.bits != 32),
            ("adapter.targets", "its experts have no adapters", bool(model.experts) and "experts" in adapter.targets),
            ("adapter.targets", "the model has none of these products", absent.issuperset(adapter.targets)),
        ]
    found.append(("adapter", "float8 goes without a recipe", options.float8 and recipe != PLAIN))
    return [(name, problem) for name, problem, refused in found if refused]


def _check_features(job: TrainerJob, checks: Checks) -> None:
    plan, schedule = job.plan, job.plan.schedule
    for shape in sorted(job.model.shapes - SHAPES):
        checks.require(False, f"model.{shape}", "the trainer has no such layers, and would run another model")
    blocks = plan.cp > 1 and plan.context is not ContextParallel.ULYSSES
    problem = f"{plan.context} has fused kernels for cpu and cuda; on xpu use ulysses"
    checks.require(not blocks or job.device is not DeviceKind.XPU, "plan.context", problem)
    checks.require(job.compile or not job.async_tp, "async_tp", "async_tp needs compile: the compiler overlaps")
    problem = "async_tp runs on cuda only, by its symmetric memory"
    checks.require(job.device is DeviceKind.CUDA or not job.async_tp, "async_tp", problem)
    problem = f"async_tp with tp({plan.tp}) needs sequence_parallel, whose gathers and sums it overlaps"
    checks.require(not job.async_tp or plan.tp == 1 or plan.sequence_parallel, "async_tp", problem)
    problem = "would train wrongly without an error: split backward passes meet resharded weights"
    problem = f"zero_stage({plan.zero_stage}) with schedule({schedule}) {problem}"
    checks.require(plan.zero_stage < 3 or not schedule.splits_backward, "plan.zero_stage", problem)
    ranks, group = plan.dp * plan.cp, plan.zero_group
    problem = f"zero_group({group}) with zero_stage({plan.zero_stage}) does not cut dp * cp = {ranks} ranks into groups"
    cuts = group < ranks and ranks % max(1, group) == 0 and plan.zero_stage > 0
    checks.require(group == 0 or cuts, "plan.zero_group", problem)
    problem = f"selective with schedule({schedule}): torch allows one backward pass of what is recomputed selectively"
    selective = plan.recompute is Recompute.SELECTIVE
    checks.require(not selective or not schedule.splits_backward, "plan.recompute", problem)
    problem = f"vpp({plan.vpp}) does not go with schedule({schedule}) and pp({plan.pp})"
    fits = schedule.interleaves == (plan.vpp > 1) and (plan.pp > 1 or plan.vpp == 1)
    checks.require(fits, "plan.vpp", problem)
    checks.require(schedule is not Schedule.ZBV or plan.vpp == 2, "plan.vpp", f"zbv needs vpp(2), not vpp({plan.vpp})")


def _check_settings(job: TrainerJob, checks: Checks) -> None:
    """What means nothing here is refused where a knob asks for it: it would be measured as if it did."""
    plan, kernel = job.plan, job.attention
    knobs = {knob.place for knob in job.knobs.values() if knob.way == "option"}
    blocks = plan.cp > 1 and plan.context is not ContextParallel.ULYSSES
    problem = f"{kernel} with cp({plan.cp}) and {plan.context}, which calls its kernels itself; give auto"
    checks.require(kernel is AttentionKernel.AUTO or not blocks, "attention", problem)
    problem, on_cuda = f"{kernel} is a kernel of cuda alone", job.device is DeviceKind.CUDA
    checks.require(kernel not in (AttentionKernel.EFFICIENT, AttentionKernel.CUDNN) or on_cuda, "attention", problem)
    problem = f"{kernel} on cuda takes 16 bits, not {job.dtype}"
    half = job.dtype is not Dtype.FLOAT32 or not on_cuda
    checks.require(kernel not in (AttentionKernel.FLASH, AttentionKernel.CUDNN) or half, "attention", problem)
    sharded = plan.dp * plan.cp > 1
    problem = f"prefetch({job.prefetch}) needs weights that are gathered layer by layer: ZeRO 2 or 3 over 2 ranks"
    gathers = plan.zero_stage >= 2 and sharded
    checks.require(job.prefetch == 0 or gathers, "prefetch", problem)
    problem = "gather_ahead: false needs the gathering of ZeRO 1 over 2 ranks"
    checks.require(job.gather_ahead or (plan.zero_stage == 1 and sharded), "gather_ahead", problem)
    problem = f"selective({job.selective}) means nothing with recompute({plan.recompute})"
    checks.require(plan.recompute is Recompute.SELECTIVE or "selective" not in knobs, "selective", problem)
    why = compile_obstacle(job) if job.compile and "compile" in knobs else ""
    checks.require(not why, "compile", why)


def _check_float8(job: TrainerJob, checks: Checks) -> None:
    if not job.float8:
        return
    plan, model = job.plan, job.model
    half = job.device is DeviceKind.CUDA and job.dtype is not Dtype.FLOAT32
    problem = f"runs on cuda beside 16 bits, and on cpu, not on {job.device} with {job.dtype}"
    checks.require(half or job.device is DeviceKind.CPU, "float8", problem)
    other = model.experts > 0 or model.kv_heads < plan.tp or plan.schedule.splits_backward
    problem = "goes with neither experts, nor fewer kv_heads than tp, nor split backward passes"
    checks.require(not other, "float8", problem)
    widths = (model.query_width // plan.tp, model.kv_width // plan.tp, model.ffn // plan.tp)
    for side in (plan.micro_batch_size * model.seq_len // plan.cp, model.hidden, *widths):
        checks.require(side % 16 == 0, "float8", f"{side} is a side of a product in 8 bits, and no multiple of 16")


def _check_shapes(job: TrainerJob, checks: Checks) -> None:
    plan, model = job.plan, job.model
    tp, cp, seq_len, kv_heads = plan.tp, plan.cp, model.seq_len, model.kv_heads
    checks.require(model.heads % tp == 0, "plan.tp", f"tp({tp}) does not divide heads({model.heads})")
    name, width = ("etp", plan.etp) if plan.etp else ("tp", tp)
    problem = f"{name}({width}) does not divide ffn({model.ffn})"
    checks.require(model.ffn % width == 0, f"plan.{name}", problem)
    problem = f"tp({tp}) and kv_heads({kv_heads}): neither divides the other"
    checks.require(kv_heads % tp == 0 or tp % kv_heads == 0, "plan.tp", problem)
    slices = cp if cp == 1 or plan.context is ContextParallel.ULYSSES else 2 * cp
    checks.require(seq_len % slices == 0, "plan.cp", f"cp({cp}) does not cut seq_len({seq_len}) into {slices}")
    problem = f"tp({tp}) does not divide seq_len({seq_len}) / cp({cp})"
    checks.require(not plan.sequence_parallel or seq_len // cp % tp == 0, "plan.tp", problem)
    for name in ("heads", "kv_heads") if plan.context is ContextParallel.ULYSSES else ():
        size = getattr(model, name)
        problem = f"tp({tp}) * cp({cp}) = {tp * cp} does not divide {name}({size})"
        checks.require(size % (tp * cp) == 0, "plan.cp", problem)


def _check_pipeline(job: TrainerJob, checks: Checks) -> None:
    pp, vpp, layers, schedule = job.plan.pp, job.plan.vpp, job.model.layers, job.plan.schedule
    batches = job.plan.grad_accum_steps
    checks.require(pp * vpp <= layers, "plan.pp", f"pp({pp}) * vpp({vpp}) is above layers({layers})")
    first, last = job.plan.first_stage_less_layers, job.plan.last_stage_less_layers
    if first or last:
        ends = f"first_stage_less_layers({first}), last_stage_less_layers({last})"
        between, rest = divmod(layers + first + last, pp * vpp)
        problem = f"{ends}: layers({layers}) and both do not come out in pp({pp}) * vpp({vpp}) chunks of at least one"
        checks.require(pp > 1 and rest == 0 and between > max(0, first, last), "plan.pp", problem)
    # torch's Schedule1F1B refuses fewer micro-batches than stages; GPipe does not.
    problem = f"{schedule} needs grad_accum_steps({batches}) of at least pp({pp})"
    checks.require(schedule is Schedule.GPIPE or pp == 1 or batches >= pp, "plan.grad_accum_steps", problem)
    rounds = max(1, batches // pp)
    problem = f"{schedule} needs grad_accum_steps({batches}) to be a multiple of its {rounds} rounds"
    in_rounds = schedule in (Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE)
    checks.require(not in_rounds or batches % rounds == 0, "plan.grad_accum_steps", problem)


def _check_experts(job: TrainerJob, checks: Checks) -> None:
    plan, model = job.plan, job.model
    dp, ep, cp, experts = plan.dp, plan.ep, plan.cp, model.experts
    width, ranks = plan.expert_tp, plan.tp * cp * dp
    problem = f"etp({width}) * ep({ep}) = {width * ep} does not divide tp({plan.tp}) * cp({cp}) * dp({dp}) = {ranks}"
    checks.require(ranks % (width * ep) == 0, "plan.ep", problem)
    problem = f"etp({plan.etp}) needs experts, and the sequence split over tp({plan.tp})"
    checks.require(plan.etp == 0 or (experts > 0 and plan.sequence_parallel), "plan.etp", problem)
    groups = dp * cp // (plan.zero_group or dp * cp)
    problem = f"dp({dp}) * cp({cp}) / zero_group({plan.zero_group}) groups do not divide the replicas of experts"
    fits = experts == 0 or (groups > 0 and ranks // (width * ep) % groups == 0)
    checks.require(fits, "plan.zero_group", f"{problem}, {ranks} ranks / (etp({width}) * ep({ep}))")
    problem = f"ep({ep}) does not divide experts({experts})" if experts else "the model has no experts"
    checks.require(ep == 1 or (experts > 0 and experts % ep == 0), "plan.ep", problem)
    even = job.router is not Router.BALANCED or uneven_copies(model, cp, plan.tp if plan.etp else 1) == 0
    checks.require(even, "router", unshared(model, plan))
    problem = too_uneven(model, job.imbalance)
    checks.require(not problem, "imbalance", problem)
