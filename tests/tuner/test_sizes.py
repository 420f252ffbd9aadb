"""Jobs of different sizes in one campaign: how they compare, what they cost, how it scales, and what they answer."""

from __future__ import annotations

from dataclasses import replace
from math import log
from typing import Any

import pytest

from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.decide import device_seconds, incumbent_step_time_s
from meshtune.tuner.campaign.second_runs import cells_of
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.trial import Origin, Trial
from meshtune.tuner.results.environment import catalog_variables, knob_environment
from meshtune.tuner.results.known_best import CampaignRecords, LaunchQuestion, best_measured
from meshtune.tuner.results.known_best_projection import best_projected
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.results.recommendation import front_of, recommend
from meshtune.tuner.results.sizes import node_counts_of, on_nodes, scaling_curve
from meshtune.tuner.specs.document import parse_yaml
from meshtune.tuner.specs.read import read_spec

LINK = "{latency_s: 1.0e-6, bandwidth_bytes_per_s: 1.0e+10}"
SPEC = f"""
model: gpt-micro
cluster:
  preset: local-cpu
  nodes: 4
  devices_per_node: 2
  node_link: {LINK}
  network_link: {LINK}
  device: {{peak_flops: {{float32: 1.0e+12}}, memory_bandwidth_bytes_per_s: 1.0e+11}}
global_batch_size: 8
space: {{micro_batch_size: [1], zero_stage: [0, 1], tp: [1], pp: [1]}}
workload: {{kind: simulated, framework: trainer}}
runner: simulated
knobs:
  nodes: {{values: [1, 2, 4]}}
  channels: {{values: [4, 8], env: NCCL_MIN_NCHANNELS, when: nodes > 1}}
"""
TOKENS = 8 * 256


def spec_of(more: str = "") -> CampaignSpec:
    return read_spec(parse_yaml(SPEC + more), None)[0]


