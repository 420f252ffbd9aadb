"""Calibrations in the database: what is kept comes back, the newest of a key first, and only to who may read it."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
from sqlalchemy import update

from meshtune.search_spaces.cluster import DeviceKind, DeviceSpec
from meshtune.search_spaces.physics.constants import CONSTANTS, DEFAULTS, UNCALIBRATED, Calibration
from meshtune.tuner.access.tokens import Rights, Scope
from meshtune.tuner.campaign.calibration import CalibrationKey, StoredCalibration
from meshtune.tuner.store import NotFound, Store
from meshtune.tuner.store.tables import calibrations

H100 = DeviceSpec(
    name="H100",
    kind=DeviceKind.CUDA,
    memory_bytes=80 * 2**30,
    peak_flops={"bfloat16": 9.9e14},
    memory_bandwidth_bytes_per_s=3.3e12,
)
KEY = CalibrationKey(device="H100", workload="torch", program="", framework="meshtune trainer, bf16", dtype="bfloat16")


def stored(campaign: str, at: float, **over) -> StoredCalibration:
    rng = np.random.default_rng(1)
    random = rng.normal(size=(len(CONSTANTS), len(CONSTANTS)))
    constants = replace(DEFAULTS, matmul_efficiency=0.8)
    fit = Calibration(constants, random @ random.T, time_log_sd=0.08, times=7, memories=6, ooms=1)
    return replace(
        StoredCalibration(
            campaign=campaign,
            created_at=at,
            **asdict(KEY),
            version="torch 2.5.1",
            model="gpt-1b",
            cluster="lab",
            devices=8,
            trials=7,
            described=H100,
            calibration=fit,
        ),
        **over,
    )


@pytest.fixture
def kept(store: Store) -> Store:
    store.calibrations.keep(stored("first", 1.0, owner="ann"))
    store.calibrations.keep(stored("second", 2.0, project="lab"))
    store.calibrations.keep(stored("other", 3.0, device="A100"))
    return store


def names(found: list[StoredCalibration]) -> list[str]:
    return [one.campaign for one in found]


def test_what_is_kept_comes_back_with_its_covariance(store):
    store.calibrations.keep(one := stored("only", 5.0))
    (found,) = store.calibrations.newest_first()
    assert np.array_equal(found.calibration.covariance, one.calibration.covariance)
    assert replace(found, calibration=UNCALIBRATED) == replace(one, calibration=UNCALIBRATED)
    assert found.calibration.constants == one.calibration.constants
    assert (found.calibration.time_log_sd, found.calibration.times, found.calibration.ooms) == (0.08, 7, 1)


def test_a_campaign_has_one_and_the_newest_of_a_key_comes_first(kept):
    assert names(kept.calibrations.newest_first(KEY)) == ["second", "first"]
    assert names(kept.calibrations.newest_first(replace(KEY, program="train.py"))) == []
    kept.calibrations.keep(stored("first", 9.0))
    assert names(kept.calibrations.newest_first(KEY)) == ["first", "second"]
    assert names(kept.calibrations.newest_first()) == ["first", "other", "second"]


def test_tokens_see_their_own_and_those_of_their_projects(kept):
    read = frozenset({Scope.READ})
    ann, lab = Rights(name="ann", scopes=read), Rights(name="bob", scopes=read, projects=frozenset({"lab:read"}))
    assert names(kept.calibrations.newest_first(reader=ann)) == ["first"]
    assert names(kept.calibrations.newest_first(reader=lab)) == ["second"]
    everything = Rights(name="eve", scopes=frozenset({Scope.READ_ALL}))
    assert names(kept.calibrations.newest_first(reader=everything)) == ["other", "second", "first"]


def test_one_is_deleted_by_its_campaign(kept):
    kept.calibrations.remove("second")
    assert names(kept.calibrations.newest_first(KEY)) == ["first"]
    with pytest.raises(NotFound, match="there is no calibration second"):
        kept.calibrations.remove("second")


def test_one_of_other_constants_is_left_out(kept):
    document = {"names": ["phlogiston"], "constants": {"phlogiston": 1.0}, "covariance": [[1.0]]}
    with kept._database.writing() as connection:
        connection.execute(update(calibrations).where(calibrations.c.campaign == "second").values(document=document))
    assert names(kept.calibrations.newest_first(KEY)) == ["first"]


def test_the_order_of_constants_may_change_between_releases(kept):
    table = calibrations
    with kept._database.writing() as connection:
        (row,) = connection.execute(table.select().where(table.c.campaign == "first"))
        backwards = np.array(row.document["covariance"])[::-1, ::-1].tolist()
        document = {**row.document, "names": row.document["names"][::-1], "covariance": backwards}
        connection.execute(update(table).where(table.c.campaign == "first").values(document=document))
    found = kept.calibrations.newest_first(KEY)[1]
    assert np.array_equal(found.calibration.covariance, stored("first", 1.0).calibration.covariance)
