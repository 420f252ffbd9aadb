"""Calibration campaigns on a simulated cluster, through the real service, store and runner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import toy

from meshtune.runners.schedulers.ground_truth import truth
from meshtune.search_spaces.columns import columns_of, rows
from meshtune.search_spaces.physics.constants import CONSTANTS, DEFAULTS, PRIOR_LOG_SD, UNCALIBRATED, Calibration
from meshtune.search_spaces.physics.estimate import estimate
from meshtune.tuner.access.tokens import Rights, Scope
from meshtune.tuner.campaign.calibration import OTHER_RELEASE_SHARE, best_of, framework_version, key_of
from meshtune.tuner.campaign.campaign import Campaign, CampaignState, Home
from meshtune.tuner.campaign.spec import CampaignSpec, space_of
from meshtune.tuner.prediction.predict import basis_of, learn, training_of
from meshtune.tuner.prediction.quote import make_quote
from meshtune.tuner.search.base import Observation, Task
from meshtune.tuner.search.calibration import MAX_SLOWER, CalibrationSearch, Design, tells_of
from meshtune.tuner.service.calibrations import known_basis, known_calibration
from meshtune.tuner.service.driving.loop import Driver, drive_one
from meshtune.tuner.service.service import Service
from meshtune.tuner.specs.calibrating import calibration_setup
from meshtune.tuner.specs.document import InvalidSpec
from meshtune.tuner.specs.read import read_spec
from meshtune.tuner.store import Store

pytestmark = pytest.mark.slow

BIG = toy.SPEC | {"cluster": toy.CLUSTER | {"nodes": 64}, "global_batch_size": 2048}

UNLINKED = {key: value for key, value in toy.CLUSTER.items() if key != "node_link"}
HUGE = {"preset": "gpt-micro", "hidden": 65536, "ffn": 262144, "heads": 64}


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Iterator[Service]:
    """A service with one calibration, of hidden cluster 1."""
    with Store.open("sqlite://") as store:
        service = Service(store, Home(tmp_path_factory.mktemp("lab")))
        calibrate(service)
        yield service
        service.close()


def spec_of(**over: Any) -> CampaignSpec:
    return read_spec({**BIG, **over}, None)[0]


def drive(service: Service, spec: CampaignSpec) -> Campaign:
    campaign = service.add(spec, space_of(spec).counts, drives=True)
    drive_one(Driver(service), service, campaign.id, lambda: None)
    return service.campaign(campaign.id)


def calibrate(service: Service, trials: int = 4, **over: Any) -> Campaign:
    return drive(service, calibration_setup(spec_of(**over), trials=trials).spec)


# The spec of a calibration


def test_it_is_one_node_with_the_batch_of_its_devices():
    setup = calibration_setup(spec_of(baseline={"tp": 4, "pp": 8}, confirm=3, space={"tp": [4], "pp": [1, 8]}))
    spec = setup.spec
    assert (spec.cluster.nodes, spec.cluster.devices, spec.global_batch_size) == (1, 4, 32)
    assert (spec.model, spec.workload, spec.space.tp) == (spec_of().model, spec_of().workload, (1, 4))
    assert (spec.search.kind, spec.budget.trials, spec.confirm, spec.baseline) == ("calibration", 8, 0, None)
    assert setup.notes == ("1 x 4 devices of hpc", "global batch 32 in place of 2048")


def test_steps_that_generate_their_rows_are_not_calibrated():
    with pytest.raises(InvalidSpec, match=r"training\.rollout: cannot be calibrated"):
        calibration_setup(spec_of(training={"rollout": {"prompt_tokens": 512, "answer_tokens": 512}}))


def test_degrees_of_the_whole_cluster_that_the_part_has_not_may_be_the_usual_ones():
    large = replace(spec_of(), space=replace(spec_of().space, zero_group=(16,), etp=(8,), ep=(16,)))
    small = calibration_setup(large).spec.space
    assert (small.zero_group, small.etp, small.ep) == ((0, 16), (0, 8), (1, 16))


def test_it_may_be_some_devices_or_some_nodes():
    assert calibration_setup(spec_of(), devices=2).spec.cluster.devices == 2
    assert calibration_setup(spec_of(), nodes=3).spec.cluster.devices == 12


def test_a_model_that_does_not_fit_is_cut_to_fewer_layers_of_the_same_widths():
    large = {"preset": "gpt-micro", "layers": 96, "hidden": 8192, "heads": 64, "ffn": 32768}
    setup = calibration_setup(spec_of(model=large), trials=4)
    cut = setup.spec.model
    assert cut.layers in (12, 8, 4)
    assert replace(cut, layers=96) == spec_of(model=large).model
    assert any(f"{cut.layers} of gpt-micro's 96 layers" in note for note in setup.notes)


@pytest.mark.parametrize(
    ("sizes", "over", "message"),
    [
        ({"nodes": 65}, {}, "nodes: must be 1 to 64, as the cluster has, not 65"),
        ({"devices": 5}, {}, "devices: must be 1 to 4, as a node has, not 5"),
        ({"devices": 1, "nodes": 1}, {}, "nodes: goes not with devices"),
        ({"trials": 2}, {}, "trials: must be at least 3, not 2"),
        (
            {},
            {"cluster": {k: v for k, v in toy.CLUSTER.items() if k != "node_link"}},
            "cluster.node_link: is not known",
        ),
        (
            {},
            {"model": {"preset": "gpt-micro", "hidden": 65536, "ffn": 262144, "heads": 64}},
            "0 of [0-9]+ plans likely",
        ),
    ],
)
def test_what_cannot_be_calibrated_is_refused(sizes, over, message):
    with pytest.raises(InvalidSpec, match=message):
        calibration_setup(spec_of(**over), **sizes)


# The design


def log_volume(spec: CampaignSpec, plans: list[Any]) -> float:
    """Of the constants' covariance, once these plans are measured."""
    design, tells = Design(UNCALIBRATED.covariance), tells_of(training_of(spec), columns_of(plans), UNCALIBRATED)
    for at in range(len(plans)):
        design.take(tells, at)
    return float(np.linalg.slogdet(design.covariance)[1])