def plan(nodes: int, zero_stage: int = 0, channels: int = 4) -> Plan:
    inside = {} if nodes == 1 else {"channels": channels}
    return Plan(dp=2 * nodes, grad_accum_steps=4 // nodes, zero_stage=zero_stage, knobs={"nodes": nodes, **inside})


@pytest.fixture
def trials(make: Any) -> Any:
    """Of plans with their seconds, the first one the baseline's."""

    def build(*entries: tuple[Plan, float], baseline: bool = True) -> list[Trial]:
        return [
            make.trial(
                number,
                make.measurement(step_s, devices=each.world_size, peak_held_bytes=(1000,)),
                plan=each,
                origin=Origin.BASELINE if baseline and number == 0 else Origin.SEARCH,
                started_at=0.0,
                finished_at=10.0,
            )
            for number, (each, step_s) in enumerate(entries)
        ]

    return build


# 4 nodes do 1.6 times what 2 do, and 2 nodes 1.5 times what 1 does.
CURVE = ((plan(2), 1.0), (plan(1), 1.5), (plan(4), 1 / 1.6), (plan(4, channels=8), 1 / 1.5))


@pytest.mark.parametrize(
    ("objective", "best", "gain"),
    [("tokens_per_s_per_device", 1, 2 / 1.5 - 1), ("cost", 1, 2 / 1.5 - 1), ("step_time", 2, 0.6)],
)
def test_sizes_compare_by_the_device_or_by_the_time_to_train(
    make: Any, trials: Any, objective: str, best: int, gain: float
) -> None:
    campaign = make.campaign(spec_of(f"baseline: {{tp: 1, nodes: 2}}\nobjective: {objective}\n"))
    found = recommend(campaign, make.thrice(trials(*CURVE)))
    assert found.choice is not None
    assert found.choice.trial.number == best
    assert found.choice.gain is not None
    assert found.choice.gain.value == pytest.approx(gain)
    assert front_of(rank(campaign, trials(*CURVE)))[0].trial.number == best


def test_second_runs_of_different_sizes_compare_as_the_objective_does(make: Any, trials: Any) -> None:
    again = [replace(trial, origin=Origin.CONFIRMATION, round=1) for trial in trials(*CURVE[:2])]
    for objective, ratio in (("cost", 1.5 / 2), ("step_time", 1.5)):
        cells = cells_of(spec_of(f"objective: {objective}\n").objective, again)
        assert cells[plan(2), 1] - cells[plan(1), 1] == pytest.approx(log(ratio))


def test_a_trial_is_given_up_when_it_is_slower_at_its_own_size(make: Any, trials: Any) -> None:
    history = trials((plan(1), 1.5), baseline=False)
    waiting = make.trial(1, plan=plan(4))
    for objective, limit in (("tokens_per_s_per_device", 1.5 / 4), ("step_time", 1.5)):
        spec = spec_of(f"objective: {objective}\n")
        campaign = make.campaign(replace(spec, trial=replace(spec.trial, racing=True)))
        tokens = 8 * spec.model.seq_len / 1024
        assert incumbent_step_time_s(campaign, history, waiting) == pytest.approx(limit * tokens, rel=0.01)


def test_device_time_is_of_the_devices_that_each_trial_had(trials: Any) -> None:
    assert device_seconds(trials((plan(1), 1.0), (plan(4), 1.0))) == 10 * (2 + 8)


def test_a_campaign_with_sizes_gives_a_scaling_curve(make: Any, trials: Any) -> None:
    campaign = make.campaign(spec_of())
    one, two, four = scaling_curve(campaign, rank(campaign, trials(*CURVE, baseline=False)))
    assert [(each.nodes, each.devices, each.trial, each.plans) for each in (one, two, four)] == [
        (1, 2, 1, 1),
        (2, 4, 0, 1),
        (4, 8, 2, 2),
    ]
    assert (one.efficiency.value, one.speedup.value) == (1, 1)
    assert (two.efficiency.value, two.speedup.value) == pytest.approx((0.75, 1.5))
    assert (four.efficiency.value, four.speedup.value) == pytest.approx((0.6, 2.4))
    assert four.efficiency.low < four.efficiency.value < four.efficiency.high
    assert (four.cost / one.cost, one.cost_unit) == (pytest.approx(1 / 0.6), "device-hours/1e9 tokens")


def test_without_a_knob_for_the_size_there_is_no_curve(make: Any, trials: Any) -> None:
    spec = on_nodes(spec_of(), 2)
    assert [knob.name for knob in spec.knobs] == ["channels"]
    assert scaling_curve(make.campaign(spec), rank(make.campaign(spec), trials(*CURVE))) == ()


def records(campaign: Campaign, trials: list[Trial]) -> CampaignRecords:
    return CampaignRecords([campaign], {campaign.id: trials}.__getitem__)


def asked(spec: CampaignSpec, nodes: int) -> LaunchQuestion:
    return LaunchQuestion(model=spec.model.name, cluster=spec.cluster.name, nodes=nodes, simulated=True)


def test_the_best_known_plan_for_some_nodes_is_that_of_the_size(make: Any, trials: Any) -> None:
    spec = spec_of("baseline: {tp: 1, nodes: 2}\n")
    assert node_counts_of(spec) == (1, 2, 4)
    known = records(make.campaign(spec), trials(*CURVE))
    found = best_measured(asked(spec, 4), known)
    assert found is not None
    assert (found.plan, found.devices, found.sources[0].nodes) == (plan(4), 8, 4)
    assert "the baseline is of another size" in found.reason
    assert best_measured(asked(spec, 3), known) is None
    two = best_measured(asked(spec, 2), known)
    assert two is not None
    assert two.plan == plan(2)


def test_a_script_reads_the_knobs_and_gets_the_variables_that_catalogs_know(make: Any, trials: Any) -> None:
    spec = spec_of()
    found = best_measured(asked(spec, 4), records(make.campaign(spec), trials((plan(4, channels=8), 1.0))))
    assert found is not None
    told = {name: value for name, value in found.environment.items() if "KNOB" in name or "NCCL" in name}
    assert told == {"MESHTUNE_KNOB_CHANNELS": "8", "MESHTUNE_KNOB_NODES": "4", "NCCL_MIN_NCHANNELS": "8"}
    assert "MESHTUNE_KNOBS" not in found.environment


def test_no_variable_that_a_loader_obeys_and_no_value_that_a_shell_reads_is_given_to_a_script() -> None:
    more = "  pre: {values: [a, b], env: LD_PRELOAD}\n  odd: {values: ['x,$(y)']}\n"
    spec = read_spec(parse_yaml(SPEC.replace("knobs:\n", "knobs:\n" + more.splitlines()[0] + "\n")), None)[0]
    given, untold = knob_environment(spec.knobs, Plan(knobs={"pre": "b", "odd": "x,$(y)"}))
    assert given == {"MESHTUNE_KNOB_PRE": "b"}
    assert untold == ["MESHTUNE_KNOB_ODD"]
    assert "LD_PRELOAD" not in catalog_variables()


def test_a_size_that_nobody_measured_is_projected_with_the_knobs_that_are_active_there(make: Any, trials: Any) -> None:
    spec = spec_of()
    found = best_projected(asked(spec, 2), records(make.campaign(spec), trials((plan(4, channels=8), 1.0))))
    assert found.plan.world_size == 4
    assert found.plan.knobs == {"channels": 8}
    assert "4 nodes, asked for 2" in found.reason
    assert "no effect of the knobs is predicted" in found.reason
    alone = best_projected(asked(spec, 1), records(make.campaign(spec), trials((plan(4, channels=8), 1.0))))
    assert alone.plan.knobs == {}
