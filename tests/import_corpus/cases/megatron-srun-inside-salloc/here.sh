#!/bin/bash
# Typed inside of an interactive allocation, so that the script itself asks for nothing.
ml PyTorch/2.3
srun --nodes=2 --ntasks-per-node=4 --mpi=pmi2 --cpu-bind=verbose,cores python pretrain_gpt.py \
    --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --ffn-hidden-size 5632 --seq-length 4096 \
    --max-position-embeddings 4096 --swiglu --normalization RMSNorm --use-rotary-position-embeddings \
    --untie-embeddings-and-output-weights --disable-bias-linear --tokenizer-type NullTokenizer --vocab-size 32000 \
    --mock-data --lr 3e-4 --train-iters 1000 --micro-batch-size 2 --global-batch-size 256 --bf16 \
    --tensor-model-parallel-size 4 --sequence-parallel --use-distributed-optimizer
