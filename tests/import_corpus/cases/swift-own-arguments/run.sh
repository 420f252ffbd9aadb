#!/bin/bash
NPROC_PER_NODE=${NPROC_PER_NODE:-8} megatron sft \
    --model Qwen/Qwen3-30B-A3B \
    --load_safetensors true \
    --dataset data/train.jsonl \
    --torch_dtype bfloat16 \
    --tensor_model_parallel_size 2 \
    --expert_model_parallel_size 4 \
    --expert_tensor_parallel_size 2 \
    --sequence_parallel true \
    --micro_batch_size 1 \
    --global_batch_size 16 \
    --recompute_granularity full --recompute_method uniform --recompute_num_layers 1 \
    --max_length 8192 \
    --save out "$@"
