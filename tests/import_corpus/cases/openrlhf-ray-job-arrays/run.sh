#!/bin/bash
set -x
MODEL="Qwen/Qwen3-4B"
SAVE="$PWD/exp/qwen3-4b-math"

CKPT_ARGS=(
   --actor.model_name_or_path ${MODEL}
   --ckpt.load_enable
   --ckpt.output_dir ${SAVE}
   --ckpt.path "${SAVE}/ckpt"
   --ckpt.save_steps 10
)
ROLLOUT_ARGS=(
   --train.agent_func_path agent.py
   --data.prompt_dataset math-17k
   --data.max_len 10240
   --rollout.max_new_tokens 8192
   --ds.packing_samples
   --rollout.batch_size 64
   --rollout.n_samples_per_prompt 16
   --train.batch_size 512
   --train.dynamic_batch_enable
   --train.max_tokens_per_gpu 20480
   --rollout.max_tokens_per_gpu 40960
   --data.max_samples 64000
)
ENGINE_ARGS=(
   --train.async_enable
   --actor.num_nodes 1
   --actor.num_gpus_per_node 4
   --ref.num_nodes 1
   --ref.num_gpus_per_node 4
   --vllm.num_engines 2
   --vllm.tensor_parallel_size 2
   --vllm.gpu_memory_utilization 0.9
   --train.colocate_all
   --ds.enable_sleep
   --ds.zero_stage 3
   --ds.ring_attn_size 2
   --actor.gradient_checkpointing_enable
)

ray job submit --address="http://127.0.0.1:8265" \
   --runtime-env-json='{"working_dir": ".", "env_vars": {"NCCL_DEBUG": "WARN"}}' \
   -- python3 -m openrlhf.cli.train_ppo_ray \
   ${CKPT_ARGS[@]} \
   ${ROLLOUT_ARGS[@]} \
   ${ENGINE_ARGS[@]} \
   --algo.advantage.estimator reinforce_baseline --algo.kl.init_coef 1e-5 --algo.kl.use_loss \
   --logger.tensorboard_dir ${SAVE}/runs
