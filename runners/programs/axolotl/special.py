"""What no row of axolotl's table can say: passes by the batch of one device, and FSDP by its own sections (axolotl
0.18.0; see the table)."""

from __future__ import annotations

import re

from meshtune.runners.programs.accelerate.special import TABLE as ACCELERATE
from meshtune.runners.programs.accelerate.special import Sharding, put_stage
from meshtune.runners.programs.reading import truth
from meshtune.runners.programs.transformers import special
from meshtune.runners.programs.transformers.words import TrainerReading


def accumulation(reading: TrainerReading) -> None:
    """utils/config: batch_size is that of one device; passes are the rest of it."""
    name, size = "--gradient_accumulation_steps", reading.fields.get("micro_batch_size")
    if reading.has(name):
        reading.put("grad_accum_steps", reading.whole(name, "global_batch_size"), name)
    elif (rows := reading.whole("--batch_size", "global_batch_size")) and size:
        reading.put("grad_accum_steps", max(1, rows // size), "--batch_size")
    elif not reading.has("--batch_size"):
        reading.fields["grad_accum_steps"] = 1


def zero_stage(reading: TrainerReading) -> None:
    """`fsdp_config`, beside `fsdp` in version 1, counts more than `deepspeed`; trials keep it. Raises CannotRead."""
    config = special.fsdp_config(reading)
    if not (config or reading.has("--fsdp")):
        special.zero_stage(reading)
        return
    # core/builders/base.py: the Trainer's `fsdp` is true where the file has none.
    options, strategies = re.findall(r"\w+", str(reading.get("--fsdp")).lower()), ACCELERATE.lists["strategies"]
    strategy = next((name for name in options if name in strategies), "full_shard")
    plain = strategy if reading.has("--fsdp") else config.get("reshard_after_forward", True)
    put_stage(reading, config.get("sharding_strategy", plain), "--fsdp", "--fsdp_config")
    offloaded = bool(truth(config.get("offload_params", False)))
    recomputes = special.recomputes_in(config, reading, offloaded=offloaded)
    reading.sharding = Sharding(fixed=True, recomputes=recomputes)
