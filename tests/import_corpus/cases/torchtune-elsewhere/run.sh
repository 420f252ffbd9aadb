#!/bin/bash
N="${N:-$(python -c 'import torch; print(torch.cuda.device_count())')}"
tune run --nproc_per_node "$N" full_finetune_distributed --config own_fsdp.yaml
