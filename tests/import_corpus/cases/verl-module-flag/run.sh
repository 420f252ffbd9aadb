torchrun -m --standalone --nproc_per_node 4 verl.trainer.fsdp_sft_trainer \
  model.partial_pretrain=Qwen/Qwen3-4B-Base data.train_files=$HOME/sft/train.parquet data.val_files=$HOME/sft/val.parquet \
  data.train_batch_size=64 data.micro_batch_size_per_gpu=2 data.max_length=2048 trainer.total_epochs=3
