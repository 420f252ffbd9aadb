accelerate launch --config_file fsdp2.yaml --num_processes 4 sft.py \
    --model_name_or_path ./tinyllama --dataset_name trl-lib/Capybara --max_length 2048 --bf16 \
    --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --learning_rate 2e-5 --output_dir out
