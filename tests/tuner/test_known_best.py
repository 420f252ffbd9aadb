"""The best known plan over all campaigns: what was measured for just this, and what is projected from what was measured
nearby, and says so."""

from __future__ import annotations

import re
from dataclasses import replace
from math import log

import pytest
import toy

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.physics.estimate import estimate
from meshtune.search_spaces.plan import PLAN_FIELDS, Plan
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.spec import Backend, space_of
from meshtune.tuner.campaign.trial import Origin
from meshtune.tuner.prediction.predict import training_of
from meshtune.tuner.results.environment import ENVIRONMENT_NAMES
from meshtune.tuner.results.known_best import (
    CampaignRecords,
    LaunchQuestion,
    NothingKnown,
    Provenance,
    best_measured,
    environment_text,
    software_versions,
)
from meshtune.tuner.results.known_best_projection import best_projected
from meshtune.tuner.search.warm_start import OTHER_FAMILY, OTHER_RELEASE

pytestmark = pytest.mark.slow

FAST, SLOW = Plan(dp=4, micro_batch_size=2), Plan(tp=2, dp=2, micro_batch_size=4)


@pytest.fixture
def campaigns(lab, make):
    """CampaignRecords of finished campaigns, newest first, each from (steps of FAST and SLOW in seconds, changes)."""

    def build(*given):
        found, trials = [], {}
        for number, (steps, over) in enumerate(given):
            over = dict(over)
            software, again = over.pop("software", {}), over.pop("again", None)
            simulated, model = over.pop("simulated", False), over.pop("resized", {})
            spec = lab.spec(**over)
            spec = replace(spec, model=replace(spec.model, **model))
            spec = replace(spec, runner=Backend(kind="simulated")) if simulated else spec
            id = f"c{number}"
            found.append(replace(make.campaign(spec, CampaignState.COMPLETED), id=id))
            trials[id] = [
                make.trial(place, make.measurement(step, software=software), plan=plan)
                for place, (step, plan) in enumerate(zip(steps, (FAST, SLOW), strict=True))
            ]
            if again is not None:
                measured = make.measurement(again, software=software)
                trials[id].append(make.trial(2, measured, plan=FAST, origin=Origin.CONFIRMATION))
        return CampaignRecords(found, trials.__getitem__)

    return build


ASKED = LaunchQuestion(model="gpt-micro", cluster="local-cpu", nodes=1)


def test_what_was_measured_for_just_this_is_answered_as_measured(campaigns):
    found = best_measured(ASKED, campaigns(((0.5, 1.0), {"software": {"torch": "2.13.0"}})))
    assert (found.standing, found.measured, found.plan, found.p_fits) == (Provenance.MEASURED, True, FAST, None)
    assert found.tokens_per_s.value == pytest.approx(1024 / 0.5)
    assert found.tokens_per_s.low < found.tokens_per_s.value < found.tokens_per_s.high
    assert found.devices == 4
    (source,) = found.sources
    assert (source.campaign, source.trial, source.differs) == ("c0", 0, ())
    assert source.software == {"torch": "2.13.0"}
    assert "the spec names no baseline" in found.reason


@pytest.mark.parametrize(
    ("asked", "over"),
    [
        ({"nodes": 2}, {}),
        ({"model": "llama3-8b"}, {}),
        ({"cluster": "frontier"}, {}),
        ({"global_batch_size": 16}, {}),
        ({"workload": "megatron"}, {}),
        ({"software": {"torch": "2.12"}}, {"software": {"torch": "2.13.0"}}),
        ({"software": {"torch": "2.13"}}, {}),
        ({"simulated": True}, {}),
        ({}, {"simulated": True}),
    ],
)
def test_what_was_measured_for_something_else_is_no_measured_answer(campaigns, asked, over):
    assert best_measured(replace(ASKED, **asked), campaigns(((0.5, 1.0), over))) is None


