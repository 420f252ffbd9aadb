#!/bin/bash
RANK=0
for host in $(cat hosts); do
  ssh $host "cd /w && torchrun --nnodes 2 --node_rank $RANK --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16" &
  RANK=$((RANK+1))
done
wait
