"""Lists of arguments as JSON, one per line of the standard input; of each what torchtitan's own ConfigManager makes of
it, and the degrees of its ParallelDims, as JSON. The first argument: the devices of all."""

from __future__ import annotations

import inspect
import json
import logging
import sys
import types
from importlib.metadata import version

if version("torchtitan").startswith("0.2."):
    # Imported by the package itself, and half of what its import takes.
    sys.modules["torchtitan.components.quantization"] = types.ModuleType("torchtitan.components.quantization")

from torchtitan.config import ConfigManager
from torchtitan.distributed import ParallelDims

DEVICES = int(sys.argv[1])
logging.disable()
for line in sys.stdin:
    config = ConfigManager().parse_args(json.loads(line))
    said = config.parallelism
    degrees = {
        "dp_replicate": said.data_parallel_replicate_degree,
        "dp_shard": said.data_parallel_shard_degree,
        "cp": said.context_parallel_degree,
        "tp": said.tensor_parallel_degree,
        "pp": said.pipeline_parallel_degree,
        "ep": said.expert_parallel_degree,
        "world_size": DEVICES,
    }
    known = inspect.signature(ParallelDims).parameters
    if "etp" in known:
        degrees["etp"] = said.expert_tensor_parallel_degree
    ParallelDims(**{name: value for name, value in degrees.items() if name in known})
    document = config.to_dict()
    if spec := document.get("model_spec"):
        spec.pop("model")
    sys.stdout.write(json.dumps(document, default=str) + "\n")
