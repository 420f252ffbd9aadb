"""Stored calibrations over REST: listed for who may read their campaigns, and used by their predictions."""

from __future__ import annotations

from dataclasses import asdict

import jsonschema
import pytest
from new_tokens import new_token

from meshtune.search_spaces.physics.constants import CONSTANTS, UNCALIBRATED, Calibration
from meshtune.tuner.access.tokens import Scope
from meshtune.tuner.campaign.calibration import StoredCalibration, key_of
from meshtune.tuner.specs.read import read_spec

DEVICE = {
    "name": "fast",
    "kind": "cuda",
    "memory_bytes": 2**34,
    "peak_flops": {"float32": 1e13},
    "memory_bandwidth_bytes_per_s": 1e12,
}
SURE = Calibration(UNCALIBRATED.constants, UNCALIBRATED.covariance / 100, time_log_sd=0.05, times=5, memories=5)


@pytest.fixture
def calibrated(service, spec):
    """Calibrations of ann, and of the command line; the spec is of their device and training code."""
    cluster = {"name": "one", "nodes": 1, "devices_per_node": 1, "device": DEVICE}
    spec |= {"cluster": cluster, "baseline": None, "runner": "local"}
    known, _ = read_spec(spec, None)
    for campaign, owner, at in (("of-ann", "ann", 1.0), ("of-the-site", "", 2.0)):
        service.store.calibrations.keep(
            StoredCalibration(
                campaign=campaign,
                created_at=at,
                **asdict(key_of(known)),
                version="torch 2.5.1",
                model="gpt-micro",
                cluster="one",
                devices=1,
                trials=5,
                described=known.cluster.device,
                calibration=SURE,
                owner=owner,
            )
        )
    return spec


def test_the_newest_comes_first_with_every_constant(client, app, calibrated):
    found = client.get("/v1/calibrations").json()["calibrations"]
    assert [one["campaign"] for one in found] == ["of-the-site", "of-ann"]
    assert (found[1]["device"], found[1]["version"], found[1]["trials"]) == ("fast", "torch 2.5.1", 5)
    assert found[1]["created_at"] == "1970-01-01T00:00:01Z"
    assert [one["name"] for one in found[0]["constants"]] == list(CONSTANTS)
    assert all(one["log_sd"] == pytest.approx(one["default_log_sd"] / 10) for one in found[0]["constants"])
    document = app.openapi()
    schema = document["components"]["schemas"]["CalibrationView"]
    jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(found[0])
    assert len(client.get("/v1/calibrations?limit=1").json()["calibrations"]) == 1


def test_a_token_lists_and_uses_its_own(client, service, calibrated):
    ann = new_token(service.store, "ann", Scope.READ, Scope.COMMAND)
    bob = new_token(service.store, "bob", Scope.READ, Scope.COMMAND)
    for header, known in ((ann, ["of-ann"]), (bob, [])):
        found = client.get("/v1/calibrations", headers=header).json()["calibrations"]
        assert [one["campaign"] for one in found] == known
        for path in ("/v1/estimates", "/v1/spaces/why"):
            body = calibrated if path == "/v1/estimates" else {"spec": calibrated, "plan": {"tp": 1}}
            basis = client.post(path, json=body, headers=header).json()["basis"]
            assert (basis["anchor"] or {}).get("campaign") == next(iter(known), None)
            assert basis["calibrated"] is bool(known)
            assert basis["error_factor"] > 1


def test_the_site_s_is_the_newest_for_who_reads_all(client, calibrated):
    basis = client.post("/v1/estimates", json=calibrated).json()["basis"]
    assert basis["anchor"]["campaign"] == "of-the-site"
    assert basis["anchor"]["created_at"] == "1970-01-01T00:00:02Z"
    assert "of of-the-site (1970-01-01 00:00 UTC, 5 trials of gpt-micro" in basis["words"]
    dry = client.post("/v1/campaigns?dry_run=true", json=calibrated).json()["basis"]
    assert dry["anchor"] == basis["anchor"]
