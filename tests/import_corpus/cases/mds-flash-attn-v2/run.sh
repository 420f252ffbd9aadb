#!/bin/bash
cat <<EOF2 > ds.json
{"train_batch_size": 96, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}
EOF2
deepspeed --num_gpus 4 pretrain_gpt.py --deepspeed --deepspeed_config ds.json --zero-stage 3 --no-pipeline-parallel \
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 --num-key-value-heads 8 \
    --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 96 --train-iters 100 --lr 3e-4 \
    --bf16 --use-flash-attn-v2 --use-rotary-position-embeddings --swiglu --normalization rmsnorm --disable-bias-linear \
    --untie-embeddings-and-output-weights --tokenizer-type Llama2Tokenizer --tokenizer-model tok.model --data-path d
