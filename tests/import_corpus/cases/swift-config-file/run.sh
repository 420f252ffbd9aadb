NPROC_PER_NODE=2 swift sft own.yaml --learning_rate 2e-5
