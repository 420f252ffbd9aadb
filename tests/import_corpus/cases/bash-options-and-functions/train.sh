#!/bin/bash
TP=2
SIZE=350m
EXTRA=()
usage() { echo "usage: $0 [-t TP]"; exit 1; }
while [[ $# -gt 0 ]]; do
  case "$1" in
    -t | --tp) TP=$2; shift 2 ;;
    --size=*) SIZE="${1#*=}"; shift ;;
    *) usage ;;
  esac
done
case "${SIZE^^}" in
  350M) LAYERS=24; HIDDEN=1024 ;;
  *) usage ;;
esac
AUTO_REQUEUE=false
if [ "$AUTO_REQUEUE" = true ]; then
  sbatch --dependency=singleton $0
fi
[[ -f setup_local.sh ]] || EXTRA+=()
launch() {
  local gpus=$1; shift
  torchrun --nproc_per_node "$gpus" pretrain_gpt.py "$@" 2>&1 | tee train.log
}
for GBS in 64; do
  launch $(echo "8,1" | cut -d, -f1) --num-layers $LAYERS --hidden-size $HIDDEN --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 50257 --tokenizer-type NullTokenizer --mock-data --lr 1e-4 --train-iters 10 --bf16 \
    --micro-batch-size $((GBS / 16)) --global-batch-size $GBS --tensor-model-parallel-size $TP "${EXTRA[@]}"
done
