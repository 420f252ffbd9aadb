"""The keys of torchtitan's configurations, of every release from 0.0.2 (April 2024) to 0.3.0, and what became of those
that are gone.

Of 0.2.0 to 0.2.2 the union of the fields of torchtitan/config/job_config.py; of 0.3.0 the fields of TrainingConfig,
ParallelismConfig, CompileConfig, CommConfig and DebugConfig (torchtitan/config/configs.py). Older keys from the history
of torchtitan/config_manager.py (torchtrain/config_manager.py before c22d1a8d1) between 2024-02-23 and 2025-07-22."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

# (section, key); the section of a nested key is dotted.
Key = tuple[str, str]


def _keys(table: str) -> frozenset[Key]:
    """One section per line: its name, a colon, its keys."""
    rows = (line.split(":") for line in table.strip().splitlines())
    return frozenset((section.strip(), key) for section, keys in rows for key in keys.split())


_BOTH_0_2 = """
activation_checkpoint: early_stop memory_budget mode per_op_sac_force_recompute_mm_shapes_by_fqns selective_ac_option
activation_checkpoint: visualize_memory_budget_pareto
checkpoint: async_mode create_seed_checkpoint enable enable_first_step_checkpoint enable_ft_dataloader_checkpoints
checkpoint: exclude_from_loading export_dtype folder initial_load_in_hf initial_load_in_hf_quantized
checkpoint: initial_load_model_only initial_load_path interval keep_latest_k last_save_in_hf last_save_model_only
checkpoint: load_only load_step
comm: init_timeout_seconds save_traces_file_prefix save_traces_folder trace_buf_size train_timeout_seconds
compile: backend components enable
experimental: custom_args_module custom_import
fault_tolerance: enable group_size min_replica_size process_group process_group_timeout_ms replica_id semi_sync_method
job: config_file custom_config_module description dump_folder print_config
lr_scheduler: decay_ratio decay_type min_lr_factor warmup_steps
memory_estimation: disable_fake_mode enable
metrics: disable_color_printing enable_tensorboard enable_wandb log_freq save_for_all_ranks save_tb_folder
model: converters flavor hf_assets_path name print_after_conversion tokenizer_path
optimizer: beta1 beta2 early_step_in_backward eps implementation lr name weight_decay
parallelism: context_parallel_degree context_parallel_rotate_method data_parallel_replicate_degree
parallelism: data_parallel_shard_degree disable_loss_parallel enable_async_tensor_parallel expert_parallel_degree
parallelism: expert_tensor_parallel_degree fsdp_reshard_after_forward module_fqns_per_model_part
parallelism: pipeline_parallel_degree pipeline_parallel_first_stage_less_layers
parallelism: pipeline_parallel_last_stage_less_layers pipeline_parallel_layers_per_stage
parallelism: pipeline_parallel_microbatch_size pipeline_parallel_schedule pipeline_parallel_schedule_csv
parallelism: tensor_parallel_degree
profiling: enable_memory_snapshot enable_profiling profile_freq profiler_active profiler_warmup
profiling: save_memory_snapshot_folder save_traces_folder
quantize.grouped_mm.float8: fqns
quantize.grouped_mm.mx: fqns recipe_name
quantize.linear.float8: emulate enable_fsdp_float8_all_gather filter_fqns precompute_float8_dynamic_scale_for_fsdp
quantize.linear.float8: recipe_name
quantize.linear.mx: filter_fqns mxfp8_dim1_cast_kernel_choice recipe_name
training: dataset dataset_path dtype enable_cpu_offload gc_debug gc_freq global_batch_size local_batch_size max_norm
training: mixed_precision_param mixed_precision_reduce seq_len steps
validation: dataset dataset_path enable freq local_batch_size seq_len steps
"""
# What 0.2.1 took away.
ONLY_0_2_0 = _keys("""
parallelism: enable_compiled_autograd
training: debug_moe_force_load_balance deterministic seed
""")
# What 0.2.1 and 0.2.2 brought.
SINCE_0_2_1 = _keys("""
activation_checkpoint: debug determinism_check preserve_rng_state
comm: mode
debug: deterministic deterministic_warn_only moe_force_load_balance seed
job: save_config_file
lr_scheduler: total_steps
parallelism: context_parallel_load_balancer expert_parallel_comm_backend pipeline_parallel_expert_parallel_overlap
training.dataloader: num_workers persistent_workers pin_memory prefetch_factor
validation.dataloader: num_workers persistent_workers pin_memory prefetch_factor
""")
KEYS_0_2 = _keys(_BOTH_0_2) | ONLY_0_2_0 | SINCE_0_2_1
# Sections of which every key is known; flags of the others (optimizer, dataloader ...) follow from the components that
# a configuration function chose.
KEYS_0_3 = _keys("""
compile: backend components enable enable_async_tensor_parallel
comm: init_timeout_seconds mode save_traces_file_prefix save_traces_folder trace_buf_size train_timeout_seconds
debug: batch_invariant detect_anomaly deterministic deterministic_warn_only enable_structured_logging
debug: moe_force_load_balance print_config save_config_file seed spmd_typechecking
parallelism: context_parallel_degree context_parallel_load_balancer context_parallel_ptrr_mask_key
parallelism: data_parallel_replicate_degree data_parallel_shard_degree enable_fsdp_symm_mem enable_sequence_parallel
parallelism: expert_parallel_degree fsdp_reshard_after_forward module_fqns_per_model_part pipeline_parallel_degree
parallelism: pipeline_parallel_first_stage_less_layers pipeline_parallel_last_stage_less_layers
parallelism: pipeline_parallel_layers_per_stage pipeline_parallel_microbatch_size pipeline_parallel_schedule
parallelism: pipeline_parallel_schedule_csv spmd_backend tensor_parallel_degree
training: disable_cuda_graphs dtype enable_cpu_offload gc_debug gc_freq global_batch_size local_batch_size max_norm
training: mixed_precision_param mixed_precision_reduce seq_len steps
""")
SECTIONS_0_3 = frozenset({section for section, _ in KEYS_0_3} | {"activation_checkpoint"})

# Keys that went from one section to another.
_MOVED = """
training parallelism: tensor_parallel_degree pipeline_parallel_degree data_parallel_replicate_degree
training parallelism: data_parallel_shard_degree fsdp_reshard_after_forward disable_loss_parallel
experimental parallelism: context_parallel_degree context_parallel_rotate_method enable_async_tensor_parallel
experimental parallelism: enable_compiled_autograd pipeline_parallel_degree pipeline_parallel_microbatches
experimental parallelism: pipeline_parallel_schedule pipeline_parallel_schedule_csv pipeline_parallel_split_points
float8 quantize.linear.float8: emulate enable_fsdp_float8_all_gather filter_fqns recipe_name
float8 quantize.linear.float8: precompute_float8_dynamic_scale_for_fsdp
"""
# Keys of before 0.2 under their name in 0.2; what they say is read by the new name.
RENAMED: Mapping[Key, Key] = {
    ("training", "batch_size"): ("training", "local_batch_size"),
    ("training", "sequence_parallel_degree"): ("parallelism", "tensor_parallel_degree"),
    ("training", "data_parallel_degree"): ("parallelism", "data_parallel_shard_degree"),
    ("training", "compile"): ("compile", "enable"),
    ("training", "warmup_steps"): ("lr_scheduler", "warmup_steps"),
    ("lr_scheduler", "lr_min"): ("lr_scheduler", "min_lr_factor"),
    ("checkpoint", "enable_checkpoint"): ("checkpoint", "enable"),
    ("checkpoint", "model_weights_only"): ("checkpoint", "last_save_model_only"),
    ("checkpoint", "last_save_model_weights_only"): ("checkpoint", "last_save_model_only"),
    ("checkpoint", "initial_load_model_weights_only"): ("checkpoint", "initial_load_model_only"),
    ("memory_estimation", "enabled"): ("memory_estimation", "enable"),
    ("validation", "enabled"): ("validation", "enable"),
    ("profiling", "run_profiler"): ("profiling", "enable_profiling"),
    ("profiling", "profile_every_x_iter"): ("profiling", "profile_freq"),
    ("job", "print_args"): ("job", "print_config"),
    **{(before, key): (since, key) for sections, key in _keys(_MOVED) for before, since in [sections.split()]},
    ("float8", "moe_fqns_prototype"): ("quantize.grouped_mm.float8", "fqns"),
    ("mx", "filter_fqns"): ("quantize.linear.mx", "filter_fqns"),
    ("mx", "recipe_name"): ("quantize.linear.mx", "recipe_name"),
    ("mx", "mxfp8_dim1_cast_kernel_choice"): ("quantize.linear.mx", "mxfp8_dim1_cast_kernel_choice"),
    ("mx", "moe_fqns_prototype"): ("quantize.grouped_mm.mx", "fqns"),
}
# What `model.converters = ["float8"]` is in 0.2.
FLOAT8_SWITCHES = _keys("""
float8: enable_float8_linear
training: enable_float8_linear enable_fp8_linear fp8_linear
""")
# Keys of before 0.2 that a plan's reader understands under their own name.
READ_OLD = FLOAT8_SWITCHES | _keys("""
model: norm_type
parallelism: pipeline_parallel_microbatches pipeline_parallel_split_points
training: data_parallel_type
""")
# Gone before 0.2, and nothing of them changes what is trained, how fast or in how much memory.
GONE = _keys("""
checkpoint: interval_type last_save_in_safetensors_format
comm: timeout_seconds
job: save_config_folder use_for_integration_test
metrics: disable_logging_from_checkpoint enable_color_printing rank_0_only
optimizer: fused
training: checkpoint_folder checkpoint_interval checkpoint_interval_type enable_loss_parallel warmup_pct
""")
# Gone before 0.2 with what they switched on.
GONE_FEATURES = _keys("""
estimate: memory mode
experimental: custom_model_path pipeline_parallel_split_mode torch_spmd
fault_tolerance: fragment_sync_delay fragment_update_alpha module_fqns_per_model_fragment num_fragments
fault_tolerance: should_quantize sync_steps
float8: force_recompute_fp8_weight_in_bwd scaling_type_grad_output scaling_type_input scaling_type_weight
model: attn_mask_type use_flex_attn
mx: use_fp8_dim1_cast_triton_kernel
quantize.dense.float8: emulate enable_fsdp_float8_all_gather filter_fqns precompute_float8_dynamic_scale_for_fsdp
quantize.dense.float8: recipe_name
quantize.dense.mx: filter_fqns mxfp8_dim1_cast_kernel_choice recipe_name
quantize.moe.float8: fqns
quantize.moe.mx: fqns
training: enable_fsdp_float8_all_gather enable_fsdp_fp8_all_gather enable_selective_ac float8_scaling_type_grad_output
training: float8_scaling_type_input float8_scaling_type_weight precompute_float8_dynamic_scale_for_fsdp
""")
OLD = frozenset(RENAMED) | READ_OLD | GONE | GONE_FEATURES


@dataclass(frozen=True, slots=True)
class Setting:
    """What one that no plan has means for a campaign. says: whether a value says something of it. text: what. open: it
    is a question, not a note."""

    says: Callable[[Any], bool]
    text: str
    open: bool = False


def _stays(what: str) -> Setting:
    return Setting(bool, f"{what}; it stays as it is, and predictions do not know it")


def _asks(what: str) -> Setting:
    return Setting(bool, what, open=True)


_CUSTOM = _asks("a module of yours may change model, configuration and training; trials import it too")
_EIGHT_BIT = _stays("products in 8 bits; peaks are of the 16-bit format")
SETTINGS: Mapping[Key, Setting] = {
    ("training", "enable_cpu_offload"): _stays("parameters, gradients and optimizer state lie on the host"),
    ("training", "dtype"): Setting(
        lambda value: value == "bfloat16",
        "weights, gradients and optimizer state are bfloat16, without float32 copies; it stays as it is, and "
        "predictions count float32",
    ),
    ("compile", "enable"): _stays("torch.compile; the first steps take minutes"),
    ("compile", "enable_async_tensor_parallel"): _stays("tensor parallel messages behind matrix products"),
    ("parallelism", "enable_async_tensor_parallel"): _stays("tensor parallel messages behind matrix products"),
    ("parallelism", "disable_loss_parallel"): _stays("the logits are gathered over the tensor ranks"),
    ("parallelism", "enable_compiled_autograd"): _stays("a compiled backward pass"),
    ("parallelism", "expert_parallel_comm_backend"): Setting(
        lambda value: value != "standard", "other messages of experts than all-to-all; it stays as it is"
    ),
    ("parallelism", "enable_fsdp_symm_mem"): _stays("FSDP by symmetric memory"),
    ("model", "converters"): _EIGHT_BIT,
    **dict.fromkeys(sorted(FLOAT8_SWITCHES), _EIGHT_BIT),
    ("optimizer", "name"): Setting(
        lambda value: value not in ("AdamW", "Adam"), "predictions count Adam's two states per weight"
    ),
    ("optimizer", "early_step_in_backward"): _stays("the optimizer runs inside of the backward pass"),
    ("model", "norm_type"): Setting(
        lambda value: value not in ("rmsnorm", "compiled_rmsnorm", "fused_rmsnorm"),
        "other normalisation than RMSNorm, which 0.2 has alone",
        open=True,
    ),
    ("fault_tolerance", "enable"): _asks("replicas by torchft, which no plan has a word for; trials keep it on"),
    ("checkpoint", "create_seed_checkpoint"): _asks("this run only writes a checkpoint and trains nothing"),
    ("memory_estimation", "enable"): _asks("this run only estimates memory and trains nothing"),
    ("comm", "mode"): Setting(
        lambda value: value not in ("default", "torchcomms"), "this run trains nothing real", open=True
    ),
    ("experimental", "custom_import"): _CUSTOM,
    ("experimental", "custom_args_module"): _CUSTOM,
    ("experimental", "custom_model_path"): _CUSTOM,
    ("job", "custom_config_module"): _CUSTOM,
}
