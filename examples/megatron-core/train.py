"""A GPT of Megatron-Core that learns to count, laid out by its arguments: Megatron-Core's model, parallel groups,
pipeline schedules, data parallelism and optimizer. All that is meshtune's are the lines with `reporter`. On two GPUs:

    torchrun --nproc-per-node 2 train.py --tp 2 --micro-batch-size 2

For megatron-core 0.16.1, which runs on CUDA devices alone; meshtune's tests run this program on CPUs with a stand-in
for CUDA. Layers are Megatron-Core's own, without Transformer Engine and Apex."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from zlib import crc32

import megatron.core
import torch
import torch.distributed as dist
from megatron.core import parallel_state as groups
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module
from torch import Tensor
from torch.nn.functional import silu

from meshtune.runners.report import Reporter

parser = argparse.ArgumentParser()
for name, default in {"tp": 1, "pp": 1, "vpp": 1, "micro-batch-size": 1, "global-batch-size": 8, "zero": 0}.items():
    parser.add_argument(f"--{name}", type=int, default=default)
parser.add_argument("--schedule", choices=("1f1b", "interleaved"), default="1f1b")
parser.add_argument("--recompute", choices=("none", "selective", "full"), default="none")
parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
shapes = {"layers": 4, "hidden": 64, "heads": 4, "kv-heads": 4, "ffn": 256, "vocab": 512, "seq-len": 64}
for name, default in shapes.items():
    parser.add_argument(f"--{name}", type=int, default=default)
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
# Chunks of the model in each pipeline stage, where there are several.
virtual = args.vpp if args.schedule == "interleaved" else None


def config_of() -> TransformerConfig:
    full = args.recompute == "full"
    return TransformerConfig(
        num_layers=args.layers,
        hidden_size=args.hidden,
        num_attention_heads=args.heads,
        num_query_groups=args.kv_heads,
        ffn_hidden_size=args.ffn,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=args.tp,
        pipeline_model_parallel_size=args.pp,
        virtual_pipeline_model_parallel_size=virtual,
        recompute_granularity=None if args.recompute == "none" else args.recompute,
        recompute_method="uniform" if full else None,
        recompute_num_layers=1 if full else None,
        bf16=args.dtype == "bfloat16",
        pipeline_dtype=getattr(torch, args.dtype),
        # As Megatron-LM does: batched messages between two stages of several chunks would be taken for each other.
        overlap_p2p_comm=virtual is not None,
        batch_p2p_comm=virtual is None,
        # CUDA's order of kernels keeps what is being sent; gloo would send what has been freed.
        deallocate_pipeline_outputs=torch.cuda.is_available(),
    )


def chunk_of(config: TransformerConfig, chunk: int) -> GPTModel:
    stage = None if virtual is None else chunk
    return GPTModel(
        config,
        get_gpt_layer_local_spec(normalization="RMSNorm"),
        args.vocab,
        args.seq_len,
        pre_process=groups.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
        post_process=groups.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
        position_embedding_type="rope",
        vp_stage=stage,
    )


@torch.no_grad()
def draw_weights(model: GPTModel) -> None:
    """The same weights whatever the plan, so that the losses of two plans can be compared: each is drawn whole, by a
    seed of its own, and this rank's part of it is kept. Norms keep their ones."""
    parts = model.sharded_state_dict()
    apply_factories(parts)
    for part in nested_values(parts):
        if isinstance(part, ShardedTensor) and part.data.dim() > 1:
            stacked = part.prepend_axis_num
            seed = crc32(f"{args.seed} {part.key} {part.global_offset[:stacked]}".encode())
            whole = torch.randn(part.global_shape[stacked:], generator=torch.Generator().manual_seed(seed))
            starts = part.global_offset[stacked:]
            here = tuple(slice(start, start + size) for start, size in zip(starts, part.local_shape, strict=True))
            part.data.copy_(0.02 * whole[here])


def batches(step: int, micro_batches: int, device: torch.device) -> Iterator[Tensor]:
    """This rank's micro-batches of a step: the same global batch whatever the plan. int64[micro_batch, seq_len + 1]"""
    drawn = torch.Generator().manual_seed(args.seed * 1_000_003 + step)
    first = torch.randint(args.vocab, (args.global_batch_size, 1), generator=drawn)
    tokens = (first + torch.arange(args.seq_len + 1)) % args.vocab
    own = tokens.chunk(groups.get_data_parallel_world_size())[groups.get_data_parallel_rank()]
    return iter(own.to(device).chunk(micro_batches))


def forward_step(data: Iterator[Tensor], model: torch.nn.Module) -> tuple[Tensor, object]:
    tokens = next(data)
    positions = torch.arange(args.seq_len, device=tokens.device).expand(len(tokens), -1)
    losses = model(tokens[:, :-1].contiguous(), positions, None, labels=tokens[:, 1:].contiguous())
    return losses, lambda output: (output.mean(), {"loss": output.mean().detach()})


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if cuda else "gloo")
    groups.initialize_model_parallel(args.tp, args.pp, virtual)
    model_parallel_cuda_manual_seed(args.seed + 1)

    config = config_of()
    raw = [chunk_of(config, chunk).to(device) for chunk in range(virtual or 1)]
    for chunk in raw:
        draw_weights(chunk)
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=args.zero >= 1)
    model = [
        DistributedDataParallel(config, ddp, Float16Module(config, chunk) if config.bf16 else chunk) for chunk in raw
    ]
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            lr=1e-3,
            bf16=config.bf16,
            params_dtype=config.pipeline_dtype,
            use_distributed_optimizer=args.zero >= 1,
        ),
        model,
    )
    config.no_sync_func = model[0].no_sync if virtual is None else [chunk.no_sync for chunk in model]
    config.finalize_model_grads_func = finalize_model_grads
    forward_backward = get_forward_backward_func()
    copies = groups.get_data_parallel_world_size()
    micro_batches = args.global_batch_size // (args.micro_batch_size * copies)
    reporter = Reporter()
    for step in range(args.steps):
        for chunk in model:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        told = forward_backward(
            forward_step_func=forward_step,
            data_iterator=[batches(step, micro_batches, device) for _ in model],
            model=model,
            num_microbatches=micro_batches,
            seq_length=args.seq_len,
            micro_batch_size=args.micro_batch_size,
            forward_only=False,
        )
        optimizer.step()
        # The last stage alone knows the loss; the sum tells all, and all are done with the step.
        own = sum((each["loss"] for each in told), torch.zeros((), device=device))
        loss = own / (micro_batches * copies * args.tp)
        dist.all_reduce(loss)
        if reporter.step(loss=loss.item()):
            break
    peaks = [0] * dist.get_world_size()
    if cuda:
        dist.all_gather_object(peaks, torch.cuda.max_memory_allocated())
    measured = {"peak_memory_bytes": peaks} if cuda else {}
    reporter.done(software={"torch": torch.__version__, "megatron-core": megatron.core.__version__}, **measured)
    if dist.get_rank() == 0:
        print("losses", *(f"{loss:.6f}" for loss in reporter.losses))  # noqa: T201
    dist.destroy_process_group()


main()
