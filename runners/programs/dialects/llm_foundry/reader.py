"""Reads an llm-foundry training: `composer train.py FILE.yaml key=value ...`, or the YAML file alone.

A trial runs it by one file, in which the plan's keys stand for the user's. Names and defaults are of
mosaicml/llm-foundry at 8c8dd48f (July 2025), llmfoundry/utils/config_utils.py, and of mosaicml/composer at 64051888,
composer/utils/parallelism.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from meshtune.runners.json_files import shown
from meshtune.runners.programs.dialects.base import Imported, Launch
from meshtune.runners.programs.dialects.config_import import (
    ConfigReading,
    command_options,
    holds,
    mapping_in,
    program_words,
    read_mapping,
    settled,
    text_of,
)
from meshtune.runners.programs.dialects.llm_foundry.model import model_of
from meshtune.runners.programs.dialects.omegaconf import overridden, resolved
from meshtune.search_spaces.checks import names_in

CONFIG_FILE = "train.yaml"
_EXAMPLE = f"[python, scripts/train/train.py, '{{directory}}/{CONFIG_FILE}'], started from llm-foundry's folder"
_DTYPES = {"amp_bf16": "bfloat16", "amp_fp16": "float16", "fp32": "float32"}
_STRATEGIES = {"NO_SHARD": 0, "SHARD_GRAD_OP": 2, "FULL_SHARD": 3}
# What lengthens a run or leaves files.
_REMOVED = (
    *("eval_loader", "eval_loaders", "icl_tasks", "eval_gauntlet", "eval_first", "save_folder", "load_path"),
    *("autoresume", "loggers", "profiler", "callbacks.hf_checkpointer", "callbacks.async_eval"),
)
# composer/loggers/console_logger.py prints each metric on a line of its own.
LOG: Mapping[str, str] = {
    "samples_per_s": r"Train throughput/samples_per_sec: ([\d.]+)",
    "loss": r"Train loss/train/total: ([\d.]+|nan|inf)",
    "memory_gb": r"Train memory/peak_allocated_mem: ([\d.]+)",
}
# llmfoundry/utils/config_utils.py, TrainConfig; an unknown key is refused there.
_KNOWN = names_in("""
    accumulate_train_batch_on_tokens algorithms autoresume callbacks code_paths compile_config console_log_interval
    cuda_load_lazy device_eval_batch_size device_train_batch_size device_train_grad_accum device_train_microbatch_size
    dist_timeout eval_first eval_gauntlet eval_gauntlet_str eval_interval eval_loader eval_loaders
    eval_subset_num_batches expandable_segments flatten_metadata fsdp_config global_train_batch_size icl_seq_len
    icl_subset_num_batches icl_tasks icl_tasks_str load_ignore_keys load_path load_strict_model_weights
    load_weights_only log_config log_to_console loggers max_duration max_seq_len max_split_size_mb metadata model
    n_gpus only_composer_checkpoint only_hf_checkpoint optimizer precision profiler progress_bar python_log_level
    run_name save_filename save_folder save_ignore_keys save_interval save_latest_filename save_num_checkpoints_to_keep
    save_overwrite save_weights_only scheduler seed spin_dataloaders tokenizer tp_config train_loader
    train_subset_num_batches variables
""")


def is_program(launch: Launch) -> bool:
    """`train.py FILE.yaml`, where the file is one of llm-foundry's, or lies where llm-foundry has them."""
    named = next((word for word in launch.words if word.endswith((".yaml", ".yml"))), None)
    if PurePosixPath(launch.script).name != "train.py" or named is None or launch.words[0] != named:
        return False
    text = launch.files.get(named)
    return (
        is_file(named, text) if text is not None else "yamls/" in named or "foundry" in launch.script + launch.directory
    )


