#!/bin/bash
# NGPU=4 ./go.sh --training.steps 10
CONFIG=${CONFIG:-my_8b.toml}
torchrun --nproc_per_node=${NGPU:-8} --rdzv_backend c10d --rdzv_endpoint=localhost:0 \
    --local-ranks-filter ${SHOWN:-0} --tee 3 train.py --job.config_file $CONFIG "$@"
