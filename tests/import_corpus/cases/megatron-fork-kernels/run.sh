#!/bin/bash
NPUS=6
python3.10 -m torch.distributed.run --nproc_per_node $NPUS --nnodes 1 posttrain_gpt.py \
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 1 --use-distributed-optimizer --num-layers 28 \
  --hidden-size 3584 --ffn-hidden-size 18944 --num-attention-heads 28 --group-query-attention --num-query-groups 4 \
  --seq-length 4096 --max-position-embeddings 4096 --swiglu --normalization RMSNorm --position-embedding-type rope \
  --untie-embeddings-and-output-weights --disable-bias-linear --make-vocab-size-divisible-by 1 \
  --padded-vocab-size 152064 --tokenizer-type PretrainedFromHF --tokenizer-name-or-path /models/tok \
  --micro-batch-size 1 --global-batch-size 72 --lr 1e-6 --bf16 --use-flash-attn --use-mcore-models \
  --use-fused-rmsnorm --use-fused-swiglu --moe-alltoall-overlap-comm --first-k-dense-replace 2 \
  --data-path /data/talk --split 100,0,0
