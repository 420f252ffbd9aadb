#!/bin/bash
# moe.sh TOKENIZER DATA: 8 experts, two for each token
tokenizer=$1
data=$2
N=${SLURM_NNODES:-"1"}
: ${RDZV_HOST:=localhost}

moe="--num-experts 8 --moe-router-topk 2 --moe-grouped-gemm --moe-token-dispatcher-type alltoall --moe-aux-loss-coeff 0.01"
attention="--num-attention-heads 24 --group-query-attention --num-query-groups 8 --attention-dropout 0 --hidden-dropout 0"
size="--num-layers 28 --hidden-size 3072 --ffn-hidden-size 8192 --seq-length 4096 --max-position-embeddings 4096"
kind="--swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope --untie-embeddings-and-output-weights"
split="--tensor-model-parallel-size 1 --pipeline-model-parallel-size 4 --expert-model-parallel-size 8 --use-distributed-optimizer"

more=()
if [ -n "${TRACKING}" ]; then
    more+=(--wandb-project ${TRACKING_PROJECT:-moe})
fi

torchrun --nnodes $N --nproc_per_node 8 --rdzv_backend c10d --rdzv_endpoint $RDZV_HOST:4321 pretrain_gpt.py \
    $size $kind $attention $moe $split --sequence-parallel --overlap-grad-reduce \
    --bf16 --micro-batch-size 1 --global-batch-size 256 --train-iters 20000 --lr 2e-4 --min-lr 2e-5 \
    --tokenizer-type Llama2Tokenizer --tokenizer-model $tokenizer --data-path $data "${more[@]}"
