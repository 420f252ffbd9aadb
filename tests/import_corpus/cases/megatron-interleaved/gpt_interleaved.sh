#! /bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
DISTRIBUTED="--nproc_per_node 8 --nnodes 8 --node_rank 0 --master_addr 10.0.0.1 --master_port 6000"
python -m torch.distributed.launch $DISTRIBUTED pretrain_gpt.py \
       --num-layers 48 --hidden-size 8192 --num-attention-heads 64 \
       --micro-batch-size 1 --global-batch-size 1536 \
       --seq-length 2048 --max-position-embeddings 2048 \
       --train-iters 500000 --lr 0.00015 --lr-decay-style cosine \
       --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 \
       --num-layers-per-virtual-pipeline-stage 4 --sequence-parallel \
       --recompute-granularity selective \
       --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --data-path my-gpt2_text_document \
       --fp16 --use-distributed-optimizer
