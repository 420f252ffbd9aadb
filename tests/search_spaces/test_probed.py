"""What a probe measured of a device takes the place of the physics' own numbers, and whole steps tell the rest."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.cluster import (
    ClusterSpec,
    DeviceKind,
    DeviceSpec,
    LayerRate,
    LayerRun,
    MeasuredRates,
    ProductRate,
)
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.constants import DEFAULTS
from meshtune.search_spaces.physics.estimate import estimate_time, log_step
from meshtune.search_spaces.physics.fitting import explained
from meshtune.search_spaces.physics.framework_profiles import FSDP, TRAINER, FrameworkProfile, compiled
from meshtune.search_spaces.physics.rates import LEFT_DOUBT, Rates
from meshtune.search_spaces.physics.timing import TimePart, time_parts
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import Plan

MODEL = ModelSpec(name="any", layers=8, hidden=256, heads=4, ffn=512, vocab=1024, seq_len=128)
BFLOAT16 = TRAINER["bfloat16"]
DEVICE = DeviceSpec(
    name="any",
    kind=DeviceKind.CUDA,
    memory_bytes=2**36,
    peak_flops={"bfloat16": 1e14, "float32": 1e13},
    memory_bandwidth_bytes_per_s=1e12,
)


def product(inputs: int, outputs: int, rows: int, forward: float, backward: float) -> ProductRate:
    return ProductRate(inputs=inputs, outputs=outputs, rows=rows, forward_flops=forward, backward_flops=backward)


def layer(tokens: int, bytes_per_s: float) -> LayerRate:
    return LayerRate(tokens=tokens, bytes_per_s=bytes_per_s)


PRODUCTS = (
    product(256, 512, 100, 1e12, 2e12),
    product(256, 512, 10_000, 9e12, 8e12),
    product(1024, 1024, 100, 5e13, 5e13),
)


def probed(rates: MeasuredRates, dtype: str = "bfloat16", device: DeviceSpec = DEVICE) -> DeviceSpec:
    return replace(device, measured={dtype: rates})


def part_of(part: TimePart, device: DeviceSpec, framework: FrameworkProfile, constants=DEFAULTS, **plan) -> float:
    cluster = ClusterSpec(name="any", nodes=1, devices_per_node=1, device=device)
    return float(time_parts(Training(MODEL, cluster, framework), columns_of([Plan(**plan)]), constants)[part][0])


def rates_of(rows: float, inputs: int, outputs: int, constants=DEFAULTS, framework=BFLOAT16) -> list[float]:
    rates = Rates(probed(MeasuredRates(products=PRODUCTS)), framework, constants)
    return rates.product_per_s(np.array([float(rows)]), inputs, outputs)[:, 0].tolist()


def test_a_probed_product_has_its_own_rate_forward_and_backward():
    assert rates_of(100, 256, 512) == pytest.approx([1e12, 2e12])
    assert rates_of(10_000, 256, 512) == pytest.approx([9e12, 8e12])


def test_between_probed_rows_the_rate_goes_by_logarithms_and_by_the_shape_of_the_product():
    assert rates_of(1000, 256, 512) == pytest.approx([3e12, 4e12])
    narrow = [1 + DEFAULTS.narrow_rows * (1 / rows + 1 / 256 + 1 / 512) for rows in (100, 50)]
    assert rates_of(50, 256, 512) == pytest.approx([1e12 * narrow[0] / narrow[1], 2e12 * narrow[0] / narrow[1]])


def test_another_weight_has_the_rate_of_the_nearest_one_and_pays_for_being_narrower():
    wide, half = rates_of(100, 1024, 1024)[0], rates_of(100, 1024, 512)[0]
    assert wide == pytest.approx(5e13)
    assert 3e13 < half < wide


def test_a_constant_still_moves_what_was_probed_and_a_third_as_far():
    doubled = replace(DEFAULTS, matmul_efficiency=2 * DEFAULTS.matmul_efficiency)
    assert rates_of(100, 256, 512, doubled) == pytest.approx([1e12 * 2**LEFT_DOUBT, 2e12 * 2**LEFT_DOUBT])


def test_products_in_8_bits_have_none_of_the_rates_of_16():
    eight = replace(BFLOAT16, product_dtype="float8")
    device = replace(DEVICE, peak_flops={**DEVICE.peak_flops, "float8": 2e14})
    plain, known = (Rates(each, eight, DEFAULTS) for each in (device, probed(MeasuredRates(products=PRODUCTS))))
    known = replace(known, device=replace(device, measured=known.device.measured))
    rows = np.array([100.0])
    assert known.product_per_s(rows, 256, 512).tolist() == plain.product_per_s(rows, 256, 512).tolist()


def test_probed_rates_are_of_their_own_number_format():
    slow = probed(MeasuredRates(updated_per_s=1.0), "float32")
    assert part_of(TimePart.OPTIMIZER, slow, BFLOAT16) == part_of(TimePart.OPTIMIZER, DEVICE, BFLOAT16)
    assert part_of(TimePart.OPTIMIZER, slow, TRAINER["float32"]) > 1e3


def test_the_hosts_time_is_that_of_eager_or_compiled_layers_and_of_the_trainer_alone():
    device = probed(MeasuredRates(layer_host_s=5.0, compiled_layer_host_s=3.0))
    eager, fused = (part_of(TimePart.COMPUTE, device, code) for code in (BFLOAT16, compiled(BFLOAT16)))
    assert eager == pytest.approx(MODEL.layers * 5.0, rel=1e-3)
    assert fused == pytest.approx(MODEL.layers * 3.0, rel=1e-3)
    assert part_of(TimePart.COMPUTE, device, FSDP) == part_of(TimePart.COMPUTE, DEVICE, FSDP)


def test_compiled_layers_launch_faster_and_recompute_without_the_host():
    tiny = replace(MODEL, hidden=16, ffn=16, vocab=16, seq_len=16)
    cluster = ClusterSpec(name="any", nodes=1, devices_per_node=1, device=DEVICE)
    kinds = [Plan(), Plan(recompute="selective"), Plan(recompute="full")]
    eager, fused = (
        estimate_time(Training(tiny, cluster, code), columns_of(kinds)).parts[TimePart.COMPUTE]
        for code in (BFLOAT16, compiled(BFLOAT16))
    )
    assert np.all(fused < eager)
    assert np.all(np.diff(fused) < np.diff(eager)[0] / 10)


def test_a_cpu_launches_and_computes_in_turn():
    host = replace(DEVICE, kind=DeviceKind.CPU)
    rates = MeasuredRates(layer_host_s=1e-3)
    busy = part_of(TimePart.COMPUTE, probed(replace(rates, layer_host_s=1e-12), device=host), BFLOAT16)
    assert part_of(TimePart.COMPUTE, probed(rates, device=host), BFLOAT16) == pytest.approx(busy + MODEL.layers * 1e-3)


def test_a_probed_host_leaves_less_doubt_about_the_time():
    cluster = ClusterSpec(name="any", nodes=1, devices_per_node=1, device=DEVICE)
    known = replace(cluster, device=probed(MeasuredRates(layer_host_s=BFLOAT16.layer_launch_s * 2.5)))
    free, sure = (estimate_time(Training(MODEL, each, BFLOAT16), columns_of([Plan()])) for each in (cluster, known))
    assert free.step_s == pytest.approx(sure.step_s)
    assert sure.log_sd < free.log_sd


@pytest.mark.parametrize("kinds", [(False,), (False, True)], ids=["eager", "compiled_too"])
def test_steps_of_a_few_layers_tell_the_rates_that_were_not_measured_by_themselves(kinds):
    known = MeasuredRates(
        products=(product(256, 512, 128, 5e13, 5e13),),
        attention_flops=1e13,
        attention_backward_flops=2e13,
        accumulated_per_s=1e11,
        updated_per_s=1e10,
        layer_host_s=1e-5,
        compiled_layer_host_s=1e-6,
    )
    truth = replace(
        known,
        layer_bytes_per_s=(layer(128, 5e10), layer(4096, 1e11)),
        compiled_layer_bytes_per_s=(layer(4096, 2e11),) if True in kinds else (),
        loss_bytes_per_s=5e10,
        step_overhead_s=1e-3,
    )
    device = replace(DEVICE, kind=DeviceKind.CPU, memory_bandwidth_bytes_per_s=2e11)
    cluster = ClusterSpec(name="any", nodes=1, devices_per_node=1, device=probed(truth, device=device))
    runs = []
    for layers, size, kind in ((2, 1, False), (4, 1, False), *((n, 32, kind) for kind in kinds for n in (2, 4))):
        code = compiled(BFLOAT16) if kind else BFLOAT16
        training = Training(replace(MODEL, layers=layers), cluster, code)
        step_s = float(np.exp(log_step(training, columns_of([Plan(micro_batch_size=size)]), DEFAULTS))[0])
        runs.append(LayerRun(layers, size, kind, step_s))
    found = explained(device, MODEL, BFLOAT16, known, runs)
    for name in ("loss_bytes_per_s", "step_overhead_s"):
        assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=0.1), name
    for name in ("layer_bytes_per_s", "compiled_layer_bytes_per_s"):
        own, wanted = getattr(found, name), getattr(truth, name)
        assert [one.tokens for one in own] == [one.tokens for one in wanted], name
        assert [one.bytes_per_s for one in own] == pytest.approx([one.bytes_per_s for one in wanted], rel=0.1), name
    assert found.products == known.products


def test_without_steps_of_layers_nothing_is_made_up():
    known = MeasuredRates(layer_host_s=1e-3)
    assert explained(DEVICE, MODEL, BFLOAT16, known, []) == known


def test_rates_that_are_no_rates_are_refused_by_name():
    with pytest.raises(InvalidValue, match=r"forward_flops: must be at least 1"):
        product(1, 1, 1, 0.0, 1.0)
    with pytest.raises(InvalidValue, match=r"tokens: must be at least 1"):
        layer(0, 1.0)
    with pytest.raises(InvalidValue, match="layer_host_s: must be positive"):
        MeasuredRates(layer_host_s=sqrt(2) - 2)
