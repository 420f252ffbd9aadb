#!/bin/bash
export NVTE_FWD_LAYERNORM_SM_MARGIN=16
unset CUDA_DEVICE_MAX_CONNECTIONS
torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py \
  --use-mcore-models --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
  --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 \
  --position-embedding-type rope --rotary-base 1000000 --swiglu --normalization RMSNorm \
  --untie-embeddings-and-output-weights --disable-bias-linear \
  --micro-batch-size 1 --global-batch-size 128 --train-samples 100000 --lr 0.00015 --bf16 \
  --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --no-gradient-accumulation-fusion \
  --use-distributed-optimizer --calculate-per-token-loss --init-model-with-meta-device --ckpt-format fsdp_dtensor \
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
  --mock-data --tokenizer-type NullTokenizer --vocab-size 128256
