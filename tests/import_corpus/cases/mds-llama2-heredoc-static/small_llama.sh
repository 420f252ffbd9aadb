#!/bin/bash
set -eu
# degrees and batch
TP=2
PP=2
ZERO=1
MBS=4
GBS=32
# one of none, full
RECOMPUTE="none"
WORK=/scratch/small_llama
SETTINGS=deepspeed_small.json

cat <<END > $SETTINGS
{
  "train_micro_batch_size_per_gpu": $MBS,
  "train_batch_size": $GBS,
  "zero_optimization": { "stage": $ZERO },
  "bf16": { "enabled": true },
  "steps_per_print": 5
}
END

DS="--deepspeed"
DS="$DS --deepspeed_config=$SETTINGS"
DS="--zero-stage=$ZERO $DS"
if [ "$RECOMPUTE" = "full" ]; then
  DS="--recompute-granularity full --recompute-method uniform --deepspeed-activation-checkpointing $DS"
fi

LLAMA="--swiglu --normalization rmsnorm --use-rotary-position-embeddings --untie-embeddings-and-output-weights
  --disable-bias-linear --no-query-key-layer-scaling --hidden-dropout 0 --attention-dropout 0"

torchrun --nnodes 1 --nproc_per_node 8 --master_port 6100 pretrain_gpt.py \
  $LLAMA $DS \
  --num-layers 24 --hidden-size 2048 --ffn-hidden-size 5504 \
  --num-attention-heads 16 --num-key-value-heads 4 \
  --seq-length 2048 --max-position-embeddings 2048 \
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP \
  --micro-batch-size $MBS --global-batch-size $GBS \
  --bf16 --lr 3e-4 --min-lr 3e-5 --lr-decay-style cosine --train-iters 100000 \
  --tokenizer-type GPTSentencePieceTokenizer --tokenizer-model $WORK/tok.model \
  --data-path 1 $WORK/books_text_sentence --save $WORK/ckpt
