#!/bin/bash
python mason.py --cluster site/gpus --image team/train --priority high --num_nodes 2 --gpus 8 -- \
    accelerate launch --mixed_precision bf16 --num_processes 8 --use_deepspeed --deepspeed_config_file ds.json \
    finetune.py --model_name_or_path meta-llama/Llama-3.1-8B --max_seq_length 4096 --per_device_train_batch_size 1 --gradient_accumulation_steps 8
