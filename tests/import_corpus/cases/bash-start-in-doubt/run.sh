#!/bin/bash
COMMON="--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 50257 --tokenizer-type NullTokenizer --mock-data --lr 1e-4 --train-iters 10 --bf16 --micro-batch-size 2 --global-batch-size 64"
if [ "$CLUSTER" = big ]; then
  torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py $COMMON --tensor-model-parallel-size 8
fi
