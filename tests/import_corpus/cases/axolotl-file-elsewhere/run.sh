#!/bin/bash
cd /shared/axolotl
accelerate launch --num_machines 1 --num_processes 8 -m axolotl.cli.train llama.yml
