"""The best known plan over all campaigns: what was measured for just this, and which of several campaigns says it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.plan import PLAN_FIELDS, Plan
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.spec import Backend
from meshtune.tuner.campaign.trial import Origin
from meshtune.tuner.results.environment import ENVIRONMENT_NAMES
from meshtune.tuner.results.known_best import (
    CampaignRecords,
    LaunchQuestion,
    Provenance,
    best_measured,
    environment_text,
    software_versions,
)

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
