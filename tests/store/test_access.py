"""Tokens, the audit log and what owners use, on every database."""

from dataclasses import replace

import pytest

from meshtune.runners.outcome import Verdict
from meshtune.tuner.access.quotas import QuotaExceeded
from meshtune.tuner.access.tokens import (
    UNLIMITED,
    AuditRecord,
    Quotas,
    Scope,
    Token,
    Used,
    digest,
)
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.trial import Origin
from meshtune.tuner.store import AlreadyExists, NotFound, Store, access
from meshtune.tuner.store.access import KEPT_S, MAX_CHARACTERS, Busy, Claim, KeptAnswer

NOW = 1000.0


def token(name: str = "ann", secret: str = "mt_a", **changes) -> Token:
    made = {"scopes": frozenset({Scope.READ, Scope.LAUNCH}), "created_at": NOW, "expires_at": NOW + 100}
    return Token(**{"name": name, "sha256": digest(secret), **made, **changes})


def test_a_token_comes_back_as_it_was_kept(store: Store):
    made = token(quotas=Quotas(campaigns=1, trials=2, device_hours=2.5), expires_at=None)
    store.access.create(made)
    assert store.access.tokens([]) == [made]
    assert store.access.by_digest(digest("mt_a")) == made
    assert store.access.by_digest(digest("mt_b")) is None
    assert store.access.quotas("ann") == made.quotas
    assert store.access.quotas("bob") == UNLIMITED


def test_a_name_is_given_once_and_again_only_when_its_token_opens_nothing(store: Store):
    store.access.create(token())
    with pytest.raises(AlreadyExists, match="there is a token ann already"):
        store.access.create(token(secret="mt_b"))
    store.access.revoke("ann", NOW + 1)
    store.access.create(token(secret="mt_b", created_at=NOW + 2))
    [kept] = store.access.tokens([])
    assert kept.sha256 == digest("mt_b")
    assert kept.revoked_at is None
    store.access.create(token(secret="mt_c", created_at=NOW + 200, expires_at=NOW + 300))
    assert store.access.by_digest(digest("mt_b")) is None


def test_a_revoked_token_keeps_the_first_moment(store: Store):
    store.access.create(token())
    for later in (1, 2):
        store.access.revoke("ann", NOW + later)
        assert store.access.tokens([])[0].revoked_at == NOW + 1
    with pytest.raises(NotFound, match="there is no token bob"):
        store.access.revoke("bob", NOW)


def test_the_last_use_is_kept(store: Store):
    store.access.create(token())
    store.access.used_at(digest("mt_a"), NOW + 5)
    assert store.access.tokens([])[0].last_used_at == NOW + 5


def test_owners_use_what_their_campaigns_do(store: Store, make):
    day = 86400.0
    store.create_campaign(replace(make.campaign(), owner="ann"))
    store.plan_trials("c1", make.choices(2), Origin.SEARCH, now=101.0)
    now = store.trials("c1")[0].last.planned_at + 10.0
    devices = store.campaign("c1").spec.cluster.devices
    store.finish("c1", 0, make.ok(), started_at=now - 8, finished_at=now - 6, now=now)
    used = store.access.used("ann", now)
    assert (used.campaigns, used.trials) == (1, 2)
    assert used.device_hours * 3600 >= 2 * devices
    assert store.access.used("bob", now) == Used(campaigns=0, trials=0, device_hours=0.0)
    assert store.access.used("ann", now + 2 * day).trials == 0


def test_a_new_attempt_is_no_new_trial(store: Store, make):
    store.create_campaign(replace(make.campaign(), owner="ann"))
    store.plan_trials("c1", make.choices(1), Origin.SEARCH, now=101.0)
    store.finish("c1", 0, make.failed(Verdict.LOST), started_at=1.0, finished_at=2.0, now=3.0)
    store.plan_attempt("c1", 0, now=4.0)
    assert store.access.used("ann", 5.0).trials == 1


