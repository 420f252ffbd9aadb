"""Calibrations in use: the one that holds for a spec, and the one that a calibration campaign leaves at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.physics.training import missing
from meshtune.tuner.access.tokens import OPERATOR, READ_ONLY, Rights
from meshtune.tuner.campaign.calibration import LEAST_TRIALS, StoredCalibration, best_of, framework_version, key_of
from meshtune.tuner.campaign.campaign import Campaign, CampaignState
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.prediction.predict import Basis, basis_of, learn, training_of
from meshtune.tuner.search.warm_start import software_of
from meshtune.tuner.store import Store


def readers_of(store: Store, campaign: Campaign) -> Rights:
    """What everybody who may read the campaign may read: its lessons name no other campaigns."""
    if project := campaign.spec.project:
        return Rights(projects=frozenset({f"{project}{READ_ONLY}"}))
    return store.access.rights(campaign.owner) if campaign.owner else OPERATOR


def known_calibration(
    store: Store, spec: CampaignSpec, version: str = "", reader: Rights = OPERATOR
) -> StoredCalibration | None:
    """The stored calibration of the spec's device and training code that the reader may read: the newest under this
    version of the framework, else the newest. None where there is none, or speeds are unknown that it is relative to.
    """
    if missing(training_of(spec)):
        return None
    return best_of(store.calibrations.newest_first(key_of(spec), reader=reader), version)


def known_basis(store: Store, spec: CampaignSpec, reader: Rights = OPERATOR, trials: Sequence[Trial] = ()) -> Basis:
    """The basis for predictions of a spec before its own trials. trials: of a campaign under whose release of the
    framework it is to hold, and whose own calibration is left out, since they teach by themselves."""
    version = framework_version(software_of(trials))
    calibration = known_calibration(store, spec, version, reader)
    if calibration is None or calibration.campaign in {trial.campaign_id for trial in trials}:
        return Basis()
    return basis_of(calibration, training_of(spec), version)


def keep_calibration(
    store: Store, campaign: Campaign, trials: Sequence[Trial], reason: str, now: float
) -> tuple[CampaignState, str]:
    """Store what the campaign's trials say of the constants; its final state, and why. May be repeated.

    reason: why it has ended. A campaign with too few trials has failed, and stores nothing.
    """
    measured = [trial.measurement for trial in trials if trial.measurement is not None]
    if len(measured) < LEAST_TRIALS:
        verdicts = Counter(str(trial.verdict) for trial in trials if trial.measurement is None)
        others = "".join(f", {count} {verdict}" for verdict, count in sorted(verdicts.items()))
        few = f"{len(measured)} of {len(trials)} trials measured{others}; it takes {LEAST_TRIALS}"
        return CampaignState.FAILED, f"no calibration: {few} ({reason})"
    spec = campaign.spec
    try:
        # After all trials that were measured or ran out of memory, from the prior alone.
        learnt = learn(campaign.label, spec, trials).calibration
    except InvalidValue as error:  # facts of the cluster are missing
        return CampaignState.FAILED, f"no calibration: {error} ({reason})"
    stored = StoredCalibration(
        campaign=campaign.id,
        created_at=now,
        **asdict(key_of(spec)),
        version=framework_version(software_of(trials)),
        model=spec.model.name,
        cluster=spec.cluster.name,
        devices=max(one.devices for one in measured),
        trials=len(measured),
        described=spec.cluster.device,
        calibration=learnt,
        owner=campaign.owner,
        project=spec.project,
    )
    store.calibrations.keep(stored)
    return CampaignState.COMPLETED, f"calibrated {stored.subject} by {stored.trials} trials ({reason})"
