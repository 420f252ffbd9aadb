#!/bin/bash
COMMON="--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024 --global-batch-size 64 --lr 1e-4 --train-iters 10 --bf16 --mock-data --tokenizer-type NullTokenizer --vocab-size 50257"
torchrun --nproc_per_node 4 pretrain_gpt.py $COMMON --micro-batch-size 2
torchrun --nproc_per_node 4 pretrain_gpt.py $COMMON --micro-batch-size 4 --tensor-model-parallel-size 2
