"""What a token is: a secret that nobody keeps, scopes, an end, quotas."""

import pytest

from meshtune.search_spaces.checks import InvalidValue
from meshtune.tuner.access.tokens import Quotas, Scope, Token, digest, expiry


def token(**changes) -> Token:
    return Token(
        **{"name": "ann", "sha256": digest("mt_a"), "scopes": frozenset({Scope.READ}), "created_at": 0.0, **changes},
    )


def test_only_the_digest_of_a_secret_is_kept_and_only_the_secret_matches_it():
    kept = token(expires_at=None)
    assert "mt_a" not in str(kept)
    assert len(kept.sha256) == 64
    assert kept.matches("mt_a")
    assert not kept.matches("mt_b")
    assert not kept.matches(kept.sha256)


@pytest.mark.parametrize("name", ["", "-x", "a b", "a/b", "a" * 65, "t\u00e4g", "x\n"])
def test_a_name_is_safe_in_logs_and_tables(name):
    with pytest.raises(InvalidValue, match="name: must be 1 to 64"):
        token(name=name, expires_at=None)


def test_a_token_without_a_scope_is_none():
    with pytest.raises(InvalidValue, match="scopes: must be some of read, launch, command, admin"):
        token(scopes=frozenset(), expires_at=None)


def test_a_token_ends_at_its_time_or_when_it_is_revoked():
    assert token(expires_at=10.0).refusal(9.9) == ""
    assert token(expires_at=10.0).refusal(10.0) == "the token has expired"
    assert token(expires_at=None).refusal(1e12) == ""
    assert token(expires_at=None, revoked_at=5.0).refusal(6.0) == "the token was revoked"


@pytest.mark.parametrize(("text", "seconds"), [("1h", 3600), ("90d", 90 * 86400), ("8w", 56 * 86400)])
def test_an_end_is_a_time_from_now(text, seconds):
    assert expiry(text, 1000.0) == 1000.0 + seconds
    assert expiry("never", 1000.0) is None


@pytest.mark.parametrize("text", ["", "0d", "90", "d", "-1d", "1y", "1.5d", "1d ", "9999999d"])
def test_an_end_that_is_no_time_is_refused(text):
    with pytest.raises(InvalidValue, match="expires: must be such as 12h, 90d, 8w or never"):
        expiry(text, 0.0)


@pytest.mark.parametrize(
    "wrong", [{"campaigns": -1}, {"trials": True}, {"device_hours": -0.1}, {"device_hours": float("inf")}]
)
def test_a_quota_is_a_number_from_zero_on(wrong):
    with pytest.raises(InvalidValue, match=next(iter(wrong))):
        Quotas(**wrong)
    assert Quotas(campaigns=0, trials=0, device_hours=0.0)