def test_a_version_that_is_asked_for_counts_by_its_major_and_minor_number(campaigns):
    known = campaigns(((0.5, 1.0), {"software": {"torch": "2.13.1+cu130", "driver": "570.1"}}))
    assert best_measured(replace(ASKED, software={"torch": "2.13.0"}), known).plan == FAST
    assert best_measured(replace(ASKED, software={"driver": "580.2"}), known) is None


def test_a_simulated_campaign_is_answered_when_asked_for_and_never_as_measured(campaigns):
    known = campaigns(((0.5, 1.0), {"simulated": True}))
    found = best_measured(replace(ASKED, simulated=True), known)
    assert (found.standing, found.measured) == (Provenance.SIMULATED, False)
    assert found.environment["MESHTUNE_MEASURED"] == "0"


@pytest.mark.parametrize(
    ("changes", "source"),
    [
        ({"device": {"memory_bytes": 2**35}}, "c0"),  # other nodes of the same name
        ({"name": "twin"}, "c0"),
        ({"node_link": {"latency_s": 1e-6, "bandwidth_bytes_per_s": 1e9}}, "c1"),  # the same, probed again
    ],
)
def test_a_cluster_is_known_by_its_name_and_its_devices_but_not_by_its_links(campaigns, changes, source):
    known = campaigns(((0.5, 1.0), {}), ((0.1, 1.0), {"cluster": {"preset": "local-cpu", **changes}}))
    assert best_measured(ASKED, known).sources[0].campaign == source
    if "name" in changes:
        assert best_measured(replace(ASKED, cluster="twin"), known).sources[0].campaign == "c1"


def test_of_several_campaigns_the_fastest_for_sure_is_taken(campaigns):
    found = best_measured(ASKED, campaigns(((0.5, 1.0), {}), ((1.0, 0.4), {}), ((0.6, 1.0), {})))
    assert (found.sources[0].campaign, found.plan) == ("c1", SLOW)
    assert "the surest of 3 campaigns" in found.reason


def test_a_plan_that_was_measured_twice_goes_before_a_faster_one(campaigns):
    found = best_measured(ASKED, campaigns(((0.3, 1.0), {}), ((0.5, 1.0), {"again": 0.51})))
    assert (found.sources[0].campaign, found.sources[0].trial, found.sources[0].confirmed) == ("c1", 2, True)


@pytest.mark.parametrize(
    "older", [{"global_batch_size": 16}, {"software": {"torch": "2.12"}}, {"workload": "torch", "runner": "local"}]
)
def test_what_the_question_leaves_open_is_as_in_the_newest_campaign(campaigns, older):
    newest = {"software": {"torch": "2.13"}}
    known = campaigns(((0.5, 1.0), newest), ((0.1, 1.0), {**newest, **older}))
    if "global_batch_size" in older:
        trials = {"c0": known.trials_of("c0")}
        larger = [replace(one, plan=replace(one.plan, grad_accum_steps=2)) for one in known.trials_of("c1")]
        known = CampaignRecords(known.campaigns, {**trials, "c1": larger}.__getitem__)
    found = best_measured(ASKED, known)
    assert found.sources[0].campaign == "c0"
    assert "an older campaign with another batch, training code or software than the newest left out" in found.reason


def test_a_script_gets_every_field_of_the_plan_in_safe_characters(campaigns):
    found = best_measured(ASKED, campaigns(((0.5, 1.0), {})))
    values = found.environment
    assert tuple(values) == ENVIRONMENT_NAMES
    assert {f"MESHTUNE_{name.upper()}" for name in PLAN_FIELDS} <= values.keys()
    assert values["MESHTUNE_DP"] == "4"
    assert values["MESHTUNE_SEQUENCE_PARALLEL"] == "1"
    assert values["MESHTUNE_GLOBAL_BATCH_SIZE"] == "8"
    assert (values["MESHTUNE_MEASURED"], values["MESHTUNE_SOURCE"]) == ("1", "c0/0")
    for line in environment_text(found).splitlines():
        assert re.fullmatch(r"MESHTUNE_[A-Z_]+=[A-Za-z0-9_.:/-]+", line)