def is_file(name: str, text: str) -> bool:
    config = mapping_in(name, text)
    model = config.get("model")
    mine = {"max_duration", "fsdp_config", "device_train_microbatch_size"} & config.keys()
    return isinstance(model, dict) and "name" in model and "train_loader" in config and len(mine) >= 2


def read_file_text(name: str, text: str) -> Imported:
    """Raises CannotRead."""
    return _imported(read_mapping(name, text), None, name)


def read_launch(launch: Launch) -> Imported:
    """Raises CannotRead."""
    name, *words = launch.words
    own = read_mapping(name, text_of(launch, name, "llm-foundry is started with"))
    config, unknown = overridden(own, words, launch.place)
    return _imported(config, launch, launch.place, unknown)


def _imported(own: dict[str, Any], launch: Launch | None, place: str, unknown: list[str] | None = None) -> Imported:
    """unknown: words of the start that are not known here."""
    reading = ConfigReading(resolved(own), place=place)
    reading.ask_unknown([key for key in own if key not in _KNOWN], "llm-foundry")
    model = model_of(reading)
    devices = launch.nodes * launch.devices_per_node if launch and launch.nodes and launch.devices_per_node else None
    plan, batch = _plan(reading, devices)
    settings, fixed = _settings(reading, plan)
    removed = [key for key in _REMOVED if holds(own, key)]
    if removed:
        reading.note(f"{', '.join(removed)}: taken out for trials, which evaluate, load and leave nothing")
    words = [*(program_words(launch) if launch else []), f"{{directory}}/{CONFIG_FILE}", *(unknown or [])]
    options = command_options(reading, launch, words, _EXAMPLE)
    workload: dict[str, Any] = {
        **options,
        # composer's launcher sets it; the other variables are those of torchrun (composer/utils/dist.py).
        "env": {**options.get("env", {}), "LOCAL_WORLD_SIZE": "{devices_per_node}"},
        "configs": {CONFIG_FILE: {"format": "yaml", "base": own, "set": settings | dict.fromkeys(removed)}},
        "fixed": fixed,
        "log": dict(LOG),
        "framework": "fsdp",
        "dtype": _dtype(reading),
    }
    found = Imported(
        model=model,
        plan=plan,
        workload=workload,
        global_batch_size=batch,
        nodes=launch.nodes if launch else None,
        devices_per_node=launch.devices_per_node if launch else None,
    )
    return settled(found, reading, launch)


def _plan(reading: ConfigReading, devices: int | None) -> tuple[dict[str, Any], int | None]:
    """Fields of Plan, and the global batch."""
    plan: dict[str, Any] = {"tp": 1, "pp": 1}
    if reading.get("tp_config") is not None:
        plan["tp"] = reading.whole("tp_config.tensor_parallel_degree", "baseline.tp") or 1
    if plan["tp"] > 1:
        told = "tp_config cuts layers as its strategy says, and global_train_batch_size is shared out over all devices"
        reading.ask("", f"{told}, tensor ranks included; trials keep it. Check baseline and global_batch_size")
    spread = reading.whole("model.ffn_config.moe_world_size", "baseline.ep")
    if spread is not None and spread > 1:
        plan["ep"] = spread
    stage = _stage(reading)
    if stage is not None:
        plan["zero_stage"] = stage
    plan["recompute"] = "full" if reading.flag("fsdp_config.activation_checkpointing", "baseline.recompute") else "none"
    batch = reading.whole("global_train_batch_size", "global_batch_size")
    if devices is not None and devices % plan["tp"] == 0:
        plan["dp"] = devices // plan["tp"]
        if plan["dp"] == 1 and stage:
            reading.note(f"zero_stage({stage}) over one rank shards nothing: the baseline says 0")
            plan["zero_stage"] = 0
    micro = _micro_batch(reading, batch, plan.get("dp"))
    if micro is not None:
        plan["micro_batch_size"] = micro
        if batch is not None and "dp" in plan:
            plan["grad_accum_steps"] = batch // (micro * plan["dp"])
    return plan, batch


