#!/bin/bash
tune run --nproc_per_node 4 -m lab.recipes.distil --config conf/distil.yaml
