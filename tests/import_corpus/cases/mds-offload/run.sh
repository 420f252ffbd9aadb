deepspeed --num_gpus 8 pretrain_gpt.py --deepspeed --deepspeed_config ds_config.json --zero-stage 3 --cpu-optimizer --no-pipeline-parallel \
    --num-layers 40 --hidden-size 5120 --num-attention-heads 40 --seq-length 2048 --max-position-embeddings 2048 \
    --micro-batch-size 2 --global-batch-size 64 --train-iters 100 --lr 3e-4 --fp16 --checkpoint-activations --deepspeed-activation-checkpointing \
    --vocab-file v.json --merge-file m.txt --data-path d
