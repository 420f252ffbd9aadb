"""A training script as people have them: its own model, its own flags, torch DDP. All that is meshtune's are the lines
with `reporter`. By hand: torchrun --nproc-per-node 2 train.py --micro-batch-size 2 --grad-accum 2"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from meshtune.runners.report import Reporter

parser = argparse.ArgumentParser()
parser.add_argument("--micro-batch-size", type=int, default=1)
parser.add_argument("--grad-accum", type=int, default=1)
parser.add_argument("--zero", type=int, choices=(0, 1), default=0)
parser.add_argument("--recompute", choices=("none", "full"), default="none")
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--hidden", type=int, default=64)
parser.add_argument("--heads", type=int, default=4)
parser.add_argument("--vocab", type=int, default=512)
parser.add_argument("--seq-len", type=int, default=64)
parser.add_argument("--steps", type=int, default=20)
args = parser.parse_args()


class Net(nn.Module):
    """A decoder made of torch's own layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(args.vocab, args.hidden)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(args.hidden, args.heads, 4 * args.hidden, dropout=0.0, batch_first=True)
            for _ in range(args.layers)
        )
        self.head = nn.Linear(args.hidden, args.vocab)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        for block in self.blocks:
            if args.recompute == "full":
                hidden = checkpoint(block, hidden, mask, use_reentrant=False)
            else:
                hidden = block(hidden, mask)
        return self.head(hidden)


torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Net())
if args.zero == 1:
    optimizer: torch.optim.Optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

torch.manual_seed(dist.get_rank())
reporter = Reporter()
for _ in range(args.steps):
    total = 0.0
    for micro_batch in range(args.grad_accum):
        tokens = torch.randint(args.vocab, (args.micro_batch_size, args.seq_len + 1))
        model.require_backward_grad_sync = micro_batch == args.grad_accum - 1
        loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()) / args.grad_accum
        loss.backward()
        total += loss.item()
    optimizer.step()
    optimizer.zero_grad()
    reporter.step(loss=total)
reporter.done(software={"torch": torch.__version__})
dist.destroy_process_group()
