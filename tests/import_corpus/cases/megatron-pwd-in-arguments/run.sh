#!/bin/bash
set -e
ROOT=`pwd`
OUT=$(pwd)/out
torchrun --standalone --nproc_per_node=4 ${PWD}/pretrain_gpt.py \
    --num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024 \
    --micro-batch-size 4 --global-batch-size 64 --train-iters 5000 --lr 6e-4 --bf16 \
    --data-path `pwd`/data/owt_text_document --vocab-file ${PWD}/gpt2-vocab.json --merge-file $ROOT/gpt2-merges.txt \
    --save $OUT --tensorboard-dir "$PWD/tb"
