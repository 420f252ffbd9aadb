#!/bin/bash
#$ -l rt_AF=3
#$ -l h_rt=2:00:00
#$ -cwd
source /etc/profile.d/modules.sh
module load cuda/12.1
PER_NODE=8
mpirun -np $((NHOSTS * PER_NODE)) -npernode $PER_NODE -hostfile $SGE_JOB_HOSTLIST -bind-to none -map-by slot python pretrain_gpt.py --tensor-model-parallel-size 2 --pipeline-model-parallel-size 1 --micro-batch-size 2 --global-batch-size 96 --num-layers 16 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 50304 --mock-data --tokenizer-type NullTokenizer --train-iters 50 --lr 2e-4 --bf16
