#!/bin/bash
# torchrun pretrain_gpt.py --num-layers 2
