python3 -m MaxText.train MaxText/configs/base.yml run_name=r base_output_directory=gs://b model_name=llama2-7b per_device_batch_size=4 ici_fsdp_parallelism=8 max_target_length=4096
