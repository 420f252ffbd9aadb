python -m torch.distributed.run --nproc_per_node=8 pretrain_gpt.py --num-layers 24 --hidden-size 2048 \
  --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 4 \
  --global-batch-size ${GLOBAL_BATCH} --tensor-model-parallel-size {TP} --data-path <DATA_PREFIX> \
  --vocab-file <VOCAB_FILE> --merge-file <MERGE_FILE> --fp16 --lr 1e-4 --train-iters 1000
