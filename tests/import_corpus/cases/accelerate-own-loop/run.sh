accelerate launch --mixed_precision bf16 --num_machines 1 --num_processes 8 --use_deepspeed --zero_stage 2 run_clm_no_trainer.py \
    --model_name_or_path meta-llama/Llama-3.1-8B --block_size 4096 --dataset_name wikitext \
    --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --max_train_steps 5000 --checkpointing_steps 500 \
    --with_tracking --report_to wandb --output_dir out
