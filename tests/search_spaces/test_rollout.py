"""Reinforcement learning: the engine's memory and time beside the training's. Figures by hand from the shapes."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.columns import columns_of, rows
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.constants import DEFAULTS, UNCALIBRATED
from meshtune.search_spaces.physics.estimate import estimate, estimate_phases, log_peak, log_step
from meshtune.search_spaces.physics.framework_profiles import FSDP, MEGATRON_CORE, FrameworkProfile
from meshtune.search_spaces.physics.memory import MemoryPart, Phase, offloaded_bytes, parts_by_phase, phases
from meshtune.search_spaces.physics.recipes import with_recipe
from meshtune.search_spaces.physics.rollout import Engine, engine_of
from meshtune.search_spaces.physics.timing import TimePart
from meshtune.search_spaces.physics.training import Training, usable_bytes
from meshtune.search_spaces.plan import Plan, Recompute
from meshtune.search_spaces.presets import cluster_presets, described, model_presets
from meshtune.search_spaces.recipe import Companion, Recipe, Role, Rollout

GIB = 2**30
NODE = TypeAdapter(ClusterSpec).validate_python(described(cluster_presets()["dgx-h100"]))
ROLLOUT = Rollout(prompt_tokens=1024, answer_tokens=3072, mean_answer_tokens=1000, tp=2, share=0.5)
PLAN = Plan(dp=8, zero_stage=3, micro_batch_size=1, grad_accum_steps=32, recompute=Recompute.FULL)


def model(name: str = "llama3-8b", tokens: int = 4096) -> ModelSpec:
    return replace(TypeAdapter(ModelSpec).validate_python(described(model_presets()[name]) | {"seq_len": tokens}))


def training(framework: FrameworkProfile = FSDP, own: ModelSpec | None = None, **rollout: Any) -> Training:
    recipe = Recipe(rollout=replace(ROLLOUT, **rollout))
    return Training(own or model(), NODE, with_recipe(framework, recipe), recipe)


def engine(own: ModelSpec | None = None, **rollout: Any) -> Engine:
    subject = training(own=own, **rollout)
    assert subject.recipe.rollout is not None
    return engine_of(subject, subject.recipe.rollout)


def seconds(plan: Plan = PLAN, beside: tuple[Companion, ...] = (), **rollout: Any) -> dict[TimePart, float]:
    subject = training(**rollout)
    subject = replace(subject, recipe=replace(subject.recipe, beside=beside))
    return {part: float(one[0]) for part, one in estimate(subject, columns_of([plan])).time.parts.items()}


def peaks(framework: FrameworkProfile = FSDP, plan: Plan = PLAN, **rollout: Any) -> dict[Phase, float]:
    found = phases(training(framework, **rollout), columns_of([plan]), DEFAULTS)
    return {phase: float(size[0]) for phase, size in found.items()}


def chances(plan: Plan = PLAN, **rollout: Any) -> dict[Phase, float]:
    subject = training(**rollout)
    found = estimate_phases(subject, columns_of([plan]), UNCALIBRATED)
    return {phase: float(one.fits(usable_bytes(subject))[0]) for phase, one in found.items()}


def test_keys_and_values_are_cut_by_heads_and_a_narrow_vector_is_not() -> None:
    # 8 heads of 128, keys and values, 32 layers, 2 bytes.
    assert engine(tp=1).row(1) == 2 * 8 * 128 * 32 * 2
    assert engine(tp=4).row(10) == 10 * 2 * 2 * 128 * 32 * 2
    assert engine(tp=8).row(1) == engine(tp=16).row(1)
    assert engine(tp=1, kv_bits=8).row(1) == engine(tp=2).row(1)
    latent = model("deepseek-v3")
    assert engine(latent, tp=8).row(1) == engine(latent, tp=1).row(1) == (512 + 64) * 61 * 2


def test_narrow_projections_and_routers_are_whole_on_each_device() -> None:
    # DeepSeek-V3: 7168 x (1536 + 576) in 61 layers, routers of 256 experts in 58.
    whole = 7168 * (61 * (1536 + 576) + 58 * 256)
    one, many = (engine(model("deepseek-v3"), tp=tp).weights / 2 for tp in (1, 32))
    assert many == pytest.approx((one - whole) / 32 + whole)


def test_a_layer_with_a_window_keeps_its_tokens_alone() -> None:
    windowed = replace(model(), window=512, full_attention_every=4)
    per_layer = 2 * 4 * 128 * 2
    assert engine(windowed, tp=2).row(4096) == per_layer * (8 * 4096 + 24 * 512)


def test_an_engine_holds_weights_a_pass_and_keys_and_values_in_its_share() -> None:
    own = engine(tp=1)
    assert own.weights == pytest.approx(8.03e9 * 2, rel=1e-3)
    assert own.share == 0.5 * NODE.device.memory_bytes
    left = own.share - own.weights - own.passes
    most = engine(tp=1, max_rows=10**4, pass_tokens=1).flight(np.array([1e6]), 1.0)[1]
    assert most == pytest.approx((left + own.passes - 10**4 * 128256 * 6) / (2024 * 131072))
    # The logits of 2,000 rows are more than the values of 8,192 tokens.
    assert engine(tp=1, max_rows=2000).passes == 2000 * 128256 * 6 > own.passes


def test_an_engine_whose_share_is_too_small_does_not_fit() -> None:
    found = chances(share=0.1)
    assert found[Phase.GENERATION] < 0.1
    assert peaks(share=0.1)[Phase.GENERATION] > usable_bytes(training())
    assert chances(share=0.1, tp=8)[Phase.GENERATION] > 0.9


def test_generation_has_the_share_beside_what_the_training_leaves() -> None:
    states = 8.03e9 / 8
    found, engines = peaks(), engine()
    assert found[Phase.GENERATION] == pytest.approx(12 * states + engines.share + engines.stays, rel=0.02)
    fewer = peaks(optimizer_leaves=True)
    assert found[Phase.GENERATION] - fewer[Phase.GENERATION] == pytest.approx(8 * states, rel=1e-3)
    none = peaks(optimizer_leaves=True, weights_leave=True)
    assert fewer[Phase.GENERATION] - none[Phase.GENERATION] == pytest.approx(4 * states, rel=1e-3)
    on_host = offloaded_bytes(training(optimizer_leaves=True, weights_leave=True), columns_of([PLAN]))
    assert on_host[0] == pytest.approx(8 * 12 * states, rel=1e-3)


def test_megatron_keeps_its_gradients_buffers_unless_the_weights_leave() -> None:
    plan = Plan(tp=8, micro_batch_size=1, grad_accum_steps=32, recompute=Recompute.FULL)
    code = MEGATRON_CORE["bfloat16"]
    parts = parts_by_phase(training(code), columns_of([plan]), DEFAULTS)[Phase.GENERATION]
    assert parts[MemoryPart.GRADIENTS][0] == pytest.approx(4 * 8.03e9 / 8, rel=0.01)
    assert parts_by_phase(training(), columns_of([PLAN]), DEFAULTS)[Phase.GENERATION][MemoryPart.GRADIENTS][0] == 0


def test_an_engine_that_sleeps_leaves_its_graphs_and_one_that_does_not_all() -> None:
    asleep, awake, engines = peaks(), peaks(sleeps=False), engine()
    assert awake[Phase.STEADY] - asleep[Phase.STEADY] == pytest.approx(engines.share)
    assert asleep[Phase.STEADY] - peaks(graphs=False)[Phase.STEADY] == GIB


def test_devices_of_their_own_hold_the_engine_alone() -> None:
    apart, engines = peaks(devices=8, share=0.9), engine(share=0.9)
    assert apart[Phase.GENERATION] == engines.share + engines.stays
    assert peaks()[Phase.STEADY] - apart[Phase.STEADY] == pytest.approx(engines.stays)
    assert chances(devices=8, share=0.9)[Phase.GENERATION] > 0.8
    assert chances(share=0.9)[Phase.GENERATION] < 0.1


def test_the_phase_that_fits_least_decides() -> None:
    subject, columns = training(share=0.8), columns_of([PLAN])
    found = estimate(subject, columns)
    assert found.fits[0] == pytest.approx(min(chances(share=0.8).values()))
    assert found.memory.parts[MemoryPart.ENGINE][0] == pytest.approx(engine(share=0.8).share + engine().stays)


def test_log_probabilities_have_logits_and_no_gradients() -> None:
    one, many = peaks(log_prob_rows=1), peaks(log_prob_rows=16)
    rows_of = 16 * (2024 / 4096) + 4 * (1 - 2024 / 4096)
    each = 4096 * 128256 * 6
    assert many[Phase.LOG_PROBS] - one[Phase.LOG_PROBS] > (rows_of - 1) * each
    assert peaks(log_prob_tokens=4096)[Phase.LOG_PROBS] == pytest.approx(one[Phase.LOG_PROBS])
    assert many[Phase.STEADY] == one[Phase.STEADY]


def test_rows_that_nobody_pads_fill_less_than_the_longest_ones() -> None:
    plan = replace(PLAN, micro_batch_size=4, grad_accum_steps=8)
    short, full = peaks(plan=plan), peaks(plan=plan, mean_answer_tokens=3072)
    assert peaks()[Phase.STEADY] < short[Phase.STEADY] < full[Phase.STEADY]
    assert peaks()[Phase.STEADY] == peaks(mean_answer_tokens=3072)[Phase.STEADY]
    packed = peaks(plan=plan, update_tokens=8192, mean_answer_tokens=3072)
    assert packed[Phase.STEADY] == peaks(plan=replace(PLAN, micro_batch_size=2), mean_answer_tokens=3072)[Phase.STEADY]
    # No pass holds more than there are rows.
    assert peaks(update_tokens=10**7)[Phase.STEADY] < 32 * peaks()[Phase.STEADY]


def test_a_packed_pass_of_log_probabilities_has_rows_of_all_updates() -> None:
    """128 rows of a device, 1,124 tokens in the mean, of which the root strays by 2,972."""
    subject = training(mean_answer_tokens=100, log_prob_tokens=10**6, updates=4)
    found = parts_by_phase(subject, columns_of([PLAN]), DEFAULTS)[Phase.LOG_PROBS][MemoryPart.LOGITS][0]
    factor = DEFAULTS.activation_factor
    assert found == pytest.approx((128 * 1124 + 128**0.5 * 2972) * 128256 * 6 * factor)
    few = {"log_prob_rows": 10**3, "mean_answer_tokens": 100, "updates": 4}
    assert peaks(**few)[Phase.LOG_PROBS] == peaks(**few | {"log_prob_rows": 128})[Phase.LOG_PROBS]


def test_packed_passes_compute_the_tokens_that_there_are() -> None:
    """32 rows of 2,024 tokens in passes of 60,000: two of half of them, not two full ones."""
    one, two = (seconds(update_tokens=tokens)[TimePart.COMPUTE] for tokens in (70000, 60000))
    assert two == pytest.approx(one, rel=0.02)


def test_a_model_without_an_engine_has_keys_and_values_beside_its_weights() -> None:
    own = {"share": 0.0, "graphs": False, "tp": 1, "max_rows": 4}
    held = 4 * (4096 * 131072 + 1024 * 2 * (3 * 4096 + 3 * 14336))
    for stage, whole in ((0, 0.0), (3, 2 * 8.03e9)):  # shards are gathered
        parts = parts_by_phase(training(**own), columns_of([replace(PLAN, zero_stage=stage)]), DEFAULTS)
        generation = parts[Phase.GENERATION]
        assert generation[MemoryPart.ENGINE][0] == pytest.approx(held + whole, rel=0.02)
        assert generation[MemoryPart.WEIGHTS][0] == parts[Phase.STEADY][MemoryPart.WEIGHTS][0]
        assert parts[Phase.STEADY][MemoryPart.ENGINE][0] == 0
    replicated = replace(PLAN, zero_stage=0)
    assert seconds(replicated, **own)[TimePart.REFIT] == 0 < seconds(replicated)[TimePart.REFIT]
    assert seconds(**own)[TimePart.REFIT] > 0


def test_more_never_makes_it_worse() -> None:
    shares = [engine(share=share).flight(np.array([2048.0]), 8.0)[1] for share in (1e-3, 0.1, 0.2, 0.25, 0.4, 0.99, 1)]
    assert shares == sorted(shares)
    devices = [seconds(devices=count)[TimePart.GENERATION] for count in (2, 8, 64, 512)]
    assert devices == sorted(devices, reverse=True)
    for leaves in ("weights_leave", "optimizer_leaves", "sleeps"):
        less, more = peaks(**{leaves: True}), peaks(**{leaves: False})
        assert all(less[phase] <= more[phase] for phase in more)


def test_a_prompt_is_as_long_as_rows_say() -> None:
    rows = replace(training().recipe, mean_tokens=1100)
    own = replace(training(), recipe=rows)
    assert rows.rollout is not None
    assert (engine_of(own, rows.rollout).prompt, engine().prompt) == (100, 1024)


def test_decoding_reads_weights_and_the_keys_and_values_of_all_rows() -> None:
    own, bandwidth = engine(tp=1), 0.82 * 3.35e12
    found = seconds(tp=1)[TimePart.GENERATION]
    # 32 rows of an engine, of which the longest has 3,072 steps; 10.4 in the mean; the embedding is not read.
    rows_at_once = 32 * 1000 / 3072
    read = (8.03e9 - 128256 * 4096) * 2 + rows_at_once * own.row(1024 + 500)
    assert found == pytest.approx(3072 * (read / bandwidth + 2e-3), rel=0.05)


def test_the_longest_answer_decides_the_tail_and_the_mean_one_the_volume() -> None:
    longer = seconds(answer_tokens=6144)[TimePart.GENERATION]
    assert 1.8 < longer / seconds()[TimePart.GENERATION] < 2.0
    # In waves of 16 rows twice as many steps, and the tail once.
    waves = seconds(max_rows=16)[TimePart.GENERATION]
    assert 1 < waves / seconds(max_rows=64)[TimePart.GENERATION] < 2
    # Rows that find no room wait.
    many = replace(PLAN, grad_accum_steps=128)
    assert engine(share=0.2).flight(np.array([1024.0]), 8.0)[1] < 64
    assert seconds(many, share=0.2)[TimePart.GENERATION] > 1.2 * seconds(many)[TimePart.GENERATION]
    assert seconds(graphs=False)[TimePart.GENERATION] > seconds()[TimePart.GENERATION]


def test_tensor_parallel_engines_decode_faster_and_each_has_more_rows() -> None:
    one, eight = (engine(tp=tp).flight(np.array([256.0]), 8.0) for tp in (1, 8))
    assert (one[0][0], eight[0][0]) == (32, 256)
    few = replace(PLAN, grad_accum_steps=1)
    assert seconds(few, tp=8)[TimePart.GENERATION] < seconds(few, tp=1)[TimePart.GENERATION]


def test_a_step_has_all_updates_and_a_forward_pass_of_each_model() -> None:
    one, four = seconds(), seconds(updates=4)
    assert four[TimePart.COMPUTE] == pytest.approx(4 * one[TimePart.COMPUTE])
    assert four[TimePart.LOG_PROBS] == pytest.approx(4 * one[TimePart.LOG_PROBS])
    passes = sum(one[part] for part in (TimePart.COMPUTE, TimePart.DP))
    assert one[TimePart.LOG_PROBS] == pytest.approx(passes / 3)
    reference = seconds(beside=(Companion(role=Role.REFERENCE),))
    assert reference[TimePart.LOG_PROBS] == pytest.approx(2 * one[TimePart.LOG_PROBS])
    assert reference[TimePart.COMPUTE] == one[TimePart.COMPUTE]


def test_engines_that_run_ahead_hide_the_shorter_of_generation_and_training() -> None:
    turns, ahead = seconds(devices=8), seconds(devices=8, behind=1)
    training_s = sum(turns.values()) - turns[TimePart.GENERATION] - turns[TimePart.REFIT]
    assert sum(ahead.values()) < sum(turns.values())
    assert sum(ahead.values()) >= training_s + ahead[TimePart.REFIT]
    many = seconds(devices=64, behind=1, answer_tokens=1000, updates=8)
    assert many[TimePart.GENERATION] == 0


def test_what_leaves_the_device_crosses_the_host_s_link_twice() -> None:
    moved = 12 * 8.03e9 / 8
    longer = seconds(weights_leave=True, optimizer_leaves=True)[TimePart.REFIT] - seconds()[TimePart.REFIT]
    assert longer == pytest.approx(2 * moved / 25e9, rel=1e-3)


def test_tokens_per_second_are_those_of_the_whole_step() -> None:
    found = estimate(training(updates=2), columns_of([PLAN]))
    assert found.tokens_per_s[0] == pytest.approx(2 * 256 * 2024 / found.time.step_s[0])


def test_a_rollout_s_numbers_must_make_sense() -> None:
    with pytest.raises(InvalidValue, match="mean_answer_tokens"):
        Rollout(prompt_tokens=1, answer_tokens=1, mean_answer_tokens=2)


def test_many_plans_are_judged_together() -> None:
    sizes = [replace(PLAN, micro_batch_size=2**power, grad_accum_steps=2 ** (5 - power)) for power in range(6)]
    columns = {name: np.tile(column, 2000) for name, column in columns_of(sizes).items()}
    subject, started = training(), perf_counter()
    peak, step = log_peak(subject, columns, DEFAULTS), log_step(subject, columns, DEFAULTS)
    assert perf_counter() - started < 2
    alone = rows(columns, slice(7, 8))
    assert (peak[7], step[7]) == (log_peak(subject, alone, DEFAULTS)[0], log_step(subject, alone, DEFAULTS)[0])