def test_versions_are_read_from_one_line_and_a_wrong_one_is_named():
    assert software_versions("torch=2.13,cuda=13.0") == {"torch": "2.13", "cuda": "13.0"}
    assert software_versions("") == {}
    with pytest.raises(InvalidValue, match="software: must be name=version, separated by commas, not 'torch'"):
        software_versions("torch")


MODEL = toy.SPEC["model"] | {"seq_len": 512}
CLUSTER = toy.CLUSTER | {"device": toy.DEVICE | {"peak_flops": {"float32": 1e14}}}
DEFAULTS = (("software", {}), ("slow", 1.0), ("resized", {}))
SPACE = {"micro_batch_size": [1, 2, 4], "zero_stage": [0, 1]}


@pytest.fixture
def nearby(lab, make):
    """Finished campaigns, newest first, each from its node count and changes. Their trials take `slow`
    times what the physics says, for about `count` plans of the space."""

    def build(*given, count=12):
        found, trials = [], {}
        for number, (nodes, over) in enumerate(given):
            over = {"model": MODEL, "global_batch_size": 64, "space": SPACE, **over}
            software, slow, model = (over.pop(name, known) for name, known in DEFAULTS)
            spec = lab.spec(**over, cluster={**CLUSTER, "nodes": nodes})
            spec = replace(spec, model=replace(spec.model, **model))
            space = space_of(spec)
            plans = [space[index] for index in range(0, len(space), max(1, len(space) // count))]
            steps = slow * estimate(training_of(spec), space.columns).time.step_s
            trials[f"c{number}"] = [
                make.trial(
                    place,
                    make.measurement(
                        float(steps[space.index_of(plan)]),
                        devices=spec.cluster.devices,
                        software=software,
                    ),
                    plan=plan,
                )
                for place, plan in enumerate(plans)
            ]
            trials[f"c{number}"].append(make.trial(99, Verdict.OOM, plan=Plan(dp=spec.cluster.devices)))
            found.append(replace(make.campaign(spec, CampaignState.COMPLETED), id=f"c{number}"))
        return CampaignRecords(found, trials.__getitem__)

    return build


ELSEWHERE = LaunchQuestion(model="gpt-micro", cluster="hpc", nodes=4)


def best_of(records, number=0):
    """The plan that a campaign measured fastest."""
    measured = [one for one in records.trials_of(f"c{number}") if one.measurement]
    return min(measured, key=lambda one: one.measurement.step_time_s).plan


def test_another_node_count_is_projected_and_never_called_measured(nearby):
    known = nearby((2, {"software": {"torch": "2.13.0"}}))
    assert best_measured(ELSEWHERE, known) is None
    found = best_projected(ELSEWHERE, known)
    assert (found.standing, found.measured, found.plan.world_size) == (Provenance.PROJECTED, False, 16)
    assert found.environment["MESHTUNE_MEASURED"] == "0"
    assert found.plan.global_batch_size == 64
    assert 0.9 < found.p_fits <= 1
    (source,) = found.sources
    assert (source.campaign, source.nodes, source.differs) == ("c0", 2, ("2 nodes, asked for 4",))
    assert source.plan_key == best_of(known).key
    assert found.reason.startswith("not measured: ")
    assert "calibrated by 15 step times of 1 campaign" in found.reason


def test_the_projection_is_calibrated_by_what_was_measured(nearby):
    slow, plain = (best_projected(ELSEWHERE, nearby((2, {"slow": factor}))) for factor in (2.0, 1.0))
    assert slow.plan == plain.plan
    assert slow.tokens_per_s.value == pytest.approx(plain.tokens_per_s.value / 2, rel=0.25)


def test_several_campaigns_of_one_training_code_teach_together(nearby):
    found = best_projected(ELSEWHERE, nearby((1, {}), (2, {}), (64, {}), (1, {"global_batch_size": 32})))
    assert [source.campaign for source in found.sources] == ["c1", "c0", "c3"]
    assert "of 3 campaigns" in found.reason


def test_the_plan_that_somebody_ran_is_kept_with_more_replicas_while_nothing_is_clearly_better(nearby):
    known = nearby((2, {}))
    found = best_projected(ELSEWHERE, known)
    ran = best_of(known)
    assert found.plan == replace(ran, dp=2 * ran.dp, grad_accum_steps=ran.grad_accum_steps // 2)
    assert f"{ran.key} with dp {found.plan.dp}" in found.reason


def test_a_clearly_better_plan_goes_before_the_one_that_somebody_ran(nearby):
    # Only a pipeline that is mostly bubble was measured there, and the space holds far better plans.
    known = nearby((2, {}), (1, {}), count=1000)
    bubbles = [one for one in known.trials_of("c0") if (one.plan.pp, one.plan.micro_batch_size) == (8, 4)]
    known = CampaignRecords(known.campaigns, {"c0": bubbles, "c1": known.trials_of("c1")}.__getitem__)
    found = best_projected(ELSEWHERE, known)
    assert best_of(known).pp == 8
    assert found.plan.pp < 8
    assert re.search(r"predicted \d\.\d\d times as good \(tokens/s x P\(fits\), which is \d+ % against", found.reason)
    assert "the nearest measured best there, tp1 pp8 " in found.reason


def test_a_plan_that_is_not_legal_there_gives_way_to_the_predicted_best(nearby):
    known = nearby((2, {}))
    ran = best_of(known)
    asked = replace(ELSEWHERE, nodes=16)
    found = best_projected(asked, known)
    assert ran.micro_batch_size * 64 // (ran.tp * ran.pp) > 64
    assert f"{ran.key} is not legal there, this is predicted best of" in found.reason
    assert (found.plan.world_size, found.plan.global_batch_size) == (64, 64)


def test_other_software_alone_leaves_the_plan_and_widens_the_interval(nearby):
    known = nearby((4, {"software": {"torch": "2.12.1"}}))
    found = best_projected(replace(ELSEWHERE, software={"torch": "2.13"}), known)
    assert found.plan == best_of(known)
    assert "the same plan, which the nearest campaign measured best" in found.reason
    assert found.sources[0].differs == ("torch 2.12.1, asked for 2.13",)
    assert _log_sd(found) > OTHER_RELEASE


def test_another_family_of_models_widens_the_interval(nearby):
    known = nearby((2, {"resized": {"name": "other", "norm": "rmsnorm"}}), (2, {}))
    known = CampaignRecords(known.campaigns, {"c0": [], "c1": known.trials_of("c1")}.__getitem__)
    far, near = (best_projected(replace(ELSEWHERE, model=model), known) for model in ("other", "gpt-micro"))
    assert _log_sd(far) > OTHER_FAMILY
    assert _log_sd(far) > _log_sd(near)
    assert "gpt-micro, asked for other" in far.sources[0].differs


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"nodes": 256}, "the nearest, c0, has 2 nodes, asked for 256: 7.0 doublings away, more than 6"),
        ({"cluster": "frontier"}, "nothing was measured on MI250X-GCD-64GB; measured: toy"),
        ({"global_batch_size": 7}, "gpt-micro on 16 devices with global batch 7, and no plan is legal there"),
    ],
)
def test_what_is_not_near_is_refused_with_what_is_known(nearby, over, words):
    with pytest.raises(NothingKnown, match=re.escape(words)):
        best_projected(replace(ELSEWHERE, **over), nearby((2, {"space": {**SPACE, "pp": [1]}})))


def test_nothing_is_projected_to_a_network_of_which_nothing_is_known(nearby):
    known = nearby((1, {}))
    (one,) = known.campaigns
    spec = replace(one.spec, cluster=replace(one.spec.cluster, network_link=None))
    known = replace(known, campaigns=[replace(one, spec=spec)])
    with pytest.raises(NothingKnown, match=r"cannot be projected: cluster\.network_link: is not known"):
        best_projected(ELSEWHERE, known)


def _log_sd(found):
    return log(found.tokens_per_s.high / found.tokens_per_s.value) / 1.96
