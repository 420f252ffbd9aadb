"""What nobody measured is projected from what was measured nearby, says so, and is not made up from far away."""

from __future__ import annotations

import re
from dataclasses import replace
from math import log

import pytest
import toy

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.physics.estimate import estimate
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.spec import space_of
from meshtune.tuner.prediction.predict import training_of
from meshtune.tuner.results.known_best import CampaignRecords, LaunchQuestion, NothingKnown, Provenance, best_measured
from meshtune.tuner.results.known_best_projection import best_projected
from meshtune.tuner.search.warm_start import OTHER_FAMILY, OTHER_RELEASE

MODEL = toy.SPEC["model"] | {"seq_len": 512}
CLUSTER = toy.CLUSTER | {"device": toy.DEVICE | {"peak_flops": {"float32": 1e14}}}
DEFAULTS = (("software", {}), ("slow", 1.0), ("resized", {}))
SPACE = {"micro_batch_size": [1, 2, 4], "zero_stage": [0, 1]}


@pytest.fixture
def campaigns(lab, make):
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
                        float(steps[space.index_of(plan)]), devices=spec.cluster.devices, software=software
                    ),
                    plan=plan,
                )
                for place, plan in enumerate(plans)
            ]
            trials[f"c{number}"].append(make.trial(99, Verdict.OOM, plan=Plan(dp=spec.cluster.devices)))
            found.append(replace(make.campaign(spec, CampaignState.COMPLETED), id=f"c{number}"))
        return CampaignRecords(found, trials.__getitem__)

    return build


ASKED = LaunchQuestion(model="gpt-micro", cluster="hpc", nodes=4)


def best_of(records, number=0):
    """The plan that a campaign measured fastest."""
    measured = [one for one in records.trials_of(f"c{number}") if one.measurement]
    return min(measured, key=lambda one: one.measurement.step_time_s).plan


def test_another_node_count_is_projected_and_never_called_measured(campaigns):
    known = campaigns((2, {"software": {"torch": "2.13.0"}}))
    assert best_measured(ASKED, known) is None
    found = best_projected(ASKED, known)
    assert (found.standing, found.measured, found.plan.world_size) == (Provenance.PROJECTED, False, 16)
    assert found.environment["MESHTUNE_MEASURED"] == "0"
    assert found.plan.global_batch_size == 64
    assert 0.9 < found.p_fits <= 1
    (source,) = found.sources
    assert (source.campaign, source.nodes, source.differs) == ("c0", 2, ("2 nodes, asked for 4",))
    assert source.plan_key == best_of(known).key
    assert found.reason.startswith("not measured: ")
    assert "calibrated by 15 step times of 1 campaign" in found.reason


def test_the_projection_is_calibrated_by_what_was_measured(campaigns):
    slow, plain = (best_projected(ASKED, campaigns((2, {"slow": factor}))) for factor in (2.0, 1.0))
    assert slow.plan == plain.plan
    assert slow.tokens_per_s.value == pytest.approx(plain.tokens_per_s.value / 2, rel=0.25)


def test_several_campaigns_of_one_training_code_teach_together(campaigns):
    found = best_projected(ASKED, campaigns((1, {}), (2, {}), (64, {}), (1, {"global_batch_size": 32})))
    assert [source.campaign for source in found.sources] == ["c1", "c0", "c3"]
    assert "of 3 campaigns" in found.reason


def test_the_plan_that_somebody_ran_is_kept_with_more_replicas_while_nothing_is_clearly_better(campaigns):
    known = campaigns((2, {}))
    found = best_projected(ASKED, known)
    ran = best_of(known)
    assert found.plan == replace(ran, dp=2 * ran.dp, grad_accum_steps=ran.grad_accum_steps // 2)
    assert f"{ran.key} with dp {found.plan.dp}" in found.reason


def test_a_clearly_better_plan_goes_before_the_one_that_somebody_ran(campaigns):
    # Only a pipeline that is mostly bubble was measured there, and the space holds far better plans.
    known = campaigns((2, {}), (1, {}), count=1000)
    bubbles = [one for one in known.trials_of("c0") if (one.plan.pp, one.plan.micro_batch_size) == (8, 4)]
    known = CampaignRecords(known.campaigns, {"c0": bubbles, "c1": known.trials_of("c1")}.__getitem__)
    found = best_projected(ASKED, known)
    assert best_of(known).pp == 8
    assert found.plan.pp < 8
    assert re.search(r"predicted \d\.\d\d times as good \(tokens/s x P\(fits\), which is \d+ % against", found.reason)
    assert "the nearest measured best there, tp1 pp8 " in found.reason


def test_a_plan_that_is_not_legal_there_gives_way_to_the_predicted_best(campaigns):
    known = campaigns((2, {}))
    ran = best_of(known)
    asked = replace(ASKED, nodes=16)
    found = best_projected(asked, known)
    assert ran.micro_batch_size * 64 // (ran.tp * ran.pp) > 64
    assert f"{ran.key} is not legal there, this is predicted best of" in found.reason
    assert (found.plan.world_size, found.plan.global_batch_size) == (64, 64)


def test_other_software_alone_leaves_the_plan_and_widens_the_interval(campaigns):
    known = campaigns((4, {"software": {"torch": "2.12.1"}}))
    found = best_projected(replace(ASKED, software={"torch": "2.13"}), known)
    assert found.plan == best_of(known)
    assert "the same plan, which the nearest campaign measured best" in found.reason
    assert found.sources[0].differs == ("torch 2.12.1, asked for 2.13",)
    assert _log_sd(found) > OTHER_RELEASE


def test_another_family_of_models_widens_the_interval(campaigns):
    known = campaigns((2, {"resized": {"name": "other", "norm": "rmsnorm"}}), (2, {}))
    known = CampaignRecords(known.campaigns, {"c0": [], "c1": known.trials_of("c1")}.__getitem__)
    far, near = (best_projected(replace(ASKED, model=model), known) for model in ("other", "gpt-micro"))
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
def test_what_is_not_near_is_refused_with_what_is_known(campaigns, over, words):
    with pytest.raises(NothingKnown, match=re.escape(words)):
        best_projected(replace(ASKED, **over), campaigns((2, {"space": {**SPACE, "pp": [1]}})))


def test_nothing_is_projected_to_a_network_of_which_nothing_is_known(campaigns):
    known = campaigns((1, {}))
    (one,) = known.campaigns
    spec = replace(one.spec, cluster=replace(one.spec.cluster, network_link=None))
    known = replace(known, campaigns=[replace(one, spec=spec)])
    with pytest.raises(NothingKnown, match=r"cannot be projected: cluster\.network_link: is not known"):
        best_projected(ASKED, known)


def _log_sd(found):
    return log(found.tokens_per_s.high / found.tokens_per_s.value) / 1.96
