"""What a gpt-neox configuration says of a plan, and which of its keys a plan sets in turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meshtune.runners.json_files import shown
from meshtune.runners.programs.dialects.base import CannotRead, Launch
from meshtune.runners.programs.dialects.config_import import ConfigReading

# What trials do not do: they keep no checkpoint and load none, and write no log elsewhere.
_REMOVED = ("save", "load", "tensorboard_dir", "log_dir", "s3_path", "extra_save_iters")
_ON_HOST = ("offload_optimizer", "offload_param")
# neox_args.py, precision.
_DTYPES = {"fp16": "float16", "bfloat16": "bfloat16", "fp32": "float32"}


@dataclass(slots=True)
class Settings:
    """set: of the configuration, by key, in the user's spelling; None takes one away. fixed: as the workload has it.
    dtype: "" where it is asked."""

    set: dict[str, Any] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)
    dtype: str = ""


def devices_of(reading: ConfigReading, launch: Launch | None) -> tuple[int | None, int | None, int | None]:
    """Nodes, devices per node and all devices, as far as they are known."""
    nodes = reading.whole("num_nodes", "cluster", least=-1)
    nodes = nodes if nodes and nodes > 0 else launch.nodes if launch else None
    per_node = reading.whole("num_gpus", "cluster") or (launch.devices_per_node if launch else None)
    devices = reading.whole("global_num_gpus", "cluster")
    if devices is None and nodes and per_node:
        devices = nodes * per_node
    if devices and nodes and not per_node and devices % nodes == 0:
        per_node = devices // nodes
    if devices and not nodes:
        reading.note(f"it ran on {devices} devices; name such a cluster")
    return nodes, per_node, devices


def plan_of(reading: ConfigReading, devices: int | None) -> tuple[dict[str, Any], int | None]:
    """Fields of Plan, and the global batch. Raises CannotRead for numbers that gpt-neox refuses."""
    tp = reading.whole("model_parallel_size", "baseline.tp", least=0)
    pp = reading.whole("pipe_parallel_size", "baseline.pp", least=0)
    # arguments.py, calculate_derived: less than 1 is 1; the defaults are 1 and 0.
    plan: dict[str, Any] = {"tp": tp or 1, "pp": pp or 1}
    if plan["tp"] > 1:
        plan["sequence_parallel"] = bool(reading.flag("sequence_parallel", "baseline.sequence_parallel"))
    plan |= _ends(reading, plan["pp"])
    plan["zero_stage"] = _stage(reading)
    checkpointing = reading.flag("checkpoint_activations", "baseline.recompute")
    plan["recompute"] = "full" if checkpointing else "none"
    if checkpointing and (reading.whole("checkpoint_num_layers", "baseline.recompute") or 1) > 1:
        reading.note(
            "checkpoint_num_layers: so many layers are computed again together; predictions take them one by one"
        )
    batch = _batch(reading, plan, devices)
    if plan.get("dp") == 1 and plan.get("zero_stage"):
        reading.note(
            f"zero_stage({plan['zero_stage']}) over one data-parallel rank shards nothing: the baseline says 0"
        )
        plan["zero_stage"] = 0
    return plan, batch


def _ends(reading: ConfigReading, pp: int) -> dict[str, int]:
    """How many layers fewer the first and the last stage hold. By megatron/model/gpt2_model.py at ea7aefd8,
    EmbeddingPipe is the head, too, where its weights are tied; mlp names no layer of a plain transformer."""
    said = reading.get("pipe_partition_method")
    method = str(said).lower()
    types = set(method.removeprefix("type:").split("|")) if method.startswith("type:") else set()
    if pp == 1 or said is None or (types and types <= {"transformer", "mlp"}):
        return {}
    if pp > 2 and types - {"mlp"} in ({"transformer", "embedding"}, {"transformer", "embed"}):
        tied = not reading.get("no_weight_tying")
        return {"first_stage_less_layers": 1, **({"last_stage_less_layers": 1} if tied else {})}
    told = "predictions take stages of equally many layers; it stays in every trial. Is that near enough?"
    reading.ask("", f"pipe_partition_method is {shown(said)}: {told}")
    return {}


def _stage(reading: ConfigReading) -> int | None:
    section = reading.get("zero_optimization")
    if section is None:
        # arguments.py, ZERO_DEFAULTS.
        return 0
    stage = section.get("stage") if isinstance(section, Mapping) else None
    if isinstance(stage, bool) or stage not in (0, 1, 2, 3):
        reading.ask(
            "baseline.zero_stage", f"zero_optimization.stage is {shown(stage)}; which of 0, 1, 2, 3 is trained with?"
        )
        return None
    on_host = [
        name for name in _ON_HOST if isinstance(section.get(name), Mapping) and section[name].get("device") != "none"
    ]
    on_host += ["cpu_offload"] if section.get("cpu_offload") else []
    if on_host:
        told = f"zero_optimization.{', '.join(on_host)}: states on the host, which predictions do not know"
        reading.ask("", f"{told}; it stays in every trial. Delete this line if that is meant")
    return int(stage)


def _batch(reading: ConfigReading, plan: dict[str, Any], devices: int | None) -> int | None:
    """The global batch; dp, micro-batch and accumulation are put into the plan (calculate_batch_parameters)."""
    micro = reading.whole("train_micro_batch_size_per_gpu", "baseline.micro_batch_size")
    batch = reading.whole("train_batch_size", "global_batch_size")
    # deepspeed_args.py: the default is 1, which counts as said; `gas` was its name until 2023.
    steps = reading.whole("gradient_accumulation_steps", "baseline") or reading.whole("gas", "baseline") or 1
    group = plan["tp"] * plan["pp"]
    if devices is not None and devices % group == 0:
        dp = devices // group
        plan["dp"] = dp
        if micro is None and batch is not None:
            micro = batch // dp // steps
        if micro is not None and batch is None:
            batch = micro * steps * dp
        if batch is not None and batch != (micro or 0) * steps * dp:
            told = f"{reading.place}: train_batch_size({batch}) is not train_micro_batch_size_per_gpu({micro}) * "
            raise CannotRead(f"{told}gradient_accumulation_steps({steps}) * dp({dp}), which gpt-neox refuses")
    elif devices is not None:
        reading.note(
            f"{devices} devices do not divide by tp({plan['tp']}) * pp({plan['pp']}); dp follows from the cluster"
        )
    neither = "neither train_batch_size nor train_micro_batch_size_per_gpu is said, one of which gpt-neox needs"
    if micro is None:
        told = "train_micro_batch_size_per_gpu follows from train_batch_size and the devices, which are not known"
        reading.ask("baseline.micro_batch_size", neither if batch is None else told)
    else:
        plan["micro_batch_size"] = micro
        plan["grad_accum_steps"] = steps
    if batch is None:
        devices_told = f"with dp = devices / (tp({plan['tp']}) * pp({plan['pp']}))"
        told = f"train_batch_size follows from the devices: micro-batch {micro} * {steps} * dp, {devices_told}"
        reading.ask("global_batch_size", neither if micro is None else told)
    return batch


def settings_of(
    reading: ConfigReading, plan: Mapping[str, Any], spelled: Mapping[str, str], resolved: bool
) -> Settings:
    """What trials set. spelled: the user's spelling of each key. resolved: every argument of the release is known."""

    def spell(key: str) -> str:
        return spelled.get(key, key)

    found = Settings(dtype=_dtype(reading))
    found.set = {
        spell("model_parallel_size"): "{tp}",
        spell("train_micro_batch_size_per_gpu"): "{micro_batch_size}",
        spell("gradient_accumulation_steps"): "{grad_accum_steps}",
        spell("checkpoint_activations"): {"{recompute}": {"none": False, "full": True}},
        # Training ends after so many steps, and prints each.
        spell("exit_interval"): "{steps}",
        spell("log_interval"): 1,
    }
    if "gas" in spelled:
        found.set[spell("gas")] = found.set.pop("gradient_accumulation_steps")
    if "train_batch_size" in spelled:
        found.set[spell("train_batch_size")] = "{global_batch_size}"
    piped = bool(reading.get("pipe_parallel_size"))
    if piped:
        found.set[spell("pipe_parallel_size")] = "{pp}"
    else:
        found.fixed["pp"] = 1
        reading.note(
            "pipe_parallel_size 0 trains without a pipeline engine, and so do trials; write 1 to try pipelines"
        )
    # Stages are cut as the configuration says, whatever pp is.
    found.fixed |= {field: plan[field] for field in plan if field.endswith("_stage_less_layers")}
    if "zero_optimization" in spelled:
        # deepspeed/runtime/pipe/engine.py: "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism".
        stages = range(2) if piped else range(4)
        found.set[f"{spell('zero_optimization')}.stage"] = {"{zero_stage}": {str(stage): stage for stage in stages}}
    else:
        found.fixed["zero_stage"] = 0
    # A release before August 2024 refuses the key.
    if "sequence_parallel" in spelled or (resolved and reading.get("sequence_parallel") is not None):
        found.set[spell("sequence_parallel")] = "{sequence_parallel}"
    else:
        found.fixed["sequence_parallel"] = False
    if spelled.keys() & {"use_wandb"}:
        found.set[spell("use_wandb")] = False
    found.set |= {spelled[key]: None for key in _REMOVED if key in spelled}
    return found


