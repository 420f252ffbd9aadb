#!/bin/bash
#SBATCH -p batch -A fusion -N 4
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:4
#SBATCH -t 120
srun --mpi=$MPI_TYPE --cpu-bind=map_cpu:$CORES --network=$FABRIC_OPTIONS python3 pretrain_gpt.py \
    --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --ffn-hidden-size 5632 --seq-length 4096 \
    --max-position-embeddings 4096 --swiglu --normalization RMSNorm --use-rotary-position-embeddings \
    --untie-embeddings-and-output-weights --disable-bias-linear --tokenizer-type NullTokenizer --vocab-size 32000 \
    --mock-data --lr 3e-4 --train-iters 1000 --micro-batch-size 2 --global-batch-size 256 --bf16 \
    --tensor-model-parallel-size 4 --sequence-parallel --use-distributed-optimizer
