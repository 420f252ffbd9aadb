#!/bin/bash
#SBATCH --job-name=meg
#SBATCH --partition=gpu
#SBATCH --account=m1234
#SBATCH --qos=regular
#SBATCH --constraint=gpu&hbm80g
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --time=06:00:00
module purge
module load python/3.11 cudatoolkit/12.4 nccl/2.21
source /global/common/venv/bin/activate
export MASTER_PORT=29500
export FI_CXI_DISABLE_HOST_REGISTER=1
cd /global/u1/me/Megatron-LM
srun --cpu-bind=cores python pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --ffn-hidden-size 5632 --seq-length 4096 --max-position-embeddings 4096 --swiglu --normalization RMSNorm --use-rotary-position-embeddings --untie-embeddings-and-output-weights --disable-bias-linear --tokenizer-type NullTokenizer --vocab-size 32000 --mock-data --lr 3e-4 --train-iters 1000 \
    --micro-batch-size 2 --global-batch-size 256 --bf16 --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer
