#!/bin/bash
composer -n 8 train.py house-7b.yaml max_duration=100ba eval_interval=0