def test_the_chosen_plans_are_fast_ones_and_tell_more_than_others_drawn_at_random():
    spec = calibration_setup(spec_of()).spec
    space = space_of(spec)
    task = Task(space=space, training=training_of(spec))
    plans = CalibrationSearch().ask(task, [], 8).plans
    rng, speed = np.random.default_rng(1), estimate(task.training, space.columns).tokens_per_s
    fast = np.flatnonzero(speed * MAX_SLOWER >= np.max(speed))
    assert {space.index_of(plan) for plan in plans} <= {*fast.tolist()}
    drawn = [[space[int(row)] for row in rng.choice(fast, 8, replace=False)] for _ in range(30)]
    assert log_volume(spec, plans) < min(log_volume(spec, each) for each in drawn)


def test_plans_under_way_count_as_measured():
    spec = calibration_setup(spec_of()).spec
    task = Task(space=space_of(spec), training=training_of(spec))
    first, second = CalibrationSearch().ask(task, [], 2).plans
    assert CalibrationSearch().ask(task, [Observation(plan=first)], 1).plans == [second]


# The campaign


def test_a_calibration_on_one_node_predicts_64_nodes_better(service):
    """Hidden cluster 3 is 24 % slower than the physics expects there."""
    over = {"runner": {"kind": "simulated", "seed": 3}}
    ended = calibrate(service, trials=8, **over)
    assert ended.state is CampaignState.COMPLETED
    spec = spec_of(**over)
    stored = known_calibration(service.store, spec)
    assert stored is not None
    assert (stored.campaign, stored.trials, stored.devices) == (ended.id, 8, 4)
    assert stored.version == "hidden cluster 3"
    training, space = training_of(spec), space_of(spec)
    some = slice(None, None, 16)
    real = np.array([truth(training, plan, 3).step_s for plan in list(space)[some]])

    def off(known: Calibration) -> float:
        return float(np.median(np.abs(estimate(training, rows(space.columns, some), known).time.step_s / real - 1)))

    assert off(UNCALIBRATED) > 0.1
    assert off(stored.holding_for(training, stored.version)) < off(UNCALIBRATED) / 2


