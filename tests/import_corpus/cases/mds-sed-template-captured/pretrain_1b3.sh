#!/bin/bash
HERE=`pwd`
nodes=2
per_node=8
layers=24
width=2048
heads=16
length=2048
mbs=4
gbs=512
tp=2
recompute="true"

name="gpt-${layers}x${width}-tp${tp}-gbs${gbs}"
mkdir -p "$HERE/out/$name"

args=" \
    --tensor-model-parallel-size $tp --pipeline-model-parallel-size 1 --no-pipeline-parallel \
    --num-layers $layers --hidden-size $width --num-attention-heads $heads \
    --seq-length $length --max-position-embeddings $length \
    --micro-batch-size $mbs --global-batch-size $gbs \
    --train-tokens 300000000000 --lr 2.0e-4 --min-lr 2.0e-5 --lr-decay-tokens 260000000000 --lr-warmup-tokens 375000000 \
    --override-opt_param-scheduler --hysteresis 2 --num-workers 0 --fp16"
data=" --vocab-file /data/vocab.json --merge-file /data/merges.txt --data-path /data/pile_text_document --data-impl mmap"

settings="settings_$name.json"
sed "s/GBS_HERE/$gbs/" template.json \
    | sed "s/MBS_HERE/$mbs/" \
    | sed "s/STAGE_HERE/2/" \
    | sed "s/FP16_HERE/true/" \
    | sed "s/BF16_HERE/false/" \
    | sed "s/EVERY_HERE/10/" > $settings

ds=" --deepspeed --deepspeed_config $settings"
if [ "$recompute" = "true" ]; then
    args="$args --checkpoint-activations"
    ds="$ds --deepspeed-activation-checkpointing"
fi

cmd="deepspeed --num_nodes $nodes --num_gpus $per_node ${HERE}/../pretrain_gpt.py $args $data $ds &> $HERE/out/$name/log"
echo $cmd
eval $cmd
