"""What the reference trainers share: a decoder in plain PyTorch as production would run it, its data, and the timing of
steps. They import nothing of meshtune's, so that they can be wrong where it is right, and the other way round.

Weights, gradients and moments are float32 and products in the job's number format, by autocast (or FSDP2's policy);
attention is torch's fused one, AdamW fused, layers and loss compiled where the job says so.

Each is started by torchrun, a single process also by itself, with a JSON file: {"model": {...}, "plan": {...},
"dtype": "bfloat16", "compile": true, "warmup_steps": 3, "steps": 10}. The first rank prints one line:
{"step_times_s": [...], "peak_held_bytes": the fullest rank's, "first_losses": [...]}."""

from __future__ import annotations

import json
import os
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
FIRST_LOSSES = 4
# Resident memory before the model was built, on CPU.
BEFORE = 0


class Layer(nn.Module):
    """Attention and feed-forward block of a Llama (rmsnorm, swiglu, rope), or of a GPT (layernorm, gelu, learned)."""

    def __init__(self, model: dict[str, Any]) -> None:
        super().__init__()
        hidden, ffn = model["hidden"], model["ffn"]
        self.head_dim = hidden // model["heads"]
        keys = self.head_dim * (model.get("kv_heads") or model["heads"])
        self.norm1, self.norm2 = norm(model), norm(model)
        self.query, self.output = (nn.Linear(hidden, hidden, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(hidden, keys, bias=False) for _ in range(2))
        self.gate = nn.Linear(hidden, ffn, bias=False) if model.get("activation") != "gelu" else None
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)
        self.rotary = model.get("position") != "learned"
        for name, table in zip(("cos", "sin"), rotary_tables(model["seq_len"], self.head_dim), strict=True):
            self.register_buffer(name, table, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        inner = F.gelu(self.up(y)) if self.gate is None else F.silu(self.gate(y)) * self.up(y)
        return x + self.down(inner)

    def attention(self, x: Tensor) -> Tensor:
        query, key, value = (
            project(x).unflatten(-1, (-1, self.head_dim)) for project in (self.query, self.key, self.value)
        )
        if self.rotary:
            query, key = self.rotated(query), self.rotated(key)
        heads = (each.transpose(1, 2) for each in (query, key, value))
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=key.shape[2] != query.shape[2])
        return self.output(mixed.transpose(1, 2).flatten(2))

    def rotated(self, x: Tensor) -> Tensor:
        """Rotary position embedding of (batch, length, heads, head_dim), in float32."""
        left, right = x.float().chunk(2, -1)
        cos, sin = self.cos[:, None], self.sin[:, None]
        return torch.cat([left * cos - right * sin, left * sin + right * cos], -1).type_as(x)


def norm(model: dict[str, Any]) -> nn.Module:
    return nn.LayerNorm(model["hidden"]) if model.get("norm") == "layernorm" else nn.RMSNorm(model["hidden"])


def rotary_tables(length: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary angles, (length, head_dim / 2) each."""
    angles = torch.outer(torch.arange(length), 10_000.0 ** (-torch.arange(0, head_dim, 2) / head_dim))
    return angles.cos(), angles.sin()


class Decoder(nn.Module):
    """Some layers of the model: with the embeddings where `first`, with the final norm and the head where `last`.
    dtype: of its products."""

    def __init__(
        self,
        model: dict[str, Any],
        dtype: torch.dtype,
        *,
        layers: int,
        first: bool = True,
        last: bool = True,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        hidden, vocab = model["hidden"], model["vocab"]
        self.dtype, self.recompute = dtype, recompute
        learned = first and model.get("position") == "learned"
        self.embedding = nn.Embedding(vocab, hidden) if first else None
        self.position = nn.Embedding(model["seq_len"], hidden) if learned else None
        self.layers = nn.ModuleList(Layer(model) for _ in range(layers))
        self.norm = norm(model) if last else None
        self.head = nn.Linear(hidden, vocab, bias=False) if last else None
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)
        if model.get("tied_head") and self.embedding is not None and self.head is not None:
            self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, self.dtype, enabled=self.dtype is not torch.float32):
            if self.embedding is not None:
                x = self.embedding(x)
                x = x if self.position is None else x + self.position.weight
                x = x.to(self.dtype)
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
            return x if self.norm is None else self.head(self.norm(x))


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def start() -> tuple[dict[str, Any], torch.device]:
    """Join the other ranks, if there are any; the job, and this rank's device."""
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("nccl" if CUDA else "gloo", **alone)
    device = torch.device("cuda", dist.get_node_local_rank(0)) if CUDA else torch.device("cpu")
    if CUDA:
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    global BEFORE  # the script's own state: one job a process
    BEFORE = resident("VmRSS")
    return json.loads(Path(sys.argv[1]).read_text()), device


def built(job: dict[str, Any], device: torch.device, **options: Any) -> Decoder:
    """A decoder in float32, whose products are in the job's number format."""
    recompute = job["plan"]["recompute"] == "full"
    model = Decoder(job["model"], getattr(torch, job["dtype"]), recompute=recompute, **options).to(device)
    if job.get("compile"):
        for layer in model.layers:
            layer.compile(fullgraph=True, dynamic=False)
    return model


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


def tokens_of(job: dict[str, Any], device: torch.device, sequences: int) -> tuple[Tensor, Tensor]:
    ids = torch.randint(job["model"]["vocab"], (sequences, job["model"]["seq_len"] + 1), device=device)
    return ids[:, :-1], ids[:, 1:]


def finish(job: dict[str, Any], device: torch.device, step: Callable[[], Tensor | None]) -> None:
    """Take the steps, and print the slowest rank's time of each, the most memory that a rank held, and the first
    losses of the steps that return one."""
    times, losses = [], []
    for index in range(job["warmup_steps"] + job["steps"]):
        synchronize()
        dist.barrier()
        begun = time.perf_counter()
        loss = step()
        synchronize()
        taken = torch.tensor(time.perf_counter() - begun, device=device)
        dist.all_reduce(taken, dist.ReduceOp.MAX)
        if index >= job["warmup_steps"]:
            times.append(taken.item())
        if loss is not None and index < FIRST_LOSSES:
            losses.append(loss.item())
    peak = torch.tensor(held_bytes(), device=device)
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        record = {"step_times_s": times, "peak_held_bytes": int(peak.item()), "first_losses": losses}
        sys.stdout.write(json.dumps(record) + "\n")
        sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


def held_bytes() -> int:
    """The most that this process held: on CUDA the allocator's reserve, and beside it what the device had in use."""
    if not CUDA:
        return resident("VmHWM") - BEFORE
    free, total = torch.cuda.mem_get_info()
    return torch.cuda.max_memory_reserved() + total - free - torch.cuda.memory_reserved()


def synchronize() -> None:
    if CUDA:
        torch.cuda.synchronize()


def resident(name: str) -> int:
    text = Path("/proc/self/status").read_text()
    return next(1024 * int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name}:"))