def test_what_one_node_cannot_see_keeps_the_doubt_of_the_prior(lab):
    stored = known_calibration(lab.store, spec_of())
    assert stored is not None
    for name in ("network_efficiency", "congestion"):
        assert stored.calibration.log_sd(name) == pytest.approx(PRIOR_LOG_SD[name])
    assert stored.calibration.log_sd("matmul_efficiency") < PRIOR_LOG_SD["matmul_efficiency"]


def test_too_few_measured_trials_are_refused_with_the_numbers(service):
    ended = calibrate(service, trial={"time_limit_s": 61})
    assert ended.state is CampaignState.FAILED
    assert ended.reason.startswith("no calibration: 0 of 4 trials measured, 4 timed_out; it takes 3")
    assert service.store.calibrations.newest_first() == []


def test_a_killed_calibration_goes_on_and_is_stored_once(service, tmp_path):
    setup = calibration_setup(spec_of(parallel=1), trials=4)
    id = service.add(setup.spec, setup.space.counts, drives=True).id
    while len(service.trials(id)) < 3:
        service.tick(id)
    other = Service(service.store, Home(tmp_path / "home"))
    service.close()
    try:
        drive_one(Driver(other), other, id, lambda: None)
        assert other.campaign(id).state is CampaignState.COMPLETED
        assert len(other.trials(id)) == 4
        assert [one.campaign for one in other.store.calibrations.newest_first()] == [id]
    finally:
        other.close()


# Its use


def test_a_later_search_starts_from_it_and_says_so(lab):
    (calibrated,) = lab.store.calibrations.newest_first()
    over = {"budget": {"trials": 1}, "cluster": toy.CLUSTER | {"nodes": 8}, "confirm": 0}
    later = drive(lab, spec_of(search="physics", **over))
    assert [(one.campaign_id, one.calibration, one.trials) for one in later.lessons] == [(calibrated.campaign, True, 4)]
    assert str(later.lessons[0]) == f"{calibrated.campaign} (calibration, 4 trials, weight 1)"
    assert drive(lab, spec_of(search="physics", warm_start=False, **over)).lessons == ()
    assert not any(one.calibration for one in drive(lab, spec_of(search="random", **over)).lessons)


def test_the_search_gets_the_measured_constants(lab):
    spec = spec_of(search="physics", budget={"trials": 2})
    id = lab.add(spec, space_of(spec).counts, drives=True).id
    lab.tick(id)
    session = lab.sessions.get(id)
    assert session is not None
    assert session.task.calibration.times == 4
    assert session.task.calibration.constants != DEFAULTS


def test_another_release_is_believed_in_part(lab):
    spec = spec_of()
    stored = known_calibration(lab.store, spec)
    assert stored is not None
    same = stored.holding_for(training_of(spec), "hidden cluster 1")
    other = stored.holding_for(training_of(spec), "hidden cluster 2")
    believed = [stored.believed(version) for version in ("", "hidden cluster 1", "x 2")]
    assert believed == [1, 1, OTHER_RELEASE_SHARE]
    assert other.constants == same.constants
    assert np.all(np.diag(other.covariance) >= np.diag(same.covariance))
    assert np.all(np.diag(other.covariance) <= np.diag(UNCALIBRATED.covariance) * (1 + 1e-9))
    newer = replace(stored, campaign="newer", version="hidden cluster 2")
    assert best_of([newer, stored], "hidden cluster 1") is stored
    assert best_of([newer, stored], "hidden cluster 3") is newer


def test_a_device_that_is_described_otherwise_is_as_fast_as_before(lab):
    spec = spec_of()
    twice = toy.DEVICE | {"peak_flops": {"float16": 2e14}, "memory_bandwidth_bytes_per_s": 2e12}
    other = spec_of(cluster=toy.CLUSTER | {"nodes": 64, "device": twice})
    space = space_of(spec)
    times = []
    for one in (spec, other):
        stored = known_calibration(lab.store, one)
        assert stored is not None
        known = stored.holding_for(training_of(one), "")
        times.append(estimate(training_of(one), space.columns, known).time.step_s)
    assert times[0] == pytest.approx(times[1], rel=1e-6)


