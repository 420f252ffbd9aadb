torchrun --nproc_per_node 8 pretrain_gpt.py --use-checkpoint-args --load /ckpt/llama3-8b --use-mcore-models --finetune \
  --micro-batch-size 1 --global-batch-size 128 --seq-length 8192 --max-position-embeddings 8192 --bf16 --lr 1e-5 --train-iters 500 \
  --tensor-model-parallel-size 4 --sequence-parallel --use-distributed-optimizer --tokenizer-type HuggingFaceTokenizer --tokenizer-model /t --data-path /d
