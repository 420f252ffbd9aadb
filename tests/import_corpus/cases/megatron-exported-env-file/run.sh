#!/bin/bash
set -a; . ./job.env; set +a
export CUDA_VISIBLE_DEVICES=0,1,2,3
N=$(echo $CUDA_VISIBLE_DEVICES | tr ',' '\n' | wc -l)
nohup torchrun --standalone --nproc_per_node=$N pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --ffn-hidden-size 5632 --seq-length 4096 --max-position-embeddings 4096 --swiglu --normalization RMSNorm --use-rotary-position-embeddings --untie-embeddings-and-output-weights --disable-bias-linear --tokenizer-type NullTokenizer --vocab-size 32000 --mock-data --lr 3e-4 --train-iters 1000 --tensor-model-parallel-size $TP --micro-batch-size $MBS \
   --global-batch-size $GBS --bf16 $EXTRA > train.log 2>&1 &
wait
