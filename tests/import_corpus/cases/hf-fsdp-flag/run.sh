#!/bin/bash
# instruction tuning of a 7B model on four devices
torchrun --nproc_per_node=4 --master_port=2345 instruct.py \
    --model_name_or_path /models/llama-7b-hf --data_path instructions.json --output_dir /scratch/instruct \
    --bf16 True --tf32 True \
    --per_device_train_batch_size 4 --gradient_accumulation_steps 8 \
    --fsdp "full_shard auto_wrap" --fsdp_transformer_layer_cls_to_wrap 'LlamaDecoderLayer' \
    --learning_rate 1e-5 --lr_scheduler_type "cosine" --warmup_ratio 0.05 --num_train_epochs 2 \
    --save_strategy "no" --logging_steps 5