def _dtype(reading: ConfigReading) -> str:
    """The number format (arguments.py, calculate_derived: without any word float32); "" where it is asked."""
    said = {key: reading.get(key) for key in ("fp16", "bf16")}
    extra = reading.get("deepspeed_extra_args")
    if said["bf16"] is None and isinstance(extra, Mapping):
        said["bf16"] = extra.get("bf16")
    on = {key for key, section in said.items() if isinstance(section, Mapping) and section.get("enabled") is True}
    precision = reading.get("precision")
    if isinstance(said["fp16"], Mapping) and said["fp16"].get("type") == "bfloat16":
        told = "fp16.type is bfloat16: 16-bit floats of DeeperSpeed before 2023, float16 in later releases"
        reading.ask("workload.dtype", f"{told}; bfloat16 or float16?")
        return ""
    if reading.get("amp"):
        reading.ask("workload.dtype", "amp is set; which of bfloat16, float16, float32 do products run in?")
        return ""
    if precision is None:
        if len(on) > 1:
            reading.ask("workload.dtype", "fp16.enabled and bf16.enabled are both true; bfloat16 or float16?")
            return ""
        precision = {"fp16": "fp16", "bf16": "bfloat16"}.get(next(iter(on), ""), "fp32")
    elif on and {"fp16": "fp16", "bf16": "bfloat16"}[next(iter(on))] != precision:
        raise CannotRead(
            f"{reading.place}: precision is {precision}, but {next(iter(on))}.enabled, which gpt-neox refuses"
        )
    if precision in _DTYPES:
        return _DTYPES[precision]
    reading.ask("workload.dtype", f"precision is {shown(precision)}; which of bfloat16, float16, float32 is it?")
    return ""


