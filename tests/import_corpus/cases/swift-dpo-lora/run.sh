export NPROC_PER_NODE=4
swift rlhf --rlhf_type dpo --model Qwen/Qwen3-14B --train_type lora --lora_rank 16 --quant_bits 4 --quant_method bnb \
  --dataset pairs.jsonl --torch_dtype bfloat16 --per_device_train_batch_size 2 --max_length 4096 --packing true --attn_impl flash_attn
