"""Does Megatron take the arguments that meshtune writes? Its own parse_args and validate_args are asked, on a CPU.

`python benchmarks/megatron_arguments.py /path/to/Megatron-LM [plans]`, or a checkout of Megatron-DeepSpeed. Random
legal plans of a dense model and of a mixture of experts on 16 devices; of each the degrees, batch, recomputation and
ZeRO stage that Megatron understood are compared with the plan's. What is not installed (Triton, DeepSpeed ...) and the
GPU are stand-ins, and fusions that need Transformer Engine are switched off. Nothing is trained.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import io
import os
import random
import sys
import typing
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
import torch._inductor.select_algorithm  # before there is a stand-in for Triton

from meshtune.runners.dialects.base import read_lines
from meshtune.runners.dialects.megatron.arguments import Flavour
from meshtune.runners.dialects.megatron.dialect import ARGUMENTS_FILE, capabilities_of
from meshtune.runners.workloads.megatron import MegatronWorkload
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind, DeviceSpec
from meshtune.search_spaces.model import Activation, ModelSpec, Norm, Position
from meshtune.search_spaces.plan import ContextParallel, Plan, Recompute, Schedule
from meshtune.search_spaces.space import Bounds, Space
from meshtune.search_spaces.space_context import SpaceContext

DEVICE = DeviceSpec(name="stand-in", kind=DeviceKind.CUDA, memory_bytes=80 * 2**30)
CLUSTER = ClusterSpec(name="stand-in", nodes=2, devices_per_node=8, device=DEVICE)
BATCH = 32
DENSE = ModelSpec(name="dense", layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256, seq_len=8192)
MIXTURE = replace(
    DENSE,
    name="mixture",
    layers=16,
    experts=8,
    top_k=2,
    tied_head=True,
    norm=Norm.LAYERNORM,
    activation=Activation.GELU,
    position=Position.LEARNED,
)
BOUNDS = Bounds(
    cp=(1, 2, 4),
    ep=(1, 2, 4),
    vpp=(1, 2, 4),
    micro_batch_size=(1, 2),
    recompute=tuple(Recompute),
    recompute_interval=(1, 2, 3),
    schedule=(Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED),
    sequence_parallel=(True, False),
    context=tuple(ContextParallel),
)
STANDINS = (
    *("triton", "einops", "nvidia_resiliency_ext", "hydra", "flashinfer", "omegaconf", "transformers"),
    *("deepspeed", "six", "regex", "tools"),
)
WITHOUT_FUSIONS = ("--no-rope-fusion", "--no-gradient-accumulation-fusion")
Understood = Callable[[], Mapping[str, Any]]


class _Standins(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes an empty module of what is not installed."""

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        known = name.partition(".")[0] in STANDINS
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module: Any = MagicMock(name=spec.name, __path__=[], __spec__=spec, __version__="0.16.0")
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


def main() -> None:
    checkout, count = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 80
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(checkout))
    sys.meta_path.append(_Standins())
    os.environ |= {"RANK": "0", "WORLD_SIZE": str(CLUSTER.devices), "LOCAL_RANK": "0"}
    newer = (checkout / "megatron" / "training" / "arguments.py").exists()
    flavour = Flavour.MEGATRON_LM if newer else Flavour.MEGATRON_DEEPSPEED
    understood = _megatron_lm() if newer else _megatron_deepspeed()
    told: Counter[str] = Counter()
    for model in (DENSE, MIXTURE):
        for plan in _plans(model, flavour, count):
            told[_ask(model, plan, flavour, understood)] += 1
    for answer, times in told.most_common():
        sys.stdout.write(f"{times:5d} {answer}\n")


def _plans(model: ModelSpec, flavour: Flavour, count: int) -> list[Plan]:
    able = capabilities_of(flavour)
    space = Space(BOUNDS, SpaceContext(model=model, cluster=CLUSTER, global_batch_size=BATCH, capabilities=able))
    return [space[index] for index in random.Random(1).sample(range(len(space)), min(count, len(space)))]


