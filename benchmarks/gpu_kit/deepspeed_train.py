"""The trainer's model under DeepSpeed: what its autotuning runs. It steps until DeepSpeed, or its steps, end it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import deepspeed
import torch
from torch.nn.functional import cross_entropy

from meshtune.runners.trainer.model import Transformer
from meshtune.search_spaces.model import ModelSpec

STEPS = 200


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--local_rank", type=int, default=0)
    deepspeed.add_config_arguments(parser)
    arguments = parser.parse_args()
    spec = ModelSpec(**json.loads(arguments.model.read_text(encoding="utf-8")))
    deepspeed.init_distributed()
    torch.manual_seed(1)
    model = Transformer(spec)
    engine, *_ = deepspeed.initialize(args=arguments, model=model, model_parameters=model.parameters())
    if model.rotation is not None:
        model.rotation.make_tables(engine.device)
    for _ in range(STEPS * engine.gradient_accumulation_steps()):
        shape = (engine.train_micro_batch_size_per_gpu(), spec.seq_len + 1)
        tokens = torch.randint(spec.vocab, shape, device=engine.device)
        logits = engine(tokens[:, :-1])
        engine.backward(cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten()))
        engine.step()


if __name__ == "__main__":
    main()
