accelerate launch --use_deepspeed --zero_stage 3 --mixed_precision bf16 --num_processes 8 own/tune.py \
    --model_name_or_path meta-llama/Llama-3.1-8B --max_seq_length 8192 \
    --per_device_train_batch_size 1 --gradient_accumulation_steps 4 --activation_memory_budget 0.5
