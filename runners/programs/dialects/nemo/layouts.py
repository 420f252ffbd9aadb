"""Where each program on Megatron-Core keeps what: NeMo 2 recipes, NeMo 1 and Megatron-Bridge, by dotted keys.

From NVIDIA/NeMo at 8cfedd72 (September 2025) and NVIDIA-NeMo/Megatron-Bridge at 067f987d (August 2026)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshtune.runners.programs.dialects.config_import import at
from meshtune.search_spaces.checks import names_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """model: the section of the shapes. parallel: that of the degrees. granularity: the key of recomputation, of which
    method and number of layers are `recompute` with their endings. distributed: keys that shard the optimizer.
    trials: what a trial sets beside the plan. removed: keys that trials do without."""

    name: str
    example: str
    model: str
    parallel: str
    micro_batch_size: str
    global_batch_size: str
    seq_len: tuple[str, ...]
    recompute: str
    distributed: tuple[str, ...]
    nodes: str
    devices: str
    trials: Mapping[str, Any]
    removed: tuple[str, ...]
    log: Mapping[str, str]


# nemo/lightning/pytorch/callbacks/progress_printer.py (` | name: value`), and Lightning's bar in NeMo 1 (`name=value`).
_TIMING = {
    "step": r"global_step[:=] ?([\d.]+)",
    "step_time_s": r"train_step_timing in s[:=] ?([\d.e+-]+)",
    "loss": r"reduced_train_loss[:=] ?([\d.e+-]+|nan|inf)",
}
_TRIALS: Mapping[str, Any] = {
    "trainer.max_steps": "{steps}",
    "trainer.val_check_interval": "{steps}",
    "trainer.limit_val_batches": 0,
    "trainer.log_every_n_steps": 1,
}
NEMO_2 = Layout(
    name="NeMo 2",
    example="[nemo, llm, pretrain, --yaml, '{directory}/nemo.yaml', --yes], or your script that loads the recipe",
    model="model.config",
    parallel="trainer.strategy",
    micro_batch_size="data.micro_batch_size",
    global_batch_size="data.global_batch_size",
    seq_len=("data.seq_length",),
    recompute="model.config.recompute",
    distributed=("optim.config.use_distributed_optimizer",),
    nodes="trainer.num_nodes",
    devices="trainer.devices",
    # As NeMo's own scripts/performance/helpers.py has it.
    trials={**_TRIALS, "trainer.enable_checkpointing": False},
    removed=("log.ckpt", "log.wandb", "log.tensorboard", "resume"),
    log=_TIMING,
)
NEMO_1 = Layout(
    name="NeMo 1",
    example="[python, megatron_gpt_pretraining.py, --config-path, '{directory}', --config-name, nemo], with your paths",
    model="model",
    parallel="model",
    micro_batch_size="model.micro_batch_size",
    global_batch_size="model.global_batch_size",
    seq_len=("model.encoder_seq_length", "model.data.seq_length"),
    recompute="model.activations_checkpoint",
    distributed=(),
    nodes="trainer.num_nodes",
    devices="trainer.devices",
    trials={
        **_TRIALS,
        "exp_manager.create_checkpoint_callback": False,
        "exp_manager.resume_if_exists": False,
        "exp_manager.create_wandb_logger": False,
    },
    removed=(),
    log=_TIMING,
)
BRIDGE = Layout(
    name="Megatron-Bridge",
    example="[python, train.py, '{directory}/nemo.yaml'], whose train.py calls ConfigContainer.from_yaml",
    model="model",
    parallel="model",
    micro_batch_size="train.micro_batch_size",
    global_batch_size="train.global_batch_size",
    seq_len=("dataset.seq_length", "dataset.sequence_length", "model.seq_length"),
    recompute="model.recompute",
    distributed=("optimizer.use_distributed_optimizer", "ddp.use_distributed_optimizer"),
    nodes="",
    devices="",
    trials={"train.train_iters": "{steps}", "logger.log_interval": 1},
    removed=("checkpoint.save", "checkpoint.load", "logger.tensorboard_dir", "logger.wandb_project"),
    # src/megatron/bridge/training/utils/train_utils.py.
    log={
        "step": r"iteration\s+(\d+)/\s*\d+ \|",
        "step_time_ms": r"elapsed time per iteration \(ms\): ([\d.]+)",
        "loss": r"lm loss: ([\d.E+-]+|nan|inf)",
        "gradient_norm": r"grad norm: ([\d.]+|nan|inf)",
    },
)

# The keys of `model` that NeMo 1 has for decoders: the files megatron_*_config.yaml of decoders in
# examples/nlp/language_modeling/conf, and what megatron_gpt_model.py and megatron_base_model.py ask their cfg for.
NEMO_1_KEYS = names_in("""
    account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split activation
    activations_checkpoint_granularity activations_checkpoint_layers_per_pipeline activations_checkpoint_method
    activations_checkpoint_num_layers apex_transformer_log_level apply_embedding_scaling
    apply_query_key_layer_scaling apply_rope_fusion async_grad_allreduce attention_backend attention_dropout
    attention_type batch_p2p_comm bias bias_activation_fusion bias_dropout_add_fusion context_parallel_size
    cp_comm_type cpu_offloading cpu_offloading_activations cpu_offloading_num_layers cpu_offloading_weights data
    defer_embedding_wgrad_compute dist_ckpt_assume_constant_structure dist_ckpt_format dist_ckpt_load_on_device
    dist_ckpt_load_strictness dist_ckpt_parallel_dist_opt dist_ckpt_parallel_load dist_ckpt_parallel_save
    dist_ckpt_parallel_save_within_dp dist_ckpt_torch_dist_multiproc distributed_adam_bucket_merge_size
    do_layer_norm_weight_decay drop_last drop_layers enable_cuda_graph enable_megatron_timers encoder_seq_length
    expert_model_parallel_size ffn_dropout ffn_hidden_size fp16_lm_cross_entropy fp32_residual_connection fp8
    fp8_amax_compute_algo fp8_amax_history_len fp8_e4m3 fp8_hybrid fp8_interval fp8_margin fp8_params fsdp
    fsdp_grad_reduce_dtype fsdp_sharded_checkpoint fsdp_sharding_strategy gc_interval
    get_attention_mask_from_fusion global_batch_size grad_allreduce_chunk_size_mb grad_div_ar_fusion
    gradient_accumulation_fusion gradient_as_bucket_view headscale hidden_dropout hidden_size high_freq_factor
    hysteresis init_method_std kv_channels layernorm_epsilon layernorm_zero_centered_gamma low_freq_factor
    make_vocab_size_divisible_by masked_softmax_fusion max_position_embeddings mcore_customization_config
    mcore_gpt megatron_amp_O2 megatron_legacy megatron_timer_kwargs micro_batch_size moe_aux_loss_coeff
    moe_ffn_hidden_size moe_grouped_gemm moe_input_jitter_eps moe_layer_freq moe_router_load_balancing_type
    moe_router_topk moe_shared_expert_intermediate_size moe_token_dropping moe_z_loss_coeff
    multi_latent_attention native_amp_growth_interval native_amp_init_scale nccl_communicator_config_path
    normalization normalize_attention_scores nsys_profile num_attention_heads num_layers
    num_layers_in_first_pipeline_stage num_layers_in_last_pipeline_stage
    num_micro_batches_with_partial_activation_checkpoints num_moe_experts num_query_groups old_context_len
    onnx_safe openai_gelu optim overlap_p2p_comm override_vocab_size persist_layer_norm
    pipeline_model_parallel_comm_backend pipeline_model_parallel_size position_embedding_type post_process
    pre_process precision qkv_bias rampup_batch_size reduce_amax reset_lr reset_lr_steps restore_from_ckpt
    restore_from_path resume_from_checkpoint rotary_base rotary_interleaved rotary_percentage scale_factor
    scale_positional_embedding seed seq_len_interpolation_factor sequence_parallel
    share_embeddings_and_output_weights sharp skip_fp8_attention_checkpoint_load skip_train sync_batch_comm
    tensor_model_parallel_size tensor_model_parallel_world_size tokenizer tp_only_amax_red
    transformer_block_type transformer_engine ub_tp_comm_bootstrap_backend ub_tp_comm_overlap
    ub_tp_comm_overlap_cfg use_cpu_initialization use_emha use_flash_attention use_scaled_init_method
    use_te_rng_tracker use_tp_pp_dp_mapping validation_drop_last validation_param_sync_overlap
    virtual_pipeline_model_parallel_size with_fp32_embedding_grads
""")


def layout_of(config: Mapping[str, Any]) -> Layout | None:
    """Whose configuration it is; None: of none of them."""
    model, own = str(at(config, "model._target_") or ""), str(config.get("_target_") or "")
    if "megatron.bridge." in own or "megatron.bridge." in model:
        return BRIDGE
    strategy = str(at(config, "trainer.strategy._target_") or "")
    if "nemo.lightning" in strategy or "nemo.collections" in model or own.startswith("nemo."):
        return NEMO_2
    named = isinstance(config.get("model"), Mapping) and isinstance(config.get("trainer"), Mapping)
    if named and {"micro_batch_size", "tensor_model_parallel_size"} <= config["model"].keys():
        return NEMO_1
    if {"model", "train"} <= config.keys() and at(config, "train.global_batch_size") is not None:
        return BRIDGE
    return None
