#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
mpirun -np 32 -npernode 8 -hostfile hosts -x NCCL_DEBUG=WARN --bind-to none python pretrain_gpt.py \
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 \
  --seq-length 65536 --max-position-embeddings 65536 --position-embedding-type rope --swiglu --normalization RMSNorm \
  --untie-embeddings-and-output-weights --micro-batch-size 1 --global-batch-size 16 --bf16 --tensor-model-parallel-size 2 \
  --sequence-parallel --context-parallel-size 4 --cp-comm-type p2p --use-distributed-optimizer --lr 1e-5 --train-iters 100 \
  --recompute-granularity full --recompute-method block --recompute-num-layers 32 --mock-data --tokenizer-type NullTokenizer --vocab-size 128256
