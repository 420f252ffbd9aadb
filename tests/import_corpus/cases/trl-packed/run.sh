trl sft --config packed.yaml
