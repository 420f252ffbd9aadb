#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
MLA=(--multi-latent-attention --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128)
MOE=(--num-experts 64 --moe-router-topk 6 --moe-ffn-hidden-size 1408 --moe-shared-expert-intermediate-size 2816
     --moe-layer-freq "([0]+[1]*26)" --moe-grouped-gemm --moe-token-dispatcher-type alltoall)
torchrun --nproc_per_node 8 --nnodes 2 --master_addr n0 --master_port 6000 pretrain_gpt.py \
  --num-layers 27 --hidden-size 2048 --ffn-hidden-size 10944 --num-attention-heads 16 \
  --seq-length 4096 --max-position-embeddings 4096 --position-embedding-type rope --swiglu --normalization RMSNorm \
  --untie-embeddings-and-output-weights --disable-bias-linear "${MLA[@]}" "${MOE[@]}" \
  --micro-batch-size 1 --global-batch-size 512 --train-iters 1000 --lr 1e-4 --bf16 \
  --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --expert-model-parallel-size 8 --use-distributed-optimizer \
  --tokenizer-type NullTokenizer --vocab-size 102400 --mock-data
