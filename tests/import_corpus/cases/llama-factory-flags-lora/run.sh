#!/bin/bash
export CUDA_VISIBLE_DEVICES=0,1,2
llamafactory-cli train --stage dpo --do_train True --model_name_or_path Qwen/Qwen3-8B --template qwen3 \
    --dataset house_pairs --finetuning_type lora --lora_rank 16 --quantization_bit 4 \
    --cutoff_len 3072 --per_device_train_batch_size 3 --gradient_accumulation_steps 4 \
    --disable_gradient_checkpointing True --learning_rate 5e-6 --num_train_epochs 1 --bf16 True --output_dir saves/pairs
