#!/bin/bash
accelerate launch --config_file ddp.yaml train.py \
    --num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 \
    --micro-batch-size 4 --global-batch-size 256 --lr 6e-4
