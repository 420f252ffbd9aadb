export FORCE_TORCHRUN=1
llamafactory-cli train conf/letters.yaml
