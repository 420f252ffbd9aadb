#!/bin/bash
axolotl train long.yaml --num-processes 8
