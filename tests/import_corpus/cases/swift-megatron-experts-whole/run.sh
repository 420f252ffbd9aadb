NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-30B-A3B --dataset mine.jsonl --torch_dtype bfloat16 --tuner_type full \
  --tensor_model_parallel_size 2 --sequence_parallel true --expert_model_parallel_size 8 --global_batch_size 32 --max_length 8192 \
  --recompute_granularity full --recompute_method uniform --recompute_num_layers 1 --output_dir /data/out --save_steps 100
