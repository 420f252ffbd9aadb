"""A small language model on random tokens under DeepSpeed: what a user's own script looks like to meshtune.

It reads nothing of meshtune's and reports nothing: DeepSpeed's own log says how long each step took.
"""

from __future__ import annotations

import argparse

import deepspeed
import deepspeed.ops
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Model(nn.Module):
    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__()
        self.recompute = arguments.recompute == "full"
        self.embedding = nn.Embedding(arguments.vocab, arguments.hidden)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                arguments.hidden, arguments.heads, arguments.ffn, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(arguments.layers)
        )
        self.head = nn.Linear(arguments.hidden, arguments.vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        values = self.embedding(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], tokens.device, values.dtype)
        for layer in self.layers:
            values = checkpoint(layer, values, mask, use_reentrant=False) if self.recompute else layer(values, mask)
        return functional.cross_entropy(self.head(values[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--deepspeed_config", required=True)
    for name in ("layers", "hidden", "heads", "ffn", "vocab", "seq-len", "steps", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--recompute", choices=("none", "full"), default="none")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        # Else DeepSpeed compiles a collective for CPUs when it first starts, and a trial that is killed meanwhile
        # leaves a lock on which every later one waits.
        deepspeed.ops.__compatible_ops__ = {}
    deepspeed.init_distributed()
    torch.manual_seed(arguments.seed)
    model = Model(arguments)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=arguments.deepspeed_config
    )
    for _ in range(arguments.steps * engine.gradient_accumulation_steps()):
        shape = (engine.train_micro_batch_size_per_gpu(), arguments.seq_len)
        loss = engine(torch.randint(arguments.vocab, shape, device=engine.device))
        engine.backward(loss)
        engine.step()
    # Not all ranks end at once, and the first to go would end the others' connections.
    deepspeed.comm.barrier()
    deepspeed.comm.destroy_process_group()


if __name__ == "__main__":
    main()
