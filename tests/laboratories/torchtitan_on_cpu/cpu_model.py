"""`experimental.custom_import` of torchtitan 0.2: its Llama 3 on CPU processes, equal weights and data in any layout.

Weights are drawn by name, so that sharding, tensor and pipeline ranks draw the same; data are sequences by number,
dealt out to the data-parallel ranks. gloo has no premultiplied sums (FSDP2's own setting for that is used), and no
barrier by device, which stands in `set_pg_timeouts` alone."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torchtitan.distributed.utils
import torchtitan.protocols.train_spec as train_spec
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.data import IterableDataset
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.models.llama3.model.model import Transformer

VOCABULARY = 2048


class Sequences(IterableDataset):  # type: ignore[misc]
    """Every `step`-th sequence from `first` on, and its successor tokens as labels."""

    def __init__(self, first: int, step: int, length: int) -> None:
        self.first, self.step, self.length = first, step, length

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        number = self.first
        while True:
            generator = torch.Generator().manual_seed(number)
            tokens = torch.randint(0, VOCABULARY, (self.length + 1,), generator=generator)
            yield {"input": tokens[:-1]}, tokens[1:]
            number += self.step

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing is loaded."""


def data(dp_world_size: int, dp_rank: int, job_config: Any, **_: Any) -> ParallelAwareDataloader:
    training = job_config.training
    sequences = Sequences(dp_rank, dp_world_size, training.seq_len)
    return ParallelAwareDataloader(sequences, dp_rank, dp_world_size, batch_size=training.local_batch_size)


def summed(parallelize: Callable[..., torch.nn.Module]) -> Callable[..., torch.nn.Module]:
    def parallelized(*given: Any) -> torch.nn.Module:
        model = parallelize(*given)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
        return model

    return parallelized


def draw_weights(model: torch.nn.Module, **given: Any) -> None:
    _initialise(model, **given)
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            continue
        seed = zlib.crc32(name.replace("_checkpoint_wrapped_module.", "").encode())
        whole = 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
        if isinstance(parameter, DTensor):
            whole = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
        with torch.no_grad():
            parameter.copy_(whole)


_initialise, Transformer.init_weights = Transformer.init_weights, draw_weights
_get = train_spec.get_train_spec


def on_cpu(name: str) -> train_spec.TrainSpec:
    found = _get(name)
    return replace(
        found, build_tokenizer_fn=None, build_dataloader_fn=data, parallelize_fn=summed(found.parallelize_fn)
    )


train_spec.get_train_spec = on_cpu
torchtitan.distributed.utils.set_pg_timeouts = lambda *_, **__: None
torch.cpu.current_device = lambda: 0
