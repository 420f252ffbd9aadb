"""The example of Hugging Face's Trainer with CPUs that pass for accelerators, as a script that trials start.

Accelerate 1.15.0 runs DDP on CPUs whatever it is told (accelerate/state.py, AcceleratorState: FSDP and DeepSpeed are
for other kinds of devices), and DeepSpeed 0.19.8 compiles a collective there, for minutes."""

from __future__ import annotations

import importlib.util
import os
import runpy
from pathlib import Path
from typing import Any

from accelerate.state import PartialState
from accelerate.utils import DistributedType

if importlib.util.find_spec("deepspeed") and os.environ.get("DS_ACCELERATOR"):
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__ = {}

as_it_is = PartialState.__init__


def with_devices(self: PartialState, cpu: bool = False, **more: Any) -> None:
    as_it_is(self, cpu, **more)
    if self.distributed_type is DistributedType.MULTI_CPU:
        self.distributed_type = DistributedType.MULTI_GPU


PartialState.__init__ = with_devices

runpy.run_path(str(Path(__file__).parents[2] / "examples" / "huggingface" / "train.py"), run_name="__main__")
