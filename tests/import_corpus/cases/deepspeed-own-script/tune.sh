#!/bin/bash
DEVICES=2
SETTINGS="./settings.json"
test -f "$SETTINGS" || { echo "no $SETTINGS"; exit 1; }
START="deepspeed --num_gpus=$DEVICES tune.py --deepspeed_config=$SETTINGS --base lab/some-7b --epochs 2 --batch_size 8 --out ./tuned"
echo $START
eval $START
