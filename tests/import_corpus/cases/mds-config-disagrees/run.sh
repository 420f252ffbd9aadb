deepspeed --num_gpus 4 pretrain_gpt.py --deepspeed --deepspeed_config ds.json --zero-stage 1 \
    --tensor-model-parallel-size 1 --num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 \
    --max-position-embeddings 1024 --micro-batch-size 4 --global-batch-size 64 --train-iters 100 --lr 3e-4 --bf16 \
    --vocab-file v.json --merge-file m.txt --data-path d
