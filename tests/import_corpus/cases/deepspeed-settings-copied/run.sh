#!/bin/bash
mkdir -p archive && cp ds_z2.json archive/
cp "$0" archive/start.sh
deepspeed --num_gpus=3 run_clm.py --deepspeed ds_z2.json --bf16 true --gradient_checkpointing true \
  --model_name_or_path Qwen/Qwen3-8B --dataset_name wikitext --block_size 2048 \
  --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --output_dir out --do_train