def _micro_batch(reading: ConfigReading, batch: int | None, dp: int | None) -> int | None:
    """utils/config_utils.py, calculate_batch_size_info: the default is auto; no more than a device's share."""
    if reading.get("device_train_microbatch_size") in (None, "auto"):
        told = "device_train_microbatch_size is auto: composer halves it until a step fits"
        reading.ask("baseline.micro_batch_size", f"{told}; its log tells the size that it found")
        return None
    micro = reading.whole("device_train_microbatch_size", "baseline.micro_batch_size")
    if micro is None or batch is None or dp is None:
        return micro
    share = batch // dp
    if batch % dp:
        reading.ask(
            "global_batch_size",
            f"global_train_batch_size({batch}) does not divide by {dp} devices, which composer refuses",
        )
        return micro
    if micro > share:
        reading.note(
            f"device_train_microbatch_size({micro}) is more than a device's {share} sequences, which composer takes"
        )
        return share
    if share % micro:
        told = (
            f"device_train_microbatch_size({micro}) does not divide a device's {share} sequences: the last is smaller"
        )
        reading.ask("baseline.micro_batch_size", f"{told}; a plan has equal ones, which?")
        return None
    return micro


def _stage(reading: ConfigReading) -> int | None:
    config = reading.get("fsdp_config")
    if config is None:
        return 0
    for key in ("activation_cpu_offload", "cpu_offload"):
        if reading.get(f"fsdp_config.{key}"):
            told = "what is kept lies on the host, which predictions do not know"
            reading.ask("", f"fsdp_config.{key}: {told}; it stays in every trial. Is that meant?")
    said = str(reading.get("fsdp_config.sharding_strategy") or "FULL_SHARD")
    shard = reading.get("fsdp_config.data_parallel_shard_degree")
    replicate = reading.get("fsdp_config.data_parallel_replicate_degree")
    if said in _STRATEGIES and shard in (None, -1) and replicate in (None, 1):
        return _STRATEGIES[said]
    told = f"fsdp_config shards by {said} within {shown(shard)} ranks, {shown(replicate)} times"
    reading.ask(
        "baseline.zero_stage",
        f"{told}; answer the nearest here and in workload.fixed: over all ranks (3 weights, 2 gradients), or none (0)",
    )
    return None


def _settings(reading: ConfigReading, plan: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What trials set, and what stays fixed."""
    settings: dict[str, Any] = {
        "global_train_batch_size": "{global_batch_size}",
        "device_train_microbatch_size": "{micro_batch_size}",
        "max_duration": "{steps}ba",
        # One step per line, and no mean of several.
        "log_to_console": True,
        "progress_bar": False,
        "console_log_interval": "1ba",
        "callbacks.speed_monitor.window_size": 1,
        "callbacks.memory_monitor": {},
    }
    fixed: dict[str, Any] = {name: plan[name] for name in ("tp", "pp", "ep") if name in plan}
    if isinstance(reading.get("fsdp_config"), Mapping) and "zero_stage" in plan:
        words = {str(stage): name for name, stage in _STRATEGIES.items()}
        settings["fsdp_config.sharding_strategy"] = {"{zero_stage}": words}
        settings["fsdp_config.activation_checkpointing"] = {"{recompute}": {"none": False, "full": True}}
    else:
        fixed |= {name: plan[name] for name in ("zero_stage", "recompute") if name in plan}
        if reading.get("fsdp_config") is None:
            reading.note(
                "no fsdp_config: replicas shard nothing, and so do trials; write `fsdp_config: {}` to try sharding"
            )
    return settings, fixed


def _dtype(reading: ConfigReading) -> str:
    precision = str(reading.get("precision") or "amp_bf16")
    if precision in _DTYPES:
        return _DTYPES[precision]
    reading.ask("workload.dtype", f"precision is {precision}; which of bfloat16, float16, float32 do products run in?")
    return ""
