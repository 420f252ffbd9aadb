#!/bin/bash
export WANDB_MODE=offline
torchrun --nnodes 1 --nproc_per_node 8 run_clm.py \
    --config_name ./tinyllama --tokenizer_name ./tinyllama \
    --dataset_name wikitext --dataset_config_name wikitext-103-raw-v1 \
    --do_train --do_eval \
    --block_size 2048 \
    --per_device_train_batch_size 4 \
    --gradient_accumulation_steps 8 \
    --learning_rate 4e-4 --warmup_steps 2000 --lr_scheduler_type cosine \
    --bf16 --gradient_checkpointing \
    --num_train_epochs 1 --logging_steps 10 \
    --output_dir out/tinyllama
