"""A calibration of a campaign's trials, to be kept for later campaigns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from meshtune.tuner.campaign.calibration import LEAST_TRIALS, StoredCalibration, framework_version, key_of
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.prediction.predict import learn


class TooFewTrials(ValueError):
    """Too few trials were measured for a calibration."""


def fitted(campaign: Campaign, trials: Sequence[Trial], now: float) -> StoredCalibration:
    """The constants after all trials that were measured or ran out of memory, from the prior alone.

    Raises TooFewTrials, with the numbers; InvalidValue where facts of the cluster are missing.
    """
    measured = [trial.measurement for trial in trials if trial.measurement is not None]
    if len(measured) < LEAST_TRIALS:
        verdicts = Counter(str(trial.verdict) for trial in trials if trial.measurement is None)
        others = "".join(f", {count} {verdict}" for verdict, count in sorted(verdicts.items()))
        raise TooFewTrials(f"{len(measured)} of {len(trials)} trials measured{others}; it takes {LEAST_TRIALS}")
    spec = campaign.spec
    software = [one.software for one in measured if one.software]
    return StoredCalibration(
        campaign=campaign.id,
        created_at=now,
        key=key_of(spec),
        version=framework_version(software[-1]) if software else "",
        model=spec.model.name,
        cluster=spec.cluster.name,
        devices=max(one.devices for one in measured),
        trials=len(measured),
        described=spec.cluster.device,
        calibration=learn(campaign.label, spec, trials).calibration,
        owner=campaign.owner,
        project=spec.project,
    )
