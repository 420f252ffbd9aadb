#!/bin/bash
export NCCL_NVLS_ENABLE=0
uv run examples/run_grpo.py --config examples/configs/long.yaml \
  checkpointing.checkpoint_dir=/scratch/math logger.wandb.name=long-2n
