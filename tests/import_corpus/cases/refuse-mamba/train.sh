#!/bin/bash
options=" --tensor-model-parallel-size 1 --sequence-parallel --pipeline-model-parallel-size 1 --use-distributed-optimizer \
  --hybrid-override-pattern M-M-M--M-*M-M-M-M--*M-M-M-M- --is-hybrid-model --spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec \
  --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 4096 --max-position-embeddings 4096 --position-embedding-type none \
  --micro-batch-size 4 --global-batch-size 32 --train-samples 73242188 --bf16 --lr 2.5e-4"
torchrun --nproc_per_node 8 pretrain_mamba.py ${options} --data-path /d --tokenizer-type GPTSentencePieceTokenizer --tokenizer-model /t
