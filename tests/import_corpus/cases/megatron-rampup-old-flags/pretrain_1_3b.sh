#!/bin/bash
N_GPUS=8
python -m torch.distributed.launch --nproc_per_node $N_GPUS --nnodes 2 --node_rank 0 --master_addr 10.1.1.1 --master_port 6000 \
    pretrain_gpt.py \
    --tensor-model-parallel-size 1 \
    --pipeline-model-parallel-size 2 \
    --DDP-impl local \
    --num-layers 24 --hidden-size 2048 --num-attention-heads 16 \
    --micro-batch-size 4 --global-batch-size 512 --rampup-batch-size 32 32 2_000_000 \
    --seq-length 2048 --max-position-embeddings 2048 \
    --train-samples 73_242_187 --lr 2e-4 --min-lr 1e-5 \
    --checkpoint-activations --activations-checkpoint-method uniform \
    --tokenizer-type GPT2BPETokenizer --vocab-file v.json --merge-file m.txt --data-path d_text_document \
    --fp16
