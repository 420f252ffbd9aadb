"""The example of Hugging Face's Trainer, with a clock of its own and CPUs that pass for accelerators: a script that
trials start.

Accelerate 1.15.0 runs DDP on CPUs whatever it is told (accelerate/state.py, AcceleratorState: FSDP and DeepSpeed are
for other kinds of devices), and DeepSpeed 0.19.8 compiles a collective there, for minutes."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from transformers import Trainer

if importlib.util.find_spec("deepspeed") and os.environ.get("DS_ACCELERATOR"):
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__ = {}
    if "--deepspeed" in sys.argv:
        # TrainingArguments does so where there are accelerators; weights that are sharded as they are made need it.
        deepspeed.init_distributed("gloo")

as_it_is, train_as_it_is = PartialState.__init__, Trainer.training_step
# When each micro-batch began, and what it was run by.
begins: list[float] = []
engines: set[str] = set()


def with_devices(self: PartialState, cpu: bool = False, **more: Any) -> None:
    as_it_is(self, cpu, **more)
    if self.distributed_type is DistributedType.MULTI_CPU:
        self.distributed_type = DistributedType.MULTI_GPU


def with_a_clock(self: Trainer, model: Any, *more: Any, **named: Any) -> Any:
    begins.append(time.perf_counter())
    engines.update(kind.__name__ for kind in type(model).__mro__)
    return train_as_it_is(self, model, *more, **named)


# DDP takes a CPU for none.
if os.environ.get("ACCELERATE_USE_FSDP") == "true" or "--deepspeed" in sys.argv:
    PartialState.__init__ = with_devices
Trainer.training_step = with_a_clock

sys.argv[0] = str(Path(__file__).parents[2] / "examples" / "huggingface" / "train.py")
runpy.run_path(sys.argv[0], run_name="__main__")
if os.environ.get("RANK", "0") == "0":
    told = {"begins": begins, "engines": sorted(engines)}
    (Path(os.environ["MESHTUNE_DIRECTORY"]) / "clock.json").write_text(json.dumps(told))
# A thread of gloo's that still holds a tensor when the interpreter ends aborts the process (pytorch/pytorch#179291).
# The threads are a group's own, and end with it: once no DDP, whose references are in a circle, knows it either.
gc.collect()
if dist.is_initialized():
    dist.destroy_process_group()
