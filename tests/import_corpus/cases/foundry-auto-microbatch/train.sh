composer -n 4 train.py house.yaml
