#!/bin/bash
ranks=$(python3 -c 'print(2 + 2)')
export NPROC_PER_NODE=$ranks
megatron pt --model Qwen/Qwen3-4B --tuner_type full --dataset web --torch_dtype bfloat16 --packing true --max_length 2048 \
  --pipeline_model_parallel_size 2 --decoder_first_pipeline_num_layers 16 --micro_batch_size 2 --global_batch_size $((ranks * 8))
swift export --mcore_model out
