trl grpo --config grpo.yaml --accelerate_config zero3 --num_processes 8 --output_dir runs/grpo --push_to_hub
