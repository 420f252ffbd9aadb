#!/bin/bash
torchrun --nproc_per_node 4 pretrain_gpt.py \
  --num-layers 12 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 \
  --micro-batch-size 2 --global-batch-size 32 --lr 1e-4 --train-iters 10 \
  # --tensor-model-parallel-size 2 \
  --bf16 --use-distributed-optimizer --mock-data --tokenizer-type NullTokenizer --vocab-size 50257
