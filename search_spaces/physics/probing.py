"""The rates that only whole steps tell: what a probe timed of a few real layers, explained by the physics.

Products, attention and the host's work were timed by themselves; what is left of a step is the layers' other work at
either micro-batch, the loss's, and the step's overhead. Least squares of the times' logarithms over the logarithms of
these, with a weak prior, so that what no run tells stays what it was taken for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from meshtune.search_spaces.cluster import ClusterSpec, DeviceSpec, LayerRate, LayerRun, MeasuredRates
from meshtune.search_spaces.columns import FloatColumn, columns_of
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.constants import DEFAULTS
from meshtune.search_spaces.physics.estimate import log_step
from meshtune.search_spaces.physics.framework_profiles import FrameworkProfile, compiled
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import Plan

# What a step takes beside its work, before any was timed.
USUAL_OVERHEAD_S = 2e-3
# The times' noise over the prior's doubt, in logarithms: times are good to 2 %, the prior to a factor of e.
NOISE = 0.02
ROUNDS, STEP = 12, 1e-3


def explained(
    device: DeviceSpec, model: ModelSpec, framework: FrameworkProfile, rates: MeasuredRates, runs: Sequence[LayerRun]
) -> MeasuredRates:
    """The rates with those that the runs tell. framework: the trainer's, uncompiled, in the number format of both."""
    if not runs:
        return rates
    places = sorted({(run.compiled, run.micro_batch_size * model.seq_len) for run in runs})

    def rates_at(point: FloatColumn) -> MeasuredRates:
        *layers, loss, overhead = np.exp(point).tolist()
        known = [
            (kind, LayerRate(tokens=tokens, bytes_per_s=rate))
            for (kind, tokens), rate in zip(places, layers, strict=True)
        ]
        return replace(
            rates,
            layer_bytes_per_s=tuple(rate for kind, rate in known if not kind),
            compiled_layer_bytes_per_s=tuple(rate for kind, rate in known if kind),
            loss_bytes_per_s=loss,
            step_overhead_s=overhead,
        )

    def logs_at(point: FloatColumn) -> FloatColumn:
        known = replace(device, measured={framework.dtype: rates_at(point)})
        cluster = ClusterSpec(name="probed", nodes=1, devices_per_node=1, device=known)
        steps = []
        for run in runs:
            code = compiled(framework) if run.compiled else framework
            training = Training(replace(model, layers=run.layers), cluster, code)
            steps.append(log_step(training, columns_of([Plan(micro_batch_size=run.micro_batch_size)]), DEFAULTS))
        return np.concatenate(steps)

    assert device.memory_bandwidth_bytes_per_s is not None
    start = np.log([device.memory_bandwidth_bytes_per_s] * (len(places) + 1) + [USUAL_OVERHEAD_S])
    times, point = np.log([run.step_s for run in runs]), start
    for _ in range(ROUNDS):
        now, unit = logs_at(point), STEP * np.eye(len(point))
        slopes = np.stack([(logs_at(point + each) - now) / STEP for each in unit], axis=1)
        system = np.concatenate([slopes, NOISE * np.eye(len(point))])
        off = np.concatenate([times - now, NOISE * (start - point)])
        # A long step of a bad first guess would leave where the slopes hold.
        point = point + np.clip(np.linalg.lstsq(system, off, rcond=None)[0], -1.0, 1.0)
    return rates_at(point)
