torchrun --nproc-per-node 8 --nnodes 1 run_clm.py --model_name_or_path meta-llama/Llama-3.1-8B --block_size 2048 \
    --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --bf16 --output_dir out
