#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=1
accelerate launch --mixed_precision bf16 --num_machines 2 --num_processes 16 --machine_rank $SLURM_NODEID \
    --use_deepspeed --zero_stage 3 open_instruct/finetune.py \
    --model_name_or_path meta-llama/Llama-3.1-8B --max_seq_length 4096 \
    --per_device_train_batch_size 1 --gradient_accumulation_steps 2 --gradient_checkpointing \
    --num_epochs 2 --with_tracking --checkpointing_steps epoch
