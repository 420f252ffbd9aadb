#!/bin/bash
deepspeed --num_gpus 8 pretrain_gpt.py \
    --deepspeed --deepspeed_config ds_config.json --no-pipeline-parallel \
    --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 \
    --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 \
    --micro-batch-size 8 --global-batch-size 256 --train-iters 10000 --lr 3e-4 --lr-decay-style cosine --bf16 \
    --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --data-path owt_text_document