def test_a_campaign_that_a_quota_has_no_room_for_is_not_kept(store: Store, make):
    store.access.create(token(quotas=Quotas(campaigns=1)))
    store.create_campaign(replace(make.campaign("c1"), owner="ann"))
    assert store.campaign("c1").owner == "ann"
    with pytest.raises(QuotaExceeded, match="1 of 1 campaigns"):
        store.create_campaign(replace(make.campaign("c2"), owner="ann"))
    store.create_campaign(replace(make.campaign("c3"), owner="bob"))
    store.create_campaign(make.campaign("c4"))
    assert {campaign.id for campaign in store.campaigns(limit=9)} == {"c1", "c3", "c4"}


def test_the_audit_log_is_read_in_order_and_holds_no_long_texts(store: Store):
    for number in range(3):
        store.access.record(AuditRecord(at=NOW + number, token="ann", action="token create", detail="x" * 999))
    first, second = store.access.audit(limit=2)
    assert (first.at, second.at) == (NOW, NOW + 1)
    assert len(first.detail) == MAX_CHARACTERS
    [last] = store.access.audit(after=second.id, limit=2)
    assert last.at == NOW + 2
    assert replace(last, detail="") == AuditRecord(id=last.id, at=NOW + 2, token="ann", action="token create")


def test_the_audit_log_loses_what_is_old_and_what_is_too_much(store: Store, monkeypatch):
    monkeypatch.setattr(access, "PRUNE_EVERY", 10)
    monkeypatch.setattr(access, "MAX_RECORDS", 12)
    for number in range(5):
        store.access.record(AuditRecord(at=NOW + number, token="", action="old"))
    for number in range(15):
        store.access.record(AuditRecord(at=NOW + KEPT_S + 100 + number, token="", action="new"))
    assert {entry.action for entry in store.access.audit(limit=99)} == {"new"}
    for number in range(20):
        store.access.record(AuditRecord(at=NOW + KEPT_S + 200 + number, token="", action="newer"))
    assert len(store.access.audit(limit=99)) == 12


def test_a_job_in_flight_has_its_campaign_and_one_that_is_over_has_not(store: Store, make):
    make.running(store, trials=1)
    name = store.trials("c1")[0].last.job_name
    assert store.access.campaign_in_flight(name) == "c1"
    store.finish("c1", 0, make.ok(), started_at=1.0, finished_at=2.0, now=3.0)
    with pytest.raises(NotFound, match=f"no job {name} is in flight"):
        store.access.campaign_in_flight(name)


def test_an_answer_is_kept_byte_for_byte(store: Store):
    keys = store.access.keys
    assert keys.claim("a", "k", "f", "own", NOW) is Claim.FIRST
    answer = KeptAnswer(status=200, headers={"etag": '"x"'}, body=bytes(range(256)))
    keys.keep("a", "k", answer)
    assert keys.claim("a", "k", "f", "own", NOW + 1) == answer


def test_the_claim_of_a_process_counts_while_it_lives(store: Store):
    keys, leases = store.access.keys, store.leases
    leases.renew("other", 60.0, serves=True)
    assert keys.claim("a", "k", "f", "other", NOW) is Claim.FIRST
    assert keys.claim("a", "k", "f", "own", NOW) == Busy("other")
    leases.renew("other", -1.0, serves=True)
    assert keys.claim("a", "k", "f", "own", NOW) is Claim.FIRST
    assert keys.claim("a", "k", "f", "own", NOW, busy=True) == Busy("own")
    assert keys.claim("a", "k", "g", "own", NOW) is Claim.REUSED


def test_two_attempts_of_a_request_act_once_whoever_comes_first(store: Store, make):
    """As where the first process was taken for dead and goes on."""
    keys = store.access.keys
    keys.claim("a", "k", "f", "own", NOW)
    with keys.acting("a", "k"):
        assert store.create_campaign(make.campaign("c1")).id == "c1"
        assert store.create_campaign(make.campaign("c2")).id == "c1"
    keys.forget("a", "k")  # it acted: nothing is forgotten
    assert keys.claim("a", "k", "g", "own", NOW) is Claim.REUSED
    assert store.create_campaign(make.campaign("c2")).id == "c2"
    keys.claim("a", "l", "f", "own", NOW)
    with keys.acting("a", "l"):
        for _ in range(2):
            assert store.move_campaign("c1", CampaignState.PAUSED, reason="", now=NOW).state == "paused"
    store.check()
