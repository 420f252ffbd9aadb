#!/bin/bash
# Once per size: ./submit.sh; with sbatch on the login node.
{
	source /opt/site/env.sh
	mkdir -p logs
	sbatch --time=2:00:00 <<- JOB
	#!/bin/bash
	#SBATCH --nodes=4
	#SBATCH --ntasks-per-node=1
	#SBATCH --gpus-per-node=8
	head=\$(scontrol show hostnames \$SLURM_JOB_NODELIST | head -n 1)
	srun torchrun --nnodes 4 --nproc_per_node 8 --rdzv_endpoint \$head:29500 \\
	  pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 50257 --tokenizer-type NullTokenizer --mock-data --lr 1e-4 --train-iters 10 --bf16 --micro-batch-size 2 --global-batch-size 256 --tensor-model-parallel-size 4
	JOB
	exit 0
}