# What predictions do not know; and what makes another model.
_BEYOND = (
    "checkpoint_in_cpu",
    "contiguous_checkpointing",
    "num_unique_layers",
    "soft_prompt_tuning",
    "elasticity",
)
_UNLIKE = (
    "sparse_attention",
    "sparsity_config",
    "compression_training",
    "autotuning",
    "moe_glu",
    "moe_use_residual",
)


def ask_the_rest(reading: ConfigReading, nodes: int | None) -> None:
    """Keys that change memory or speed beyond what a plan and a model say."""
    for key in filter(reading.get, _BEYOND):
        reading.ask("", f"{key} is set, which predictions do not know; it stays in every trial. Is that meant?")
    for key in filter(reading.get, _UNLIKE):
        reading.ask("", f"{key} is set: the model trained is not the one that predictions count. Is that meant?")
    engines = [key for key in ("te_columnparallel", "te_rowparallel", "te_layernorm_mlp", "te_mha") if reading.get(key)]
    if engines or reading.get("te_fp8_mha"):
        reading.ask(
            "", f"{', '.join(engines) or 'te_fp8_mha'}: Transformer Engine's layers, which may compute in 8 bits"
        )
    kind = reading.get("train_impl")
    if kind not in (None, "normal"):
        told = "a step is more than one pass over the batch, which predictions do not know"
        reading.ask("", f"train_impl is {kind}: {told}")
    optimizer = reading.get("optimizer")
    name = str(optimizer.get("type", "Adam")) if isinstance(optimizer, Mapping) else "Adam"
    if name.lower().startswith("cpu"):
        reading.ask("", f"optimizer.type is {name}: its states are on the host, which predictions do not know")
    elif name.lower() not in ("adam", "adamw", "fusedadam"):
        reading.note(f"optimizer.type {name}: predictions count the states of Adam")
    for key in filter(reading.get, ("gpt_j_residual", "sliding_window_width", "partition_activations", "use_mup")):
        reading.note(f"{key} stays as it is; predictions do not know it")
    for key in ("curriculum_learning", "data_efficiency"):
        section = reading.get(key)
        if isinstance(section, Mapping) and section.get("enabled"):
            reading.ask("", f"{key} is enabled: sequences change over training; trials see its first steps")
    for key in filter(reading.get, ("hostfile", "include", "exclude")):
        told = f"{key} {shown(reading.get(key))} names hosts for DeepSpeed's launcher; trials have nodes of their own"
        reading.ask("", f"{told}: take it out of workload.configs, unless it is right for them")
    by_name = reading.get("launcher") not in (None, "pdsh")
    if by_name or reading.get("deepspeed_slurm") or reading.get("deepspeed_mpi"):
        reading.note(f"launcher {reading.get('launcher')}: deepy.py starts the ranks by it, once per job")
    elif nodes != 1 and not reading.get("hostfile"):
        told = "without hostfile, launcher or deepspeed_slurm DeepSpeed trains on one node alone"
        if nodes is None:
            reading.note(told)
        else:
            reading.ask("", f"{told}; how do trials on several nodes find the others?")
