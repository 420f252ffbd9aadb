"""The inference engine that writes the rows of reinforcement learning: its memory on a device, as vLLM shares it out
(v1/worker/gpu_worker.py, determine_available_memory), and its seconds: docs/explanation/physics-rl.md."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.columns import FloatColumn
from meshtune.search_spaces.model import ModelSpec, layer_kinds, met_parameters
from meshtune.search_spaces.physics.activations import FLOAT32_BYTES
from meshtune.search_spaces.physics.layer_time import Rank
from meshtune.search_spaces.physics.training import COMMUNICATOR_BYTES, OUTSIDE_BYTES, Training, usable_bytes
from meshtune.search_spaces.recipe import Rollout

# Of hidden states, keys and values.
VALUE_BYTES = 2
# vLLM's logs: 0.2 GiB of a 1B (vllm pull 11349), 26 MiB for each of 67 sizes (pull 22897), 2.4 of a 34B (issue 7553).
GRAPHS_BYTES = {DeviceKind.CPU: 0, DeviceKind.CUDA: 2**30, DeviceKind.XPU: 2**30}
# The host's time for a layer without a graph, the built-in trainer's (profiles.toml): 8 ms for 32 layers; a step of a
# Llama 8B on an H100 was seen to take 8.4 ms, and 5.1 with a graph, the time of reading its weights. And between two
# steps in any case, for scheduling, sampling and texts: judged.
EAGER_LAYER_S, BETWEEN_STEPS_S = 2.5e-4, 2e-3


class Engine(NamedTuple):
    """On one of its devices, in bytes. passes: of the fullest pass, or the sampler's logits of all rows, in 16 bits and
    float32: tried before it starts (gpu_model_runner.py, profile_run). stays: beside the share, asleep too. short:
    where no row of full length has room, the usable memory x what it needs / its share; else 0. A model that generates
    by itself takes what it needs, of all its rows at full length."""

    training: Training
    rollout: Rollout
    share: float
    weights: float
    passes: float
    stays: float
    short: float = 0.0

    @property
    def prompt(self) -> float:
        """Tokens of one on average."""
        return max(0, self.training.recipe.mean_row(self.training.model.seq_len) - self.rollout.mean_answer_tokens)

    def row(self, tokens: float) -> float:
        """Keys and values of a row of so many tokens: of heads, which tp cuts as far as there are some, or the narrow
        vector of latent attention, which every device has whole; of a window no more than its tokens."""
        found = 0.0
        for count, kind in layer_kinds(self.training.model):
            latent = kind.latent_attention
            width = (kind.kv_width + kind.value_width) / min(self.rollout.tp, kind.kv_heads)
            width = latent.kv_lora_rank + latent.qk_rope_head_dim if latent else width
            found += count * min(tokens, kind.window or tokens) * width
        return found * self.rollout.kv_bits / 8

    def flight(self, rows: Any, devices: Any) -> tuple[FloatColumn, FloatColumn, FloatColumn]:
        """Rows of one engine, of so many of a step: all; those in flight at the most; and decoding steps, the last ones
        for the longest rows alone, unless engines run ahead. devices: of the training."""
        own, mean = self.rollout, self.rollout.mean_answer_tokens
        each = np.maximum(1.0, rows * own.tp / (own.devices or devices))
        room = max(0.0, self.share - self.weights - self.passes) / self.row(self.prompt + mean)
        most = np.clip(np.minimum(each, room), 1.0, own.max_rows)
        tail = 0 if own.behind and own.devices else own.answer_tokens - mean
        return each, most, each * mean / most + tail

    def generation_s(self, rank: Rank, rows: FloatColumn) -> Any:
        """Seconds in which the engines write so many rows: decoding, each step of which reads the weights that its rows
        meet, and their keys and values; and the prompts' passes. Each answer counts with its prompt."""
        model, rollout, rates, c = self.training.model, self.rollout, rank.rates, rank.columns
        each, _, steps = self.flight(rows, c["tp"] * c["pp"] * c["cp"] * c["dp"])
        flight, tp = each * rollout.mean_answer_tokens / steps, np.full_like(rows, rollout.tp)
        met = read = model.vocab * model.hidden + 0.0 * rows
        for count, kind in layer_kinds(model):
            block, missed = kind.feed_forward_parameters, (1 - kind.top_k / max(1, kind.experts)) ** flight
            seen = np.maximum(0.0, kind.experts * (1 - missed) - kind.top_k) * block
            met, read = met + count * met_parameters(kind), read + count * (met_parameters(kind) + seen)

        def reduced(tokens: FloatColumn) -> FloatColumn:
            """Both blocks' results of all layers. A recorded collective has its hops alone, and no start."""
            one = rank.network.all_reduce_s(tokens * model.hidden * VALUE_BYTES, tp, 1.0)
            return 2 * model.layers * np.maximum(0.0, one - rank.constants.collective_overhead_s * (tp > 1))

        context = flight * self.row(self.prompt + rollout.mean_answer_tokens / 2)
        whole = whole_weights(model)
        reading = (((read - whole) / rollout.tp + whole) * rollout.weight_bits / 8 + context) / rates.bytes_per_s
        computing = 2 * met / rollout.tp / rates.products_per_s
        launching = (not rollout.graphs) * model.layers * EAGER_LAYER_S * rank.constants.launch_factor
        step = np.maximum(np.maximum(reading, flight * computing) + reduced(flight), launching) + BETWEEN_STEPS_S
        prompts = each * self.prompt
        at_once = np.clip(prompts, 1.0, rollout.pass_tokens)
        return steps * step + prompts * (computing + reduced(at_once) / at_once)


