# what all jobs of the group need
export NCCL_DEBUG=WARN
export NCCL_IB_HCA=mlx5
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=4
DATA_ROOT=/leonardo_work/data

start_training() {
    local name=$1; shift
    mkdir -p "runs/$name"
    srun --cpu-bind=none --ntasks-per-node=1 torchrun \
        --nnodes "$SLURM_NNODES" --nproc-per-node "$GPUS_PER_NODE" \
        --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$MASTER:29401" \
        "$@" --save "runs/$name"
}
