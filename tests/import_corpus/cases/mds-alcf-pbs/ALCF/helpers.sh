setParams() {
    export TP="${TP:-1}" PP="${PP:-1}" SP="${SP:-1}"
    export ZERO_STAGE="${ZERO_STAGE:-1}" MICRO_BATCH="${MICRO_BATCH:-4}" GRAD_ACC_STEPS="${GRAD_ACC_STEPS:-2}"
    export NLAYERS=32 HIDDEN=4096 HEADS=32 NUM_KV_HEAD=8 FFN_HIDDEN_SIZE=11008 SEQ=4096 DTYPE=bf16
    export NGPU_PER_HOST=12
    NHOSTS=$(wc -l < "${PBS_NODEFILE}")
    export WORLD_SIZE=$((NHOSTS * NGPU_PER_HOST))
    export GLOBAL_BATCH=$((WORLD_SIZE * MICRO_BATCH * GRAD_ACC_STEPS / TP / PP / SP))
}
buildDSconfig() {
    export DS_CONFIG="ds-stage${ZERO_STAGE}-mb${MICRO_BATCH}-gb${GLOBAL_BATCH}.json"
    printf '{"train_batch_size": %d, "train_micro_batch_size_per_gpu": %d, "zero_optimization": {"stage": %d}, "bf16": {"enabled": true}}\n' \
        "${GLOBAL_BATCH}" "${MICRO_BATCH}" "${ZERO_STAGE}" > "${DS_CONFIG}"
}
setup() {
    setParams
    buildDSconfig
    llama_flags=(--swiglu --hidden-dropout 0 --attention-dropout 0 --normalization rmsnorm --disable-bias-linear
        --no-query-key-layer-scaling --use-rotary-position-embeddings --untie-embeddings-and-output-weights
        "--num-key-value-heads ${NUM_KV_HEAD}" "--ffn-hidden-size ${FFN_HIDDEN_SIZE}")
    train_args=(--"${DTYPE}" "--optimizer=adamw" "--global-batch-size=${GLOBAL_BATCH}" "--micro-batch-size=${MICRO_BATCH}"
        "--num-layers=${NLAYERS}" "--hidden-size=${HIDDEN}" "--num-attention-heads=${HEADS}" "--seq-length=${SEQ}"
        "--max-position-embeddings=${SEQ}" "--tensor-model-parallel-size=${TP}" "--pipeline-model-parallel-size=${PP}"
        "--ds-sequence-parallel-size=${SP}" "--lr 0.0002" "--train-iters=1000" "--data-file-list=dolma.txt"
        "--distributed-backend=ccl" "--tokenizer-type Llama2Tokenizer" "--tokenizer-model tok.model"
        "--zero-stage=${ZERO_STAGE}" "--deepspeed_config=${DS_CONFIG}" --no-pipeline-parallel --deepspeed)
    run_cmd=(mpiexec --verbose --envall -n "${WORLD_SIZE}" -ppn "${NGPU_PER_HOST}" --hostfile "${PBS_NODEFILE}"
        --cpu-bind depth -d 16 python3 -Wignore pretrain_gpt_alcf.py "${llama_flags[@]}" "${train_args[@]}")
}
