"""The record of a campaign is lossless: what reads it has the values that the store has."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from simulated_lab import failing

from meshtune.runners.documents import plain
from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.checks import InvalidValue
from meshtune.tuner.campaign.spec import space_of
from meshtune.tuner.results.analysis.analysis import analyse
from meshtune.tuner.results.record import Record, read_record, record_json


@pytest.fixture(scope="module")
def record() -> Record:
    campaign, trials = failing()
    return Record(campaign=campaign, trials=trials)


def test_a_campaign_with_failures_reads_back_to_equal_values(record):
    assert {Verdict.OK, Verdict.OOM, Verdict.CRASHED, Verdict.PRUNED} <= {trial.verdict for trial in record.trials}
    assert max(len(trial.attempts) for trial in record.trials) > 1
    text = record_json(record)
    assert read_record(text) == record
    assert record_json(read_record(text)) == text


def test_whoever_has_the_record_analyses_as_the_service_does(record):
    back = read_record(record_json(record))
    once, again = (analyse(one.campaign, space_of(one.campaign.spec), one.trials) for one in (record, back))
    assert plain(again) == plain(once)


def test_the_text_is_strict_json_although_a_loss_diverged(record):
    def refused(word: str) -> None:
        pytest.fail(f"{word} is no JSON")

    document = json.loads(record_json(record), parse_constant=refused)
    assert document["trials"][-1]["attempts"][0]["outcome"]["partial"]["first_losses"] == [7.5, "inf"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"version": 2}', "version: must be 1, the version of records that this meshtune reads, not 2"),
        ("[]", "version: must be 1, the version of records that this meshtune reads, not None"),
        ('{"version": 1, "trials": []}', "campaign: is missing"),
        ('{"version": 1', "is not JSON"),
    ],
)
def test_what_is_no_record_is_refused_with_its_path(text, told):
    with pytest.raises(InvalidValue) as caught:
        read_record(text)
    assert told in str(caught.value)


def test_a_trial_of_another_campaign_is_refused(record):
    with pytest.raises(InvalidValue, match=f"trial 0 is of the campaign other, not of {record.campaign.id}"):
        replace(record, trials=(replace(record.trials[0], campaign_id="other"),))