def engine_of(training: Training, rollout: Rollout) -> Engine:
    model, device, tp = training.model, training.cluster.device, rollout.tp
    cut = (model.parameters - model.mtp_parameters - whole_weights(model)) / tp
    weights = (cut + whole_weights(model)) * rollout.weight_bits / 8
    logits = rollout.max_rows * model.vocab * (VALUE_BYTES + FLOAT32_BYTES)
    tokens = rollout.pass_tokens if rollout.share else rollout.max_rows * rollout.prompt_tokens
    passes = max(logits, float(tokens * widest_bytes(model, tp)))
    passes += COMMUNICATOR_BYTES[device.kind] * (tp > 1)
    stays = OUTSIDE_BYTES[device.kind] + GRAPHS_BYTES[device.kind] * rollout.graphs
    engine = Engine(training, rollout, rollout.share * device.memory_bytes, weights, passes, stays)
    row = engine.row(model.seq_len)
    if rollout.share == 0:
        return engine._replace(share=weights + passes + rollout.max_rows * row, stays=0.0)
    lacking = (weights + passes + row) / engine.share
    return engine._replace(short=usable_bytes(training) * lacking * (lacking > 1))


def whole_weights(model: ModelSpec) -> int:
    """Which each device of an engine has whole: the narrow projections of latent attention, and routers (vLLM,
    deepseek_v2.py: fused_qkv_a_proj, kv_a_proj_with_mqa, gate)."""
    kinds = layer_kinds(model)
    return sum(count * (kind.whole_attention_parameters + kind.hidden * kind.experts) for count, kind in kinds)


def widest_bytes(model: ModelSpec, tp: Any) -> Any:
    """Of one token in a pass without gradients: hidden states (the sum, a block's input and result), and the inner
    values of the widest block."""
    found = 0.0
    for _, kind in layer_kinds(model):
        attention = kind.query_width + kind.kv_width + kind.value_width + kind.answer_width
        block = kind.activation.matrices * (max(1, kind.top_k) * kind.ffn + kind.shared_ffn)
        inner = np.maximum(attention / tp, block / tp + 2 * kind.top_k * kind.hidden)
        found = np.maximum(found, 3 * kind.hidden + inner)
    return found * VALUE_BYTES
