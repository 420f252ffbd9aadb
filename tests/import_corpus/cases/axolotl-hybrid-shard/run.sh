#!/bin/bash
accelerate launch --num_machines 2 --num_processes 16 --multi_gpu --machine_rank $RANK -m axolotl.cli.train hybrid.yml
