#!/bin/bash
for TP in 1 2 4; do
cat > job_tp$TP.sh <<JOB
#!/bin/bash
#SBATCH -N 2 --gpus-per-node=8 -p train
srun torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size $TP --num-layers 24 --hidden-size 2048 --num-attention-heads 16
JOB
sbatch job_tp$TP.sh
done
