#!/bin/bash
# Trains the small model of model/config.json on two processes of this machine. From this folder: bash launch.sh
torchrun --nproc-per-node 2 train.py \
    --config_name model \
    --block_size 64 \
    --per_device_train_batch_size 1 \
    --gradient_accumulation_steps 8 \
    --learning_rate 1e-3 \
    --num_train_epochs 1 \
    --logging_steps 1 \
    --save_strategy no \
    --output_dir output \
    --disable_tqdm true \
    --use_cpu
