#!/bin/bash
cat > ds.json <<END
{"train_batch_size": 4, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}
END
deepspeed --num_nodes 2 --num_gpus 8 pretrain_gpt.py --deepspeed --deepspeed_config ds.json --zero-stage 3 --no-pipeline-parallel \
  --ds-sequence-parallel-size 4 --tensor-model-parallel-size 1 --num-layers 24 --hidden-size 2048 --num-attention-heads 16 \
  --seq-length 32768 --max-position-embeddings 32768 --micro-batch-size 1 --global-batch-size 4 --train-iters 100 --lr 2e-4 --bf16 \
  --use-flash-attn-v2 --vocab-file v.json --merge-file m.txt --data-path d --checkpoint-activations --deepspeed-activation-checkpointing
