#!/bin/bash
FORCE_TORCHRUN=1 NNODES=2 NODE_RANK=0 NPROC_PER_NODE=8 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 \
    llamafactory-cli train prefs.yaml per_device_train_batch_size=4 learning_rate=2e-6
