"""One rank of a trainer's job whose ranks share one device, or its only one:

    RANK=0 WORLD_SIZE=2 python shared_device.py JOB --directory DIRECTORY

Weights are drawn on the CPU, so that a job begins with the same ones on every kind of device."""

from __future__ import annotations

import os
import sys

import torch

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def main() -> int:
    import staged_gloo

    from meshtune.runners.trainer import main as trainer
    from meshtune.runners.trainer.parallel import sharding

    # Products of float32 in full, to be compared.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    draw, host = sharding.initial_values, torch.device("cpu")
    sharding.initial_values = lambda spec, name, shape, seed, device, *rest: draw(
        spec, name, shape, seed, host, *rest
    ).to(device)
    staged_gloo.use_for_everything()
    return trainer.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
