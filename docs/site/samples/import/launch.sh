#!/bin/bash
source ./common.sh
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \
    --seq-length 4096 --vocab-size 128256 --micro-batch-size 2 --global-batch-size 512 --bf16 $EXTRA
