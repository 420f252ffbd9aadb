#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --partition=accelerated
singularity exec --nv -B /hkfs:/hkfs /hkfs/images/megatron.sif \
  torchrun --nnodes 2 --nproc_per_node 4 --rdzv_backend c10d --rdzv_endpoint node1:29500 pretrain_gpt.py \
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 \
  --micro-batch-size 2 --global-batch-size 64 --bf16 --tensor-model-parallel-size 4 \
  --train-iters 1000 --lr 1e-4 --mock-data --tokenizer-type NullTokenizer --vocab-size 32000
