#!/bin/bash
#SBATCH --job-name=train-7b
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=7
#SBATCH --mem=480G
#SBATCH --gpus-per-node=mi250:8
#SBATCH --partition=standard-g
#SBATCH --account=project_465000001
#SBATCH --time=2-00:00:00
#SBATCH --exclusive=user
#SBATCH --hint=nomultithread

set -euo pipefail
module --force purge
module load LUMI/23.09 partition/G

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=9999
export WORLD_SIZE=$SLURM_NTASKS
export CUDA_DEVICE_MAX_CONNECTIONS=1
export NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3

# MODEL AND PRETRAINING CONFIGURATION
NLAYERS=32
NHIDDEN=4096
NHEADS=32
FFN_HIDDEN_SIZE=11008
SEQ_LEN=4096
PP_SIZE=2
TP_SIZE=2
MICRO_BATCH_SIZE=1
GLOBAL_BATCH_SIZE=1024
RECOMPUTE=${RECOMPUTE:-false}

GPT_ARGS=(
    --num-layers "$NLAYERS"
    --hidden-size "$NHIDDEN"
    --ffn-hidden-size "$FFN_HIDDEN_SIZE"
    --num-attention-heads "$NHEADS"
    --seq-length "$SEQ_LEN"
    --max-position-embeddings "$SEQ_LEN"
    --micro-batch-size "$MICRO_BATCH_SIZE"
    --global-batch-size "$GLOBAL_BATCH_SIZE"
    --bf16 --swiglu --normalization RMSNorm --disable-bias-linear
    --use-rotary-position-embeddings --untie-embeddings-and-output-weights
    --use-flash-attn --use-distributed-optimizer
    --train-iters 100000 --lr 3e-4 --min-lr 3e-5 --lr-decay-style cosine
)
if [ "$RECOMPUTE" = true ]; then
    GPT_ARGS+=(--recompute-activations --recompute-granularity selective)
fi
PARALLEL_ARGS=(--tensor-model-parallel-size "$TP_SIZE" --pipeline-model-parallel-size "$PP_SIZE" --sequence-parallel)
DATA_ARGS=(--tokenizer-type HuggingFaceTokenizer --tokenizer-model gpt2 --data-path /scratch/data/merged)

CMD="pretrain_gpt.py ${GPT_ARGS[*]} ${PARALLEL_ARGS[*]} ${DATA_ARGS[*]} --log-interval 1"

c="fe"
BIND_MASK="0x${c}000000000000,0x${c}00000000000000,0x${c}0000,0x${c}000000,0x${c},0x${c}00,0x${c}00000000,0x${c}0000000000"

srun --label --cpu-bind=mask_cpu:$BIND_MASK python3 $CMD
