"""Time of the head and its loss, chunked against whole: `python benchmarks/chunked_loss.py`.

Forward and backward pass of the trainer's Head with targets, which makes its logits in chunks, against torch's own
product and cross entropy of all tokens. One thread; in turn, and the best of each: what else a machine does comes and
goes. Same number of operations, so the ratio is what the chunks cost."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from meshtune.runners.trainer.head import Head, chunk_tokens


def seconds(loss: Callable[[], Tensor], head: Head, x: Tensor) -> float:
    head.weight.grad = x.grad = None
    begun = time.perf_counter()
    loss().backward()  # type: ignore[no-untyped-call]  # torch.Tensor.backward
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sys.stdout.write("| tokens | chunks | whole s | chunked s | chunked / whole |\n|---|---|---|---|---|\n")
    for tokens in (1024, 2048, 4096, 16384):
        head = Head(arguments.hidden, arguments.vocab).to(getattr(torch, arguments.dtype))
        x = torch.randn(1, tokens, arguments.hidden, dtype=head.weight.dtype, requires_grad=True)
        targets = torch.randint(0, arguments.vocab, (1, tokens))

        def whole(head: Head = head, x: Tensor = x, targets: Tensor = targets) -> Tensor:
            return F.cross_entropy(head(x).flatten(0, 1).float(), targets.flatten(), reduction="sum")

        def chunked(head: Head = head, x: Tensor = x, targets: Tensor = targets) -> Tensor:
            out: Tensor = head(x, targets)
            return out

        taken = [(seconds(whole, head, x), seconds(chunked, head, x)) for _ in range(arguments.rounds)]
        plain, own = (min(column) for column in zip(*taken, strict=True))
        chunks = -(-tokens // chunk_tokens(tokens))
        sys.stdout.write(f"| {tokens} | {chunks} | {plain:.3f} | {own:.3f} | {own / plain:.2f} |\n")


if __name__ == "__main__":
    main()
