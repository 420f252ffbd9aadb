#!/bin/bash
deepspeed --hostfile=hostfile --master_port 29600 pretrain_gpt.py --deepspeed --deepspeed_config ds.json --tensor-model-parallel-size 2 \
  --pipeline-model-parallel-size 2 --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 \
  --micro-batch-size 4 --global-batch-size 128 --train-iters 1000 --lr 1e-4 --fp16 --vocab-file v --merge-file m --data-path d
