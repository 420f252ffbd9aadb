#!/bin/bash
# A launch script as people have them: Llama 3 8B by Megatron-LM on four nodes of eight H100, under Slurm. What
# `meshtune import examples/megatron/launch.sh --cluster dgx-h100` makes of it is the core of campaign.yaml.
#SBATCH --partition=batch
#SBATCH --job-name=llama3-8b
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8

module load cuda/12.8
source /opt/venvs/megatron/bin/activate
source ./site.sh
export NCCL_IB_TIMEOUT=20
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
cd /opt/Megatron-LM

GPUS_PER_NODE=8
NODES=${SLURM_NNODES:-4}
TP=${TP:-2}
PP=${PP:-2}
MICRO_BATCH=1
GLOBAL_BATCH=$((MICRO_BATCH * 128))
SEQUENCE=8192
RECOMPUTE=selective

MODEL=(
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --seq-length $SEQUENCE
    --max-position-embeddings $SEQUENCE
    --normalization RMSNorm
    --swiglu
    --position-embedding-type rope
    --rotary-base 500000
    --disable-bias-linear            # not a matter of the plan: stays as it is
    --untie-embeddings-and-output-weights
    --attention-dropout 0.0
    --hidden-dropout 0.0
)
PARALLEL="--tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP \
    --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
TRAINING=(
    --micro-batch-size $MICRO_BATCH
    --global-batch-size $GLOBAL_BATCH
    --train-iters 100000
    --lr 3.0e-4
    --min-lr 3.0e-5
    --lr-decay-style cosine
    --lr-warmup-iters 2000
    --weight-decay 0.1
    --clip-grad 1.0
    --bf16
)
if [ "$RECOMPUTE" != none ]; then
    TRAINING+=(--recompute-granularity $RECOMPUTE)
fi
DATA=(
    --mock-data
    --tokenizer-type NullTokenizer
    --vocab-size 128256
)
REPORT=(
    --log-interval 10
    --eval-interval 1000
    --eval-iters 10
    --save /scratch/llama3-8b
    --save-interval 1000
)

srun torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NODES --node_rank "$SLURM_NODEID" \
    --master_addr "$MASTER_ADDR" --master_port 29500 \
    pretrain_gpt.py "${MODEL[@]}" $PARALLEL "${TRAINING[@]}" "${DATA[@]}" "${REPORT[@]}" 2>&1 | tee train.log
