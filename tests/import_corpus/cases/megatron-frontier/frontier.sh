#!/bin/bash
#SBATCH -A abc123
#SBATCH -J gpt
#SBATCH -t 2:00:00
#SBATCH -p batch
#SBATCH -N 8
#SBATCH -S 0
#SBATCH --exclude=frontier00001
export OMP_NUM_THREADS=1
export MIOPEN_DISABLE_CACHE=1
nodes=($(scontrol show hostnames $SLURM_JOB_NODELIST))
export MASTER_ADDR=${nodes[0]}
export NCCL_SOCKET_IFNAME=hsn0
GPUS=8
ranks=$((SLURM_NNODES * GPUS))
srun -u -n$ranks -c7 --ntasks-per-node=$GPUS --gpus-per-node=$GPUS --gpu-bind=closest python3 -W ignore pretrain_gpt.py \
  --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --ffn-hidden-size 5632 --seq-length 4096 --max-position-embeddings 4096 --swiglu --normalization RMSNorm --use-rotary-position-embeddings --untie-embeddings-and-output-weights --disable-bias-linear --tokenizer-type NullTokenizer --vocab-size 32000 --mock-data --lr 3e-4 --train-iters 1000 --micro-batch-size 1 --global-batch-size $((ranks * 4)) --bf16 --tensor-model-parallel-size 1 --pipeline-model-parallel-size 2 --use-distributed-optimizer
