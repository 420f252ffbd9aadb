#!/bin/bash
torchrun --nnodes=16 --nproc_per_node=8 --rdzv_backend=c10d --rdzv_endpoint=$HEAD:29500 -m torchtitan.train \
   --job.config_file giant.toml --training.local_batch_size=1 --training.global_batch_size 64
