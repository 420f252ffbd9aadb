"""Does Megatron take the arguments that meshtune writes? Its own parse_args and validate_args are asked, on a CPU.

`python benchmarks/megatron_arguments.py CHECKOUT` of Megatron-LM or Megatron-DeepSpeed: every plan of the spaces of
`megatron_spaces.py`. Of each, the model's shapes, the degrees, batch, recomputation and ZeRO stage that Megatron
understood are compared with what was meant. What is not installed (Triton, ...) and the GPU are stand-ins, and
fusions that need Transformer Engine are switched off. Nothing is trained. Ends with 1 where a plan is refused.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import io
import os
import sys
import time
import traceback
import typing
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
import torch._inductor.select_algorithm  # before there is a stand-in for Triton
from megatron_spaces import CLUSTER, Case, cases

from meshtune.runners.programs.dialects.base import read_lines
from meshtune.runners.programs.megatron.options import CONTEXTS, Flavour
from meshtune.runners.programs.megatron.workload import ARGUMENTS_FILE, MegatronWorkload
from meshtune.runners.programs.workloads.base import JobRequest
from meshtune.search_spaces.model import Activation, ModelSpec, Position
from meshtune.search_spaces.plan import ContextParallel, Plan

STANDINS = (
    *("triton", "einops", "nvidia_resiliency_ext", "hydra", "flashinfer", "omegaconf", "transformers"),
    *("deepspeed", "six", "regex", "tools"),
)
AS_MEANT = "as meant"
WITHOUT_FUSIONS = ("--no-rope-fusion", "--no-gradient-accumulation-fusion")
DEFAULT = ContextParallel.ALL_GATHER
KINDS = {words: kind for kind, words in CONTEXTS.items()}
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
    checkout = Path(sys.argv[1])
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(checkout))
    sys.meta_path.append(_Standins())
    os.environ |= {"RANK": "0", "WORLD_SIZE": str(CLUSTER.devices), "LOCAL_RANK": "0"}
    newer = (checkout / "megatron" / "training" / "arguments.py").exists()
    flavour = Flavour.MEGATRON_LM if newer else Flavour.MEGATRON_DEEPSPEED
    understood = _megatron_lm() if newer else _megatron_deepspeed()
    fine = True
    for case in cases(flavour):
        started = time.perf_counter()
        told = Counter(_ask(case, plan, understood) for plan in case.space)
        sys.stdout.write(f"{case.name}: {told.total()} plans in {time.perf_counter() - started:.0f} s\n")
        for answer, times in told.most_common():
            sys.stdout.write(f"{times:7d} {answer}\n")
        sys.stdout.flush()
        fine = fine and set(told) == {AS_MEANT}
    sys.exit(not fine)


def _ask(case: Case, plan: Plan, understood: Understood) -> str:
    """What Megatron makes of one trial's arguments."""
    workload = MegatronWorkload({"flavour": case.flavour, "arguments": case.arguments})
    job = workload.materialize(JobRequest("t", case.model, plan, CLUSTER, Path("t"), seed=0, time_limit_s=60))
    arguments, _ = read_lines(job.files[ARGUMENTS_FILE].splitlines())
    words = [word for name, values in arguments.items() for word in (name, *values)]
    sys.argv = ["pretrain_gpt.py", *words, *(WITHOUT_FUSIONS if case.flavour is Flavour.MEGATRON_LM else ())]
    queues = "CUDA_DEVICE_MAX_CONNECTIONS"
    os.environ.pop(queues, None)
    if f"export {queues}=1" in job.files["launch.sh"]:
        os.environ[queues] = "1"
    noise = io.StringIO()
    try:
        with redirect_stdout(noise), redirect_stderr(noise):
            found = understood()
    except SystemExit:  # of argparse, which has said why
        return f"refused: {noise.getvalue().strip()[-200:]}"
    except Exception as error:
        return f"refused at {_place(error)}: {type(error).__name__}: {str(error)[:200]}"
    meant = {**_shapes(case.model), **{name: getattr(plan, name) for name in found if hasattr(plan, name)}}
    wrong = {name: (value, meant[name]) for name, value in found.items() if meant[name] != value}
    return f"understood otherwise: {wrong}" if wrong else AS_MEANT


