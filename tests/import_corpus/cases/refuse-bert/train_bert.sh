#!/bin/bash
GPUS_PER_NODE=8
BERT_MODEL_ARGS=(--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 512 --max-position-embeddings 512)
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes 1 pretrain_bert.py ${BERT_MODEL_ARGS[@]} --micro-batch-size 4 --global-batch-size 32 \
  --train-iters 1000000 --fp16 --lr 0.0001 --tensor-model-parallel-size 8 --data-path $1 --vocab-file $2 --split 949,50,1
