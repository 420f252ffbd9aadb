NPROC_PER_NODE=8 megatron rlhf --rlhf_type dpo --model Qwen/Qwen3-32B --dataset pairs.jsonl --torch_dtype bfloat16 \
  --tensor_model_parallel_size 4 --sequence_parallel true --context_parallel_size 2 --global_batch_size 32 --max_length 8192 \
  --virtual_pipeline_model_parallel_size 1 --optimizer_cpu_offload true --output_dir /data/out --save_steps 100
