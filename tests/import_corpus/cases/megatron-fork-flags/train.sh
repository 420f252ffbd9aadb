#!/bin/bash
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 256 --bf16 \
  --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer --lr 1e-4 --train-iters 10 \
  --recompute-granulairty selective --fuse-everything-v3 --tokenizer-type NullTokenizer --vocab-size 32000 --mock-data
