#!/bin/bash
torchrun --nproc_per_node=8 align/train.py --model_name_or_path lab/LiteLlama-460M --mm_projector_type mlp2x_gelu \
  --fix_llm True --bf16 True --per_device_train_batch_size 8 --gradient_accumulation_steps 1 --model_max_length 1024 \
  --gradient_checkpointing True --image_folder images --output_dir out --num_train_epochs 1
