#!/bin/bash
NODES=2
cat > job.sh <<EOF
#!/bin/bash
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
srun torchrun --nnodes $NODES --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 50257 --tokenizer-type NullTokenizer --mock-data --lr 1e-4 --train-iters 10 --bf16 --micro-batch-size 2 --global-batch-size 64
EOF
sbatch --nodes=$NODES job.sh
