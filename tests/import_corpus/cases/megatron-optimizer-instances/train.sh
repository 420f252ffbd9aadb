#!/bin/bash
torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py \
    --tensor-model-parallel-size 2 --sequence-parallel --context-parallel-size 2 \
    --use-distributed-optimizer --num-distributed-optimizer-instances 2 --overlap-grad-reduce \
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
    --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm \
    --position-embedding-type rope --untie-embeddings-and-output-weights \
    --seq-length 8192 --max-position-embeddings 8192 --vocab-size 128256 \
    --micro-batch-size 1 --global-batch-size 256 --bf16 --lr 2e-4
