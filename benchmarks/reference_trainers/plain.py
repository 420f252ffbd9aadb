"""What the reference trainers share: a decoder in plain PyTorch, its data, and the timing of steps. They import nothing
of meshtune's, so that they can be wrong where it is right, and the other way round.

Each is started by torchrun with a JSON file: {"model": {...}, "plan": {...}, "warmup_steps": 3, "steps": 10}. The first
rank prints one line: {"step_times_s": [...], "peak_held_bytes": the fullest rank's}."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

CUDA = torch.cuda.is_available()
# Resident memory before the model was built, on CPU.
BEFORE = 0


class Layer(nn.Module):
    def __init__(self, hidden: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.head_dim = hidden // heads
        self.norm1, self.norm2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.query, self.key, self.value, self.output = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(hidden, ffn, bias=False) for _ in range(2))
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    def attention(self, x: Tensor) -> Tensor:
        query, key, value = (
            project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(rotated(query), rotated(key), value, is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(2))


def rotated(x: Tensor) -> Tensor:
    """Rotary position embedding of (batch, heads, length, head_dim)."""
    length, width = x.shape[-2:]
    angles = torch.outer(
        torch.arange(length, device=x.device), 10_000.0 ** (-torch.arange(0, width, 2, device=x.device) / width)
    )
    left, right = x.float().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([left * cos - right * sin, left * sin + right * cos], -1).type_as(x)


class Decoder(nn.Module):
    """Some layers of the model: with the embedding where `first`, with the final norm and the head where `last`."""

    def __init__(
        self, model: dict[str, int], *, layers: int, first: bool = True, last: bool = True, recompute: bool = False
    ) -> None:
        super().__init__()
        hidden, vocab = model["hidden"], model["vocab"]
        self.recompute = recompute
        self.embedding = nn.Embedding(vocab, hidden) if first else None
        self.layers = nn.ModuleList(Layer(hidden, model["heads"], model["ffn"]) for _ in range(layers))
        self.norm = nn.RMSNorm(hidden) if last else None
        self.head = nn.Linear(hidden, vocab, bias=False) if last else None

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return x if self.norm is None else self.head(self.norm(x))


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def start() -> tuple[dict[str, Any], torch.device]:
    """Join the other ranks; the job, and this rank's device."""
    dist.init_process_group("nccl" if CUDA else "gloo")
    device = torch.device("cuda", dist.get_node_local_rank()) if CUDA else torch.device("cpu")
    if CUDA:
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    global BEFORE  # the script's own state: one job a process
    BEFORE = resident("VmRSS")
    return json.loads(Path(sys.argv[1]).read_text()), device


def built(job: dict[str, Any], device: torch.device, **options: Any) -> Decoder:
    """A decoder in the job's number format."""
    model = Decoder(job["model"], recompute=job["plan"]["recompute"] == "full", **options)
    return model.to(device, getattr(torch, job["dtype"]))


def tokens_of(job: dict[str, Any], device: torch.device, sequences: int) -> tuple[Tensor, Tensor]:
    ids = torch.randint(job["model"]["vocab"], (sequences, job["model"]["seq_len"] + 1), device=device)
    return ids[:, :-1], ids[:, 1:]


def finish(job: dict[str, Any], device: torch.device, step: Callable[[], None]) -> None:
    """Take the steps, and print the slowest rank's time of each and the most memory that a rank held."""
    times = []
    for index in range(job["warmup_steps"] + job["steps"]):
        synchronize()
        dist.barrier()
        begun = time.perf_counter()
        step()
        synchronize()
        taken = torch.tensor(time.perf_counter() - begun, device=device)
        dist.all_reduce(taken, dist.ReduceOp.MAX)
        if index >= job["warmup_steps"]:
            times.append(taken.item())
    held = torch.cuda.max_memory_reserved() if CUDA else resident("VmHWM") - BEFORE
    peak = torch.tensor(held, device=device)
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        sys.stdout.write(json.dumps({"step_times_s": times, "peak_held_bytes": int(peak.item())}) + "\n")
        sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


def synchronize() -> None:
    if CUDA:
        torch.cuda.synchronize()


def resident(name: str) -> int:
    text = Path("/proc/self/status").read_text()
    return next(1024 * int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name}:"))