def _place(error: BaseException) -> str:
    """The innermost line of the refusal."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"


def _shapes(model: ModelSpec) -> dict[str, Any]:
    return {
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "ffn": model.ffn,
        "seq_len": model.seq_len,
        "swiglu": model.activation is Activation.SWIGLU,
        "rope": model.position is Position.ROPE,
        "norm": str(model.norm),
        "tied_head": model.tied_head,
        "experts": model.experts,
        "top_k": model.top_k if model.experts else 0,
        "dtype": "torch.bfloat16",
    }


def _common(args: Any) -> dict[str, Any]:
    """What both programs call by the same names."""
    chunks = args.pipeline_model_parallel_size * (args.virtual_pipeline_model_parallel_size or 1)
    some = args.recompute_method == "block"
    return {
        "layers": args.num_layers,
        "hidden": args.hidden_size,
        "heads": args.num_attention_heads,
        "ffn": args.ffn_hidden_size,
        "seq_len": args.seq_length,
        "swiglu": args.swiglu,
        "norm": args.normalization.lower(),
        "tied_head": not args.untie_embeddings_and_output_weights,
        "dtype": str(args.params_dtype),
        "tp": args.tensor_model_parallel_size,
        "pp": args.pipeline_model_parallel_size,
        "dp": args.data_parallel_size,
        "vpp": args.virtual_pipeline_model_parallel_size or 1,
        "micro_batch_size": args.micro_batch_size,
        "grad_accum_steps": args.global_batch_size // (args.micro_batch_size * args.data_parallel_size),
        "sequence_parallel": args.sequence_parallel or args.tensor_model_parallel_size == 1,
        "recompute": args.recompute_granularity or "none",
        "recompute_interval": args.num_layers // (chunks * args.recompute_num_layers) if some else 1,
    }


def _megatron_lm() -> Understood:
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    properties: Any = lambda *_: SimpleNamespace(major=9, minor=0)  # noqa: E731
    torch.cuda.get_device_properties = properties
    typing.override = getattr(typing, "override", lambda function: function)  # Python 3.11 has none
    from megatron.training import arguments

    # The parser of some 800 arguments is made once; parse_args makes it anew, which takes 20 times as long as the rest.
    parser = arguments.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    arguments.add_megatron_arguments = lambda _: parser

    def understood() -> Mapping[str, Any]:
        args = arguments.parse_args()
        arguments.validate_args(args, {"tokenizer_type": "GPT2BPETokenizer"})
        config = arguments.core_transformer_config_from_args(args)
        fsdp = {"optim_grads": 2, "optim_grads_params": 3}.get(args.data_parallel_sharding_strategy, 0)
        experts = config.num_moe_experts or 0
        return {
            **_common(args),
            "kv_heads": config.num_query_groups,
            "rope": args.position_embedding_type == "rope",
            "experts": experts,
            "top_k": config.moe_router_topk if experts else 0,
            "cp": args.context_parallel_size,
            "ep": args.expert_model_parallel_size,
            "context": KINDS[config.cp_comm_type] if args.context_parallel_size > 1 else DEFAULT,
            "zero_stage": fsdp if args.use_megatron_fsdp else int(args.use_distributed_optimizer),
        }

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
        (experts,) = args.num_experts
        return {
            **_common(args),
            "kv_heads": args.num_key_value_heads,
            "rope": args.use_rotary_position_embeddings,
            "experts": experts if experts > 1 else 0,
            "top_k": args.topk if experts > 1 else 0,
            "cp": args.ds_sequence_parallel_size,
            "ep": args.moe_expert_parallel_size,
            "zero_stage": args.zero_stage,
        }

    return understood


def _deepspeed_arguments(parser: Any) -> Any:
    """What deepspeed.add_config_arguments adds, as far as it is used."""
    parser.add_argument("--deepspeed", action="store_true")
    parser.add_argument("--deepspeed_config", type=str)
    return parser


if __name__ == "__main__":
    main()
