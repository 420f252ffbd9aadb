#!/bin/bash
# functions of torchtitan in the place of a file: MODULE and CONFIG name one
: "${NGPU:=8}"
WHAT="--module ${MODULE:-llama3} --config ${CONFIG:-llama3_8b}"
export PYTORCH_ALLOC_CONF="expandable_segments:True"
if [ -n "${DRY:-}" ]; then
    exec python3 -m torchtitan.train $WHAT "$@" --comm.mode=fake_backend
fi
torchrun --nproc_per_node=$NGPU --rdzv_backend c10d --rdzv_endpoint=localhost:0 --role rank --tee 3 -m torchtitan.train $WHAT "$@"
