accelerate launch --multi_gpu --num_processes 8 --mixed_precision bf16 examples/scripts/sft.py \
    --model_name_or_path Qwen/Qwen2.5-7B --dataset_name trl-lib/Capybara --bf16 \
    --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --gradient_checkpointing \
    --use_peft --lora_r 32 --lora_alpha 16 --learning_rate 2.0e-4 --num_train_epochs 1 --packing --output_dir out
