"""The experts of a rank as grouped products against a loop over them, as the trainer had it: seconds of a forward and a
backward pass.

`python benchmarks/grouped_experts.py [cuda]` prints a table: both medians and their ratio, by turns in one process, on
one CPU thread or a CUDA device. Copies of tokens by the skewed router's shares.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from meshtune.runners.trainer.mixture import Experts, FeedForward
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.routing import skewed_shares

TURNS = 15
# experts, hidden, ffn, copies of tokens, imbalance
CASES = [
    (64, 128, 64, 1024, 1.0),
    (64, 128, 64, 1024, 4.0),
    (64, 128, 64, 8192, 4.0),
    (8, 256, 512, 1024, 1.0),
    (8, 256, 512, 1024, 4.0),
]


def seconds(run: Callable[[Tensor], Tensor], tokens: Tensor) -> float:
    """Until the device has done a forward and a backward pass."""
    gradient = torch.ones_like(tokens)
    start = time.perf_counter()
    run(tokens).backward(gradient)
    if tokens.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def both(case: tuple[int, int, int, int, float], dtype: torch.dtype, device: torch.device) -> tuple[float, float]:
    experts, hidden, ffn, copies, imbalance = case
    spec = ModelSpec(name="m", layers=1, hidden=hidden, heads=8, ffn=ffn, vocab=8, seq_len=8, experts=experts, top_k=1)
    grouped = Experts(spec, range(experts)).to(device, dtype)
    single = torch.nn.ModuleList(FeedForward(spec) for _ in range(experts)).to(device, dtype)
    for parameter in grouped.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    edges = torch.tensor(skewed_shares(experts, imbalance)).cumsum(0).mul(copies).round().to(device, torch.int32)
    counts = edges.diff(prepend=edges.new_zeros(1))
    tokens = torch.randn(int(edges[-1]), hidden, dtype=dtype, device=device, requires_grad=True)

    def loop(tokens: Tensor) -> Tensor:
        parts = zip(single, torch.split(tokens, counts.tolist()), strict=True)
        return torch.cat([expert(part) for expert, part in parts])

    turns = [(seconds(loop, tokens), seconds(lambda x: grouped(x, edges), tokens)) for _ in range(TURNS)]
    return median(turn[0] for turn in turns[2:]), median(turn[1] for turn in turns[2:])


def main(kind: str) -> None:
    torch.set_num_threads(1)
    sys.stdout.write("| format | experts | hidden, ffn | copies | imbalance | loop ms | grouped ms | ratio |\n")
    sys.stdout.write("|---|---|---|---|---|---|---|---|\n")
    for dtype in (torch.float32, torch.bfloat16):
        for case in CASES:
            looped, grouped = both(case, dtype, torch.device(kind))
            experts, hidden, ffn, copies, imbalance = case
            told = f"| {str(dtype)[6:]} | {experts} | {hidden}, {ffn} | {copies} | {imbalance:g} "
            sys.stdout.write(f"{told}| {1e3 * looped:.1f} | {1e3 * grouped:.1f} | {grouped / looped:.2f} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
