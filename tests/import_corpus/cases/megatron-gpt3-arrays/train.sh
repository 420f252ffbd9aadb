#!/usr/bin/env bash
# 6.7B on four nodes of our cluster; usage: train.sh OUT VOCAB MERGES DATA
out=$1 vocab=$2 merges=$3 data=$4
per_node=8
nodes=4
export CUDA_DEVICE_MAX_CONNECTIONS=1

launch=(--nnodes $nodes --nproc_per_node $per_node --master_addr gpu-n01 --master_port 12345)

shape=(
    --num-layers 32 --hidden-size 4096
    --num-attention-heads 32   # 128 wide each
    --seq-length 2048
    --max-position-embeddings 2048
)
batch=(--micro-batch-size 2 --global-batch-size $((nodes * per_node * 16)))
precision=(--fp16 --initial-loss-scale 65536)
degrees=(--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2)
steps=(--train-iters 60000 --lr 1.2e-4 --min-lr 1.2e-5 --lr-decay-style cosine --lr-warmup-iters 750
       --weight-decay 0.1 --clip-grad 1.0)
corpus=(--data-path "$data" --vocab-file "$vocab" --merge-file "$merges" --split 990,8,2)
saving=(--save "$out/ckpt" --load "$out/ckpt" --save-interval 2000 --tensorboard-dir "$out/tb")

torchrun ${launch[@]} pretrain_gpt.py ${shape[@]} ${batch[@]} ${precision[@]} ${degrees[@]} \
    ${steps[@]} ${corpus[@]} ${saving[@]} --log-interval 20
