#!/bin/bash
source ~/venv/bin/activate
CUDA_VISIBLE_DEVICES=0,1 llamafactory-cli train \
    --stage sft \
    --do_train True \
    --model_name_or_path Qwen/Qwen3-8B \
    --finetuning_type full \
    # --cutoff_len 8192 \
    --cutoff_len 4096 \
    --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 4 \
    --bf16 True \
    --output_dir out
