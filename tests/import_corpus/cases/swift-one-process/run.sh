CUDA_VISIBLE_DEVICES=0,1 swift pt --model meta-llama/Llama-3.1-70B --tuner_type full --dataset web --torch_dtype bfloat16 \
  --max_length 2048 --gradient_accumulation_steps 4
swift export --model out --push_to_hub true
