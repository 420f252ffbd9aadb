#!/bin/bash
cat > ds.json <<END
{"train_batch_size": 256, "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 0}, "fp16": {"enabled": true}}
END
EP_SIZE=64
NUM_GPUS=64
if [[ $EP_SIZE -gt $NUM_GPUS ]]; then EP_PARALLEL_SIZE=$NUM_GPUS; else EP_PARALLEL_SIZE=$EP_SIZE; fi
deepspeed --num_nodes 8 --num_gpus 8 pretrain_gpt.py --deepspeed --deepspeed_config ds.json --no-pipeline-parallel \
  --tensor-model-parallel-size 1 --moe-expert-parallel-size ${EP_PARALLEL_SIZE} --num-experts ${EP_SIZE} --moe-loss-coeff 0.01 \
  --moe-train-capacity-factor 1.0 --create-moe-param-group \
  --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 \
  --micro-batch-size 4 --global-batch-size 256 --train-tokens 300000000000 --lr 2e-4 --fp16 \
  --vocab-file v.json --merge-file m.txt --data-path d
