"""Simulated trainings with knobs, from 10^3 to 10^7 distinct plans: their spaces, as specs describe them, and the parts
that their knobs play (`knob_draws`). `knob_worlds` draws what each plan costs.

Names and values are as people have them; effects are drawn, so that none is known from a name. The landscapes of
`HELD_OUT` have effects of other shapes (seconds that do not grow with the step, shares of the pipeline's bubble, help
on some layouts and harm on others), for judging a search that was developed on the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from knob_draws import Pair, Slot

from meshtune.search_spaces.knobs import KnobSet
from meshtune.tuner.prediction.predict import training_of
from meshtune.tuner.search.base import Task, other_codes
from meshtune.tuner.specs.read import read_spec

Described = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """A knob as a spec describes it, and the part that it plays: role and scope as in `knob_draws`."""

    described: Described
    role: str = "null"
    scope: str = "all"


@dataclass(frozen=True, slots=True, eq=False)
class Landscape:
    """spec: model, cluster, batch, workload and the layouts' bounds. pairs: kind, two knobs, and the scope. draws: the
    effects' name, by default the landscape's; two that share it share the effects of the knobs that both have.
    adds_seconds: effects add seconds and do not multiply.
    """

    name: str
    spec: Described
    parts: Mapping[str, Part]
    pairs: tuple[tuple[str, str, str, str], ...] = ()
    draws: str = ""
    adds_seconds: bool = False
    held_out: bool = False

    @property
    def generates(self) -> bool:
        """Its plans are costed by a simulated step with a rollout (`knob_rollouts`), and knobs play no drawn part."""
        return "training" in self.spec

    def slots_of(self, knobs: KnobSet) -> list[Slot]:
        return [Slot(knob, self.parts[knob.name].role, self.parts[knob.name].scope) for knob in knobs]

    def pairs_of(self, knobs: KnobSet) -> list[Pair]:
        named = {knob.name: knob for knob in knobs}
        return [Pair(kind, (named[one], named[other]), scope) for kind, one, other, scope in self.pairs]


@cache
def task_of(name: str) -> Task:
    """The task of the landscape of that name."""
    landscape = LANDSCAPES[name]
    # What a simulated job is told changes nothing; a variable each.
    knobs = {knob: {"env": knob.upper(), **part.described} for knob, part in landscape.parts.items()}
    spec, space = read_spec({"name": name, "runner": "simulated", **landscape.spec, "knobs": knobs}, None)
    training = training_of(spec)
    return Task(space=space, training=training, others=other_codes(spec, space.knobs, training))


def _spec(model: str, cluster: str, nodes: int, batch: int, framework: str, **space: list[Any]) -> Described:
    return {
        "model": model,
        "cluster": {"preset": cluster, "nodes": nodes},
        "global_batch_size": batch,
        "workload": {"kind": "simulated", "framework": framework},
        "space": {**space, "recompute": space.get("recompute", ["none", "full"])},
    }


def _knob(values: list[Any], role: str = "null", scope: str = "all", **more: Any) -> Part:
    return Part({"values": values, **more}, role, scope)


def _nulls(many: int) -> dict[str, Part]:
    """Knobs that do nothing."""
    return {
        f"idle_{at}": _knob([[False, True], [1, 2, 4], ["a", "b"], [0, 1], ["on", "off"]][at % 5]) for at in range(many)
    }


_FSDP = Landscape(
    "fsdp",
    _spec("llama3-8b", "dgx-h100", 4, 256, "fsdp", tp=[1], pp=[1], micro_batch_size=[1, 2, 4, 8], zero_stage=[0, 2, 3]),
    {
        "compile": _knob([False, True], "helps", "compute"),
        "reduce_dtype": _knob(["float32", "bfloat16"], "helps", "communication"),
        "prefetch": _knob([1, 2, 3, 4], "middle", "communication", when="zero_stage == 3"),
        "reshard": _knob([True, False], "faster", "zero", when="zero_stage == 3"),
        "allocator": _knob(["native", "expandable", "split"], "hurts"),
        "loader_workers": _knob([2, 8]),
    },
)
_TENSOR = Landscape(
    "tensor",
    _spec(
        "llama2-13b", "dgx-a100", 4, 256, "megatron-deepspeed",
        tp=[1, 2, 4, 8], pp=[1, 2, 4], micro_batch_size=[1, 2, 4], zero_stage=[0, 1],
    ),
    {
        "overlap_tp": _knob([False, True], "helps", "tensor", when="tp > 1"),
        "overlap_split": _knob([1, 2, 4, 8], "middle", "tensor", when="tp > 1 and overlap_tp"),
        "fused_attention": _knob(["flash", "fused", "unfused"], "hurts"),
        "grad_bucket_mb": _knob([25, 50, 100, 200, 400], "middle", "replicas"),
        "cuda_graphs": _knob([False, True], "faster", "small batches"),
        "loss_kernel": _knob(["native", "fused"], "smaller"),
        "numa": _knob([False, True], "null"),
    },
    pairs=(("clash", "fused_attention", "numa", "all"),),
)  # fmt: skip
_EXPERTS = Landscape(
    "experts",
    _spec(
        "mixtral-8x7b", "frontier", 4, 256, "megatron-deepspeed",
        tp=[1, 2, 4, 8], pp=[1, 2, 4, 8], ep=[1, 2, 4, 8], micro_batch_size=[1, 2], zero_stage=[0, 1],
    ),
    {
        "dispatcher": _knob(["allgather", "alltoall", "flex"], "helps", "communication", communication="less"),
        "permute_fusion": _knob([False, True], "helps", "all", when="ep > 1"),
        "offload": _knob(["none", "half", "all"], "smaller", "all", kind="ordered", memory="less"),
        "fp8": _knob(["off", "tensorwise", "mxfp8"], "helps", "compute", compute="less"),
        "fp8_amax_history": _knob([1, 16, 256, 1024], "middle", "compute", when="fp8 != off"),
        "cached_weights": _knob([False, True], "faster", "all", memory="more"),
        "channels": _knob([2, 4, 8, 16], "middle", "communication"),
        "nic_buffers": _knob(["small", "large"], "null"),
    },
    pairs=(("together", "channels", "nic_buffers", "communication"),),
)  # fmt: skip
_LARGE = Landscape(
    "large",
    _spec(
        "gpt-22b", "frontier", 8, 512, "megatron-deepspeed",
        tp=[1, 2, 4, 8], pp=[1, 2, 4, 8], micro_batch_size=[1, 2, 4], zero_stage=[0, 1],
    ),
    {
        "attention": _knob(["flash", "math", "triton"], "helps", "compute"),
        "overlap_grad": _knob([False, True], "helps", "replicas"),
        "overlap_param": _knob([False, True], "null", when="zero_stage == 1"),
        "bucket_mb": _knob([16, 32, 64, 128, 256, 512], "middle", "replicas"),
        "channels": _knob([4, 8, 16, 32], "middle", "communication"),
        "protocol": _knob(["simple", "ll", "ll128"], "hurts", "communication"),
        "tp_overlap": _knob(["off", "ring", "bulk"], "helps", "tp", when="tp > 1"),
        "deferred_loss": _knob([False, True], "faster", "small batches", memory="more"),
        "offload_share": _knob([0.0, 0.25, 0.5, 1.0], "smaller", "all", memory="less"),
        "launch_queues": _knob([1, 4, 8], "null"),
        "p2p_batch": _knob([False, True], "helps", "either way", when="pp > 1"),
    },
    pairs=(("together", "overlap_grad", "overlap_param", "all"), ("clash", "attention", "launch_queues", "all")),
)  # fmt: skip
_PLAIN = Landscape(
    "plain",
    _TENSOR.spec,
    {
        "overlap_tp": _knob([False, True], "helps", "tensor", when="tp > 1"),
        "compile": _knob(["off", "default", "max"], "helps"),
        "bucket_mb": _knob([25, 50, 100, 200], "middle", "replicas"),
        "offload": _knob([False, True], "smaller", "all", memory="less"),
    },
)
_NULLS = replace(_PLAIN, name="plain+10 idle", parts={**_PLAIN.parts, **_nulls(10)}, draws="plain")
_WRONG = Landscape(
    "wrong declarations",
    _spec(
        "llama3-8b", "dgx-h100", 2, 128, "nanotron",
        tp=[1, 2, 4, 8], pp=[1, 2, 4], micro_batch_size=[1, 2, 4], zero_stage=[0, 1],
        recompute=["none", "selective", "full"],
    ),
    {
        # Right, then six that are wrong: in direction, or of what does nothing.
        "bucket_mb": _knob([25, 50, 100, 200], "middle", "replicas"),
        "offload": _knob([False, True], "smaller", "all", memory="more"),
        "double_buffer": _knob([False, True], "faster", "all", memory="less", communication="more"),
        "protocol": _knob(["simple", "ll", "ll128"], "hurts", "communication", communication="less"),
        "compile": _knob(["off", "default", "max"], "helps", "compute", compute="more"),
        "pinned": _knob([False, True], "null", memory="less", communication="less"),
    },
)  # fmt: skip
_SECONDS = Landscape(
    "held out: seconds",
    _spec(
        "gpt3-175b", "frontier", 64, 1024, "megatron-deepspeed",
        tp=[2, 4, 8], pp=[4, 8, 16], micro_batch_size=[1, 2, 4], zero_stage=[0, 1],
    ),
    {
        "checkpoint_io": _knob(["sync", "async", "off"], "helps"),
        "loader_workers": _knob([1, 2, 4, 8, 16], "middle"),
        "optimizer_kernel": _knob(["loop", "fused", "foreach"], "helps"),
        "host_pinning": _knob([False, True], "hurts"),
        "gc_interval": _knob([10, 100, 1000], "null"),
        "state_dtype": _knob(["float32", "bfloat16"], "smaller", "all", memory="less"),
        "logging": _knob([1, 10, 100], "hurts"),
        "stream_priority": _knob([0, 1], "null"),
    },
    pairs=(("together", "gc_interval", "stream_priority", "all"),),
    adds_seconds=True,
    held_out=True,
)  # fmt: skip
_BUBBLE = Landscape(
    "held out: bubble",
    _spec(
        "gpt-22b", "dgx-a100-40gb", 8, 256, "megatron-deepspeed",
        tp=[1, 2, 4, 8], pp=[1, 2, 4, 8], micro_batch_size=[1, 2, 4], zero_stage=[0, 1],
    ),
    {
        "defer_wgrad": _knob([False, True], "helps", "bubble", when="pp > 1"),
        "warmup_extra": _knob([0, 1, 2, 4], "middle", "bubble", when="pp > 1"),
        "stage_streams": _knob(["one", "two", "many"], "helps", "deep"),
        "kernel_set": _knob(["a", "b", "c", "d"], "helps", "either way"),
        "activation_offload": _knob([0.0, 0.3, 0.6, 0.9], "smaller", "compute", memory="less"),
        "spin_wait": _knob([False, True], "hurts", "small batches"),
    },
    pairs=(("clash", "kernel_set", "spin_wait", "deep"),),
    held_out=True,
)  # fmt: skip


def _rollout_spec(
    model: str, cluster: str, nodes: int, batch: int, rollout: dict[str, Any], **space: list[Any]
) -> Described:
    """Reinforcement learning against a frozen reference. batch: rows of one update."""
    longest = rollout["prompt_tokens"] + rollout["answer_tokens"]
    return {
        **_spec(model, cluster, nodes, batch, "fsdp", tp=[1], pp=[1], **space),
        "model": {"preset": model, "seq_len": longest},
        "training": {"rollout": rollout, "beside": [{"role": "reference"}]},
    }


def _sets(field: str, values: list[Any], **more: Any) -> Part:
    return Part({"values": values, "sets": field, **more})


# As verl 0.8 has them (trainer/config), with the defaults of its files; graphs are its enforce_eager, negated.
_VERL = {
    "gpu_memory_utilization": _sets("rollout.share", [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9], default=0.5),
    "tensor_model_parallel_size": _sets("rollout.tp", [1, 2, 4], default=2),
    "max_num_seqs": _sets("rollout.max_rows", [128, 256, 512, 1024], default=256),
    "max_num_batched_tokens": _sets("rollout.pass_tokens", [4096, 8192, 16384, 32768], default=8192),
    "cuda_graphs": _sets("rollout.graphs", [True, False], words={"true": "False", "false": "True"}),
    "free_cache_engine": _sets("rollout.sleeps", [True, False]),
    "param_offload": _sets("rollout.weights_leave", [False, True]),
    "optimizer_offload": _sets("rollout.optimizer_leaves", [False, True]),
}
_COLOCATED = Landscape(
    "rl: colocated 7b",
    _rollout_spec(
        "qwen2.5-7b", "dgx-h100", 1, 1024,
        {"prompt_tokens": 1024, "answer_tokens": 3072, "mean_answer_tokens": 1200, "updates": 4, "tp": 2},
        micro_batch_size=[1, 2, 4, 8, 16], zero_stage=[3],
    ),
    {**_VERL, "log_prob_micro_batch_size_per_gpu": _sets("rollout.log_prob_rows", [2, 4, 8, 16, 32], default=4)},
)  # fmt: skip
_LONG = Landscape(
    "rl: long answers 32b",
    _rollout_spec(
        "qwen2.5-32b", "dgx-h100", 4, 1024,
        {"prompt_tokens": 2048, "answer_tokens": 16384, "mean_answer_tokens": 6000, "updates": 2, "tp": 4,
         "update_tokens": 18432, "log_prob_tokens": 18432},
        micro_batch_size=[1], zero_stage=[3], recompute=["full"],
    ),
    {
        **_VERL,
        "tensor_model_parallel_size": _sets("rollout.tp", [2, 4, 8], default=4),
        "max_num_seqs": _sets("rollout.max_rows", [64, 128, 256, 512], default=256),
        "ppo_max_token_len_per_gpu": _sets("rollout.update_tokens", [18432, 24576, 32768, 49152]),
        "log_prob_max_token_len_per_gpu": _sets("rollout.log_prob_tokens", [18432, 36864, 73728]),
        "use_fused_kernels": _sets("fused_loss", [False, True]),
        "enable_activation_offload": _sets("offload_activations", [False, True]),
    },
)  # fmt: skip
# As OpenRLHF 0.11 has them; engines on a node of their own, as many as their tensor parallelism leaves.
_SEPARATED = Landscape(
    "held out: rl separated 14b",
    _rollout_spec(
        "qwen2.5-14b", "dgx-a100", 1, 512,
        {"prompt_tokens": 1024, "answer_tokens": 4096, "mean_answer_tokens": 1500, "updates": 2, "devices": 8},
        micro_batch_size=[1, 2, 4, 8, 16], zero_stage=[2, 3],
    ),
    {
        "vllm_tensor_parallel_size": _sets("rollout.tp", [1, 2, 4, 8], default=2),
        "vllm_gpu_memory_utilization": _sets("rollout.share", [0.6, 0.7, 0.8, 0.9, 0.95], default=0.9),
        "vllm_cuda_graphs": _sets("rollout.graphs", [True, False], words={"true": "False", "false": "True"}),
        "vllm_enable_sleep": _sets("rollout.sleeps", [False, True]),
        "vllm_sync_backend": _knob(["nccl", "gloo"]),
        "rollout_micro_batch_size": _sets("rollout.log_prob_rows", [1, 2, 4, 8, 16], default=1),
        "adam_offload": _sets("offload", ["none", "optimizer"], words={"none": "False", "optimizer": "True"}),
        "packing_samples": _knob([True, False]),
    },
    held_out=True,
)  # fmt: skip
# Judged on their own: what their plans cost is simulated, and was not drawn knob by knob.
ROLLOUTS = (_COLOCATED, _LONG, _SEPARATED)

LANDSCAPES: Mapping[str, Landscape] = {
    one.name: one for one in (_FSDP, _PLAIN, _NULLS, _WRONG, _TENSOR, _EXPERTS, _LARGE, _SECONDS, _BUBBLE, *ROLLOUTS)
}
HELD_OUT: tuple[str, ...] = tuple(name for name, one in LANDSCAPES.items() if one.held_out)
# The same landscape without and with knobs that do nothing, and how many.
IDLE: tuple[str, str, int] = ("plain", "plain+10 idle", 10)
