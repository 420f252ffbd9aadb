#!/bin/bash
deepspeed --num_gpus 2 --module swift.cli.sft --model Qwen/Qwen3-8B --dataset talks.jsonl --deepspeed default-zero3 \
  --lora_rank 32 --torch_dtype bfloat16 --per_device_train_batch_size 1 --gradient_accumulation_steps 8 --max_length 4096
