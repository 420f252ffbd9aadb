"""Calibrations in use: the one that holds for a spec, and the one that a calibration campaign leaves at its end."""

from __future__ import annotations

from collections.abc import Sequence

from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.physics.training import missing
from meshtune.tuner.access.tokens import OPERATOR, Rights
from meshtune.tuner.campaign.calibration import StoredCalibration, best_of, key_of
from meshtune.tuner.campaign.campaign import Campaign, CampaignState
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.prediction.calibrated import TooFewTrials, fitted
from meshtune.tuner.prediction.predict import Basis, basis_of, training_of
from meshtune.tuner.store import Store


def known_calibration(
    store: Store, spec: CampaignSpec, version: str = "", reader: Rights = OPERATOR
) -> StoredCalibration | None:
    """The stored calibration of the spec's device and training code that the reader may read: the newest under this
    version of the framework, else the newest. None where there is none, or speeds are unknown that it is relative to.
    """
    if missing(training_of(spec)):
        return None
    return best_of(store.calibrations.newest_first(key_of(spec), reader=reader), version)


def known_basis(store: Store, spec: CampaignSpec, reader: Rights = OPERATOR, *, but: str = "") -> Basis:
    """The basis for predictions of a spec before its own trials. but: a campaign whose calibration is left out, since
    its trials teach by themselves."""
    found = known_calibration(store, spec, reader=reader)
    return Basis() if found is None or found.campaign == but else basis_of(found, training_of(spec))


def keep_calibration(
    store: Store, campaign: Campaign, trials: Sequence[Trial], reason: str, now: float
) -> tuple[CampaignState, str]:
    """Store what the campaign's trials say of the constants; its final state, and why. May be repeated.

    reason: why it has ended. A campaign with too few trials has failed, and stores nothing.
    """
    try:
        stored = fitted(campaign, trials, now)
    except (TooFewTrials, InvalidValue) as error:
        return CampaignState.FAILED, f"no calibration: {error} ({reason})"
    store.calibrations.keep(stored)
    return CampaignState.COMPLETED, f"calibrated {stored.key} by {stored.trials} trials ({reason})"
