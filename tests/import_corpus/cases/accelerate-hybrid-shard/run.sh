accelerate launch --config_file fsdp.yaml run_clm.py --model_name_or_path meta-llama/Llama-3.1-8B --block_size 4096 \
  --per_device_train_batch_size 2 --gradient_accumulation_steps 2 --output_dir out --bf16
