#!/bin/bash
# Speed of an 8B model on made-up data: bench_8b.sh [CHECKPOINTS] [TOKENIZER|mock]
SAVE_TO=${1:-/tmp/bench_8b}
TOK=${2:-mock}
NODES=1
PRECISION="bf16"
LEN=8192

WHERE=(--nnodes $NODES --nproc_per_node 8 --node_rank ${NODE_RANK:-0} --master_addr ${MASTER_ADDR:-localhost} --master_port ${MASTER_PORT:-6543})

ARGS=(
    --use-mcore-models --transformer-impl transformer_engine
    --seq-length $LEN --max-position-embeddings $LEN
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
    --num-attention-heads 32 --group-query-attention --num-query-groups 8
    --swiglu --normalization RMSNorm --disable-bias-linear
    --position-embedding-type rope --rotary-base 500000
    --untie-embeddings-and-output-weights
    --hidden-dropout 0.0 --attention-dropout 0.0
)
ARGS+=(--bf16 --micro-batch-size 1 --global-batch-size 128 --train-iters 50 --lr 1e-4)
if [[ "$PRECISION" == "fp8" ]]; then
    # one element holds two words; bash splits it below
    ARGS+=("--fp8-format hybrid" "--fp8-amax-history-len 16")
fi
ARGS+=(
    --tensor-model-parallel-size 2
    # --pipeline-model-parallel-size 2
    --context-parallel-size 1 --sequence-parallel
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
)
if [[ $TOK == mock ]] || [ -z "$TOK" ]; then
    ARGS+=(--mock-data "--tokenizer-type NullTokenizer" "--vocab-size 128256")
else
    ARGS+=("--tokenizer-type HuggingFaceTokenizer" "--tokenizer-model $TOK" "--data-path $DATA")
fi

torchrun ${WHERE[@]} pretrain_gpt.py ${ARGS[@]} --log-throughput --log-interval 1 --save "$SAVE_TO"
