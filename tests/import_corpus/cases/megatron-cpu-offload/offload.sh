#!/bin/bash
torchrun --nproc_per_node 4 --nnodes 1 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --swiglu --normalization RMSNorm \
  --micro-batch-size 2 --global-batch-size 32 --bf16 --tensor-model-parallel-size 4 --sequence-parallel \
  --use-distributed-optimizer --optimizer-cpu-offload --optimizer-offload-fraction 0.8 --use-precision-aware-optimizer \
  --lr 1e-4 --train-iters 100 --mock-data --tokenizer-type NullTokenizer --vocab-size 32000
