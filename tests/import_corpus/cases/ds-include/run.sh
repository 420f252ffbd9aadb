deepspeed --include localhost:0,1,2,3 train.py --deepspeed --deepspeed_config ds.json --model_dim 1024 --n_layer 12
