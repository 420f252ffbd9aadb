#!/bin/bash
# A small model on one machine. Fill in the paths!
CKPT=<where checkpoints go>
VOCAB_FILE=<vocabulary>/vocab.json
MERGE_FILE=<vocabulary>/merges.txt
DATA=<prefix of the data>_document

MODEL="--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024"
FILES="--data-path $DATA --vocab-file $VOCAB_FILE --merge-file $MERGE_FILE"
RUN="--micro-batch-size 8 --global-batch-size 64 --lr 0.0002 --train-iters 10000 --fp16"

torchrun --nnodes 1 --nproc_per_node 8 pretrain_gpt.py $MODEL $FILES $RUN --save $CKPT --load $CKPT