def _ask(model: ModelSpec, plan: Plan, flavour: Flavour, understood: Understood) -> str:
    """What Megatron makes of one trial's arguments."""
    workload = MegatronWorkload({"flavour": flavour})
    with TemporaryDirectory() as folder:
        job = workload.materialize("t", model, plan, CLUSTER, Path(folder), seed=0, time_limit_s=60)
    arguments, _ = read_lines(job.files[ARGUMENTS_FILE].splitlines())
    words = [word for name, values in arguments.items() for word in (name, *values)]
    sys.argv = ["pretrain_gpt.py", *words, *(WITHOUT_FUSIONS if flavour is Flavour.MEGATRON_LM else ())]
    queues = "CUDA_DEVICE_MAX_CONNECTIONS"
    os.environ.pop(queues, None)
    if f"export {queues}=1" in job.files["launch.sh"]:
        os.environ[queues] = "1"
    noise = io.StringIO()
    try:
        with redirect_stdout(noise), redirect_stderr(noise):
            found = understood()
    except (Exception, SystemExit) as error:
        return f"refused: {type(error).__name__}: {str(error)[:200]} {noise.getvalue()[-200:]}"
    wrong = {name: (value, getattr(plan, name)) for name, value in found.items() if getattr(plan, name) != value}
    return f"understood otherwise: {wrong}" if wrong else "as the plan"


def _degrees(args: Any, cp: int, ep: int, zero_stage: int) -> dict[str, Any]:
    return {
        "tp": args.tensor_model_parallel_size,
        "pp": args.pipeline_model_parallel_size,
        "cp": cp,
        "ep": ep,
        "dp": args.data_parallel_size,
        "vpp": args.virtual_pipeline_model_parallel_size or 1,
        "micro_batch_size": args.micro_batch_size,
        "grad_accum_steps": args.global_batch_size // (args.micro_batch_size * args.data_parallel_size),
        "sequence_parallel": args.sequence_parallel or args.tensor_model_parallel_size == 1,
        "recompute": args.recompute_granularity or "none",
        "zero_stage": zero_stage,
    }


def _megatron_lm() -> Understood:
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    properties: Any = lambda *_: SimpleNamespace(major=9, minor=0)  # noqa: E731
    torch.cuda.get_device_properties = properties
    typing.override = getattr(typing, "override", lambda function: function)  # Python 3.11 has none
    from megatron.training.arguments import core_transformer_config_from_args, parse_args, validate_args

    def understood() -> Mapping[str, Any]:
        args = parse_args()
        validate_args(args, {"tokenizer_type": "GPT2BPETokenizer"})
        core_transformer_config_from_args(args)
        fsdp = {"optim_grads": 2, "optim_grads_params": 3}[args.data_parallel_sharding_strategy]
        zero_stage = fsdp if args.use_megatron_fsdp else int(args.use_distributed_optimizer)
        return _degrees(args, args.context_parallel_size, args.expert_model_parallel_size, zero_stage)

    return understood


def _megatron_deepspeed() -> Understood:
    import deepspeed

    deepspeed.PipelineModule = deepspeed.pipe.PipelineModule = type("PipelineModule", (torch.nn.Module,), {})
    sys.modules["deepspeed.pipe"] = deepspeed.pipe
    deepspeed.add_config_arguments = _deepspeed_arguments
    from megatron.arguments import parse_args, validate_args

    def understood() -> Mapping[str, Any]:
        args = parse_args()
        validate_args(args, {})
        return _degrees(args, args.ds_sequence_parallel_size, args.moe_expert_parallel_size, args.zero_stage)

    return understood


def _deepspeed_arguments(parser: Any) -> Any:
    """What deepspeed.add_config_arguments adds, as far as it is used."""
    parser.add_argument("--deepspeed", action="store_true")
    parser.add_argument("--deepspeed_config", type=str)
    return parser


if __name__ == "__main__":
    main()
