#!/bin/bash
NUM=8
nohup python -m torch.distributed.run --nproc_per_node=${NUM} --master_port 6001 pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --ffn-hidden-size 5632 --seq-length 4096 --max-position-embeddings 4096 --swiglu --normalization RMSNorm --use-rotary-position-embeddings --untie-embeddings-and-output-weights --disable-bias-linear --tokenizer-type NullTokenizer --vocab-size 32000 --mock-data --lr 3e-4 --train-iters 1000 --tensor-model-parallel-size 8 \
   --sequence-parallel --micro-batch-size 4 --global-batch-size 64 --bf16 --recompute-granularity full --recompute-method uniform \
   --recompute-num-layers 1 2>&1 | tee train.log &
