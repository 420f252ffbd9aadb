torchrun --nproc_per_node 8 pretrain_gpt.py --yaml-cfg model.yaml --micro-batch-size 2 --global-batch-size 128 --bf16 --lr 1e-4 --train-iters 10
