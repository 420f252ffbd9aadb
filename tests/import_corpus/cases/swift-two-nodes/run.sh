#!/bin/bash
#SBATCH --nodes=2
export OMP_NUM_THREADS=8
nodes=2
devices=8
NNODES=$nodes NPROC_PER_NODE=$devices swift sft \
  --model Qwen/Qwen3-8B --tuner_type full \
  --dataset /data/letters.jsonl --gradient_accumulation_steps $(expr 64 / $nodes / $devices) \
  --max_length 8192 --deepspeed zero3 --output_dir /data/runs/letters --save_steps 50
