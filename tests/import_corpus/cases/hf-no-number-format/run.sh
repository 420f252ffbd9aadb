#!/bin/bash
deepspeed --num_gpus 4 run_clm.py \
    --deepspeed ds_z2.json \
    --config_name ./tinyllama --tokenizer_name ./tinyllama \
    --train_file data/train.txt --do_train \
    --block_size 1024 --per_device_train_batch_size 8 --gradient_accumulation_steps 2 \
    --learning_rate 1e-4 --max_steps 1000 --logging_steps 10 --save_strategy no --output_dir out