def test_it_holds_for_its_device_and_training_code_alone_and_for_who_may_read_it(lab):
    assert known_calibration(lab.store, spec_of()) is not None
    nanotron = spec_of(workload={"kind": "simulated", "framework": "nanotron"}, space={}, cluster=_bfloat16())
    assert known_calibration(lab.store, nanotron) is None
    renamed = toy.CLUSTER | {"device": toy.DEVICE | {"name": "other"}}
    assert known_calibration(lab.store, spec_of(cluster=renamed)) is None
    stranger = Rights(name="ann", scopes=frozenset({Scope.READ}))
    assert known_calibration(lab.store, spec_of(), reader=stranger) is None


def _bfloat16() -> dict[str, Any]:
    return toy.CLUSTER | {"device": toy.DEVICE | {"peak_flops": {"bfloat16": 1e14}}}


def test_a_quote_says_how_far_it_may_be_off_and_what_it_rests_on(lab):
    spec = spec_of()
    before = make_quote(spec, space_of(spec), basis_of(None, training_of(spec))).basis
    speed = make_quote(spec, space_of(spec), before).best[0].speed
    assert before.error_factor == pytest.approx(speed.step_s.high / speed.step_s.value)
    assert before.words == (
        "uncalibrated: nothing was measured of toy and Megatron-DeepSpeed, fp16: times may be off by a factor of "
        f"{before.error_factor:.2f} (run `meshtune calibrate`)"
    )
    (calibrated,) = lab.store.calibrations.newest_first()
    after = make_quote(spec, space_of(spec), known_basis(lab.store, spec)).basis
    assert after.anchor is not None
    assert (after.anchor.campaign, after.anchor.trials) == (calibrated.campaign, 4)
    assert after.error_factor < before.error_factor
    for word in (
        "calibrated by 4 step times",
        calibrated.campaign,
        "4 trials of gpt-micro on 4 devices",
        "95 % of times",
    ):
        assert word in after.words
    assert known_basis(lab.store, spec, trials=lab.trials(calibrated.campaign)).anchor is None


def test_predictions_of_a_campaign_under_another_release_say_how_much_of_the_calibration_they_believe(lab, tmp_path):
    (calibrated,) = lab.store.calibrations.newest_first()
    runner = {"kind": "simulated", "seed": 2}
    later = drive(lab, spec_of(runner=runner, budget={"trials": 1}, cluster=toy.CLUSTER | {"nodes": 8}, confirm=0))
    trials = lab.trials(later.id)
    known = known_basis(lab.store, later.spec, trials=trials)
    assert ", hidden cluster 1; another release, so 50% of it is believed)" in known.words
    log_sd = calibrated.calibration.log_sd("matmul_efficiency")
    assert log_sd < known.calibration.log_sd("matmul_efficiency") < PRIOR_LOG_SD["matmul_efficiency"]
    assert "another release" in learn(later.label, later.spec, trials, known).words
    assert "another release" not in known_basis(lab.store, later.spec).words


def test_no_calibration_is_used_where_speeds_are_unknown(lab):
    device = {k: v for k, v in toy.DEVICE.items() if k != "memory_bandwidth_bytes_per_s"}
    assert known_calibration(lab.store, spec_of(cluster=toy.CLUSTER | {"device": device})) is None


def test_the_framework_is_the_outermost_library():
    assert framework_version({"torch": "2.5.1", "python": "3.12", "deepspeed": "0.15"}) == "deepspeed 0.15"
    assert framework_version({"torch": "2.5.1+cu124", "driver": "1"}) == "torch 2.5.1+cu124"
    assert framework_version({"python": "3.12"}) == ""
    assert set(PRIOR_LOG_SD) == set(CONSTANTS)
    assert key_of(spec_of()).subject == "toy and Megatron-DeepSpeed, fp16 (simulated)"
    assert basis_of(None, training_of(spec_of())).anchor is None
