"""The keys of gpt-neox: those that only the program writes, those that an import reads, and those that change neither
shapes, plan nor memory.

From megatron/neox_arguments/neox_args.py and deepspeed_args.py of EleutherAI/gpt-neox at ea7aefd8 (May 2026), with what
0d4bdb96 (September 2024) and 299b68cd (May 2023) took out or renamed."""

from __future__ import annotations

from meshtune.search_spaces.checks import names_in

# Set by the program from other keys, the environment and the tokenizer (arguments.py, calculate_derived).
DERIVED = names_in("""
    adlr_autoresume_object autotuning_run batch_size clip_grad comet_experiment config_files do_test do_train
    do_valid dynamic_loss_scale git_hash global_num_gpus is_pipe_parallel local_rank lr optimizer_type
    padded_vocab_size rank tensorboard_writer text_gen_type tokenizer user_script wandb_group world_size
    zero_allgather_bucket_size zero_contiguous_gradients zero_reduce_bucket_size zero_reduce_scatter zero_stage
""")
# Read or asked about by model.py and plan.py.
_READ = names_in("""
    activation activation_checkpointing amp attention_config autotuning bf16 checkpoint_activations
    checkpoint_in_cpu checkpoint_num_layers compression_training contiguous_checkpointing curriculum_learning
    data_efficiency deepspeed_extra_args elasticity exclude expansion_factor expert_interval fp16 gas
    gpt_j_residual gpt_j_tied gradient_accumulation_steps hidden_size hostfile include intermediate_size
    launcher make_vocab_size_divisible_by mlp_multiple_of mlp_type model_parallel_size moe_expert_interval
    moe_expert_parallel_size moe_glu moe_num_experts moe_top_k moe_use_residual no_weight_tying norm
    num_attention_heads num_gpus num_kv_heads num_layers num_nodes num_unique_layers optimizer
    partition_activations pipe_parallel_size pos_emb precision seq_length sequence_parallel sliding_window_width
    soft_prompt_tuning sparse_attention sparsity_config te_columnparallel te_fp8_mha te_layernorm_mlp te_mha
    te_rowparallel tokenizer_type train_batch_size train_impl train_micro_batch_size_per_gpu use_mup vocab_file
    zero_optimization
""")
_HARMLESS = names_in("""
    account adlr_autoresume adlr_autoresume_interval allow_chopped apply_query_key_layer_scaling
    attention_dropout attention_softmax_in_fp32 base_shapes_file bias_dropout_fusion bias_gelu_fusion
    char_level_ppl checkpoint checkpoint_factor checkpoint_scale checkpoint_validation_with_forward_pass
    comet_experiment_name comet_others comet_project comet_tags comet_workspace comment comms_logger
    communication_data_type coord_check create_moe_param_group csv_monitor curriculum_seqlen data_impl data_path
    data_types dataset_impl deepscale deepscale_config deepspeed deepspeed_activation_checkpointing
    deepspeed_mpi deepspeed_slurm detect_nvlink_pairs dim_att distributed_backend dpo_beta dpo_fp32
    dpo_reference_free dump_state enable_expert_tensor_parallelism eod_mask_loss eval_interval eval_iters
    eval_results_prefix eval_tasks exit_interval extra_save_iters ffn_dim finetune flops_profiler force_multi
    fp16_lm_cross_entropy fp32_allreduce fp32_reinforce fused_kernels_build_path gmlp_attn_dim gradient_clipping
    gradient_noise_scale_cpu_offload gradient_noise_scale_n_batches gradient_predivide_factor head_size
    hidden_dropout hysteresis init_method init_method_std iteration keep_last_n_checkpoints kl_div_beta kl_impl
    kto_beta kto_desirable_weight kto_fp32 kto_undesirable_weight layernorm_epsilon layernorm_fusion
    lazy_mpu_init load log_dir log_grad_norm log_grad_pct_zeros log_gradient_noise_scale log_interval
    log_optimizer_states log_param_norm loss_scale loss_scale_window lr_decay_fraction lr_decay_iters
    lr_decay_style mamba_causal_conv_fusion mamba_inner_func_fusion mamba_selective_fp32_params
    mamba_selective_scan_fusion mamba_use_bias_in_conv mamba_use_bias_in_linears master_addr master_port
    max_position_embeddings maximum_tokens memory_profiling memory_profiling_path merge_file min_lr min_scale
    mmap_warmup moe_eval_capacity_factor moe_jitter_eps moe_lbl_in_fp32 moe_loss_coeff moe_min_capacity
    moe_router_type moe_token_dropping moe_train_capacity_factor moe_type mup_attn_temp mup_embedding_mult
    mup_init_scale mup_output_temp mup_rp_embedding_mult mup_width_scale neg_test_data_paths
    neg_test_label_data_paths neg_train_data_paths neg_train_label_data_paths neg_valid_data_paths
    neg_valid_label_data_paths no_load_optim no_load_rng no_save_optim no_save_rng no_ssh_check num_samples
    num_workers online_dataserver_ips online_dataserver_ports onnx_safe opt_pos_emb_offset
    output_layer_init_method output_layer_parallelism override_lr_scheduler pack_impl param_sharing_style
    peak_theoretical_tflops pipe_partition_method pos_test_data_paths pos_test_label_data_paths
    pos_train_data_paths pos_train_label_data_paths pos_valid_data_paths pos_valid_label_data_paths
    precompute_model_name prescale_gradients profile profile_backward profile_step_start profile_step_stop
    prompt_end recompute reinforce_leave_one_out return_logits rms_norm_epsilon rmsnorm_fusion rope_fusion
    rotary_emb_base rotary_pct rotary_save_freqs_buffer rpe_max_distance rpe_num_buckets s3_chunk_size s3_path
    sample_input_file sample_output_file save save_base_shapes save_iters scaled_masked_softmax_fusion
    scaled_upper_triang_masked_softmax_fusion scalenorm_epsilon scheduler seed serve_model_weights
    short_seq_prob sparse_gradients split steps_per_print synchronize_each_layer te_fp8_amax_compute_algo
    te_fp8_amax_history_len te_fp8_format te_fp8_margin te_fp8_wgrad temperature tensorboard tensorboard_dir
    test_data_paths test_data_weights test_label_data_paths test_reward_data_paths top_k top_p train_data_paths
    train_data_weights train_epochs train_iters train_label_data_paths train_reward_data_paths
    use_bias_in_attn_linear use_bias_in_mlp use_bias_in_norms use_bnb_optimizer use_checkpoint_lr_scheduler
    use_comet use_cpu_initialization use_flashattn_swiglu use_qk_layernorm use_shared_fs use_tutel use_wandb
    valid_data_paths valid_data_weights valid_label_data_paths valid_reward_data_paths wall_clock_breakdown
    wandb wandb_host wandb_init_all_ranks wandb_project wandb_run_name wandb_team warmup weight_by_num_documents
    weight_decay weight_server_port weighted_sampler_alpha z_loss
""")
KNOWN = DERIVED | _READ | _HARMLESS
