#!/bin/bash
accelerate launch --config_file examples/accelerate_configs/deepspeed_zero2.yaml --num_processes 4 \
    examples/scripts/sft.py \
    --model_name_or_path google/gemma-3-12b-it \
    --per_device_train_batch_size 2 --gradient_accumulation_steps 8 \
    --gradient_checkpointing --bf16 --max_length 4096
