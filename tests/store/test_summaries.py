"""Summaries of campaigns are kept until another meshtune makes them, and go with their campaigns."""

from dataclasses import replace

import pytest
from sqlalchemy import text, update

from meshtune.runners.failure_cause import Cause
from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.spec import Backend
from meshtune.tuner.campaign.summary import Summary
from meshtune.tuner.campaign.trial import Origin
from meshtune.tuner.results.summary import summarise
from meshtune.tuner.store import Store, tables


@pytest.fixture
def summary(store: Store, make) -> Summary:
    """Of campaign c1, which has a measured setting and one that failed."""
    campaign = make.campaign()
    spec = replace(campaign.spec, workload=Backend(kind="torch", options={"dtype": "bfloat16"}))
    store.create_campaign(replace(campaign, spec=spec))
    store.plan_trials("c1", make.choices(3), Origin.SEARCH, now=101.0)
    for number, outcome in enumerate([make.ok(), make.failed(Verdict.OOM)]):
        store.finish("c1", number, outcome, started_at=1.0, finished_at=2.0, now=3.0)
    return summarise(store.campaign("c1"), store.pages.tallies("c1"), store.pages.measured("c1"))


def test_what_was_kept_comes_back_with_its_event(store: Store, summary: Summary):
    assert summary.best is not None
    assert summary.failures == {Cause.OOM: 1}
    store.summaries.keep({"c1": (7, summary)})
    assert store.summaries.kept(["c1", "c9"]) == {"c1": (7, summary)}
    store.summaries.keep({"c1": (8, summary)})
    assert store.summaries.kept(["c1"]) == {"c1": (8, summary)}
    assert store.summaries.kept([]) == {}


def test_what_another_meshtune_made_is_not_found(store: Store, summary: Summary):
    store.summaries.keep({"c1": (7, summary)})
    with store._database.writing() as connection:
        connection.execute(update(tables.summaries).values(made_by="0.0.1"))
    assert store.summaries.kept(["c1"]) == {}


def test_what_is_no_summary_any_more_is_not_found(store: Store, summary: Summary):
    store.summaries.keep({"c1": (7, summary)})
    with store._database.writing() as connection:
        connection.execute(text("UPDATE summaries SET document = '{}'"))
    assert store.summaries.kept(["c1"]) == {}


def test_a_campaign_that_is_gone_has_none(store: Store, summary: Summary):
    store.summaries.keep({"c1": (7, summary), "c9": (7, summary)})
    assert store.summaries.kept(["c1", "c9"]).keys() == {"c1"}
    for state in (CampaignState.CANCELLING, CampaignState.CANCELLED):
        store.move_campaign("c1", state, reason="", now=9.0)
    store.remove_campaign("c1")
    assert store.summaries.kept(["c1"]) == {}
