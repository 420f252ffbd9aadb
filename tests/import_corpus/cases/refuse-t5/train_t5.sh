#!/bin/bash
T5_ARGS="--encoder-num-layers 12 --decoder-num-layers 12 --hidden-size 768 --num-attention-heads 12 --kv-channels 64 --ffn-hidden-size 3072 \
    --encoder-seq-length 512 --decoder-seq-length 128 --max-position-embeddings 512 --micro-batch-size 64 --global-batch-size 512 \
    --lr 0.0001 --train-iters 1000000 --bf16 --vocab-extra-ids 100"
torchrun --nproc_per_node 8 --nnodes 1 my_pretrain.py $T5_ARGS --data-path d --vocab-file v
