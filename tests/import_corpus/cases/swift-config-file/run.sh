swift sft own.yaml --learning_rate 2e-5
