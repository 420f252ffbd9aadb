#!/bin/bash
PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True' \
NPROC_PER_NODE=8 \
megatron sft --model Qwen/Qwen3-30B-A3B --load_safetensors true --dataset mine.jsonl --torch_dtype bfloat16 \
  --pipeline_model_parallel_size 2 --expert_model_parallel_size 4 --moe_permute_fusion true --micro_batch_size 2 \
  --packing true --max_length 4096 --recompute_granularity full --recompute_method uniform --recompute_num_layers 1 \
  --max_epochs 2 --save /data/out --save_interval 100 --log_interval 5 --megatron_extra_kwargs '{"lr_warmup_init": 1e-7}'
