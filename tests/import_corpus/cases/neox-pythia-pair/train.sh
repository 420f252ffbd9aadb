#!/bin/bash
cd "$(dirname "$0")"
python ./deepy.py train.py -d configs model_6b.yml here.yml
