#!/bin/bash
axolotl train chat.yml --launcher torchrun --gradient-accumulation-steps 2 -- --nproc-per-node 4
