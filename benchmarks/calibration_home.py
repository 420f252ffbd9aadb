"""What stored calibrations would have said of the trials that a home's other campaigns measured.

`python benchmarks/calibration_home.py HOME`: for each campaign with measured trials whose device and training code have
a stored calibration that is not its own, the errors of step time and memory over its trials by the default constants
and by the calibration: medians of |expected / measured - 1|, the share of times inside the 90 % interval, and the rank
correlation of speeds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import metrics
import numpy as np
from calibration import NINETY
from rich.console import Console
from rich.table import Table

from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.physics.constants import UNCALIBRATED
from meshtune.search_spaces.physics.estimate import Estimates, estimate
from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.prediction.predict import measured_rows, training_of
from meshtune.tuner.service.calibrations import known_calibration
from meshtune.tuner.store import Store


def main(arguments: Sequence[str] | None = None) -> int:
    (home,) = sys.argv[1:] if arguments is None else arguments
    table = Table(title="medians over trials", title_justify="left")
    for heading in ("campaign", "devices", "trials", "", "time", "worst", "memory", "90 % holds", "rank correlation"):
        table.add_column(heading, justify="left" if heading in ("campaign", "") else "right")
    with Store.open(Home(Path(home).absolute()).database_url) as store:
        for campaign in store.readable_campaigns(limit=100):
            known = known_calibration(store, campaign.spec)
            trials = [trial for trial in store.trials(campaign.id) if trial.measurement is not None]
            if known is None or known.campaign == campaign.id or not trials:
                continue
            calibrated = known.holding_for(training_of(campaign.spec), "")
            for name, constants in (("defaults", UNCALIBRATED), ("calibrated", calibrated)):
                label = (campaign.id, str(campaign.spec.cluster.devices), str(len(trials)), name)
                expected = estimate(training_of(campaign.spec), columns_of([one.plan for one in trials]), constants)
                table.add_row(*label, *_cells(expected, trials))
    Console(width=140).print(table)
    return 0


def _cells(expected: Estimates, trials: Sequence[Trial]) -> list[str]:
    measured = measured_rows(trials)
    step_s, log_sd = expected.time.step_s, expected.time.log_sd
    off = np.abs(np.log(measured.step_time_s / step_s))
    errors = metrics.absolute_relative_errors(step_s, measured.step_time_s)
    memory = metrics.absolute_relative_errors(expected.memory.peak_bytes, measured.peak_memory_bytes)
    values = (
        metrics.median(errors),
        float(np.max(errors)),
        metrics.median(memory),
        float(np.mean(off <= NINETY * log_sd)),
    )
    rank = metrics.spearman(1 / step_s, 1 / measured.step_time_s)
    shares = ["-" if value is None else f"{100 * value:.1f} %" for value in values]
    return [*shares, "-" if rank is None else f"{rank:.2f}"]


if __name__ == "__main__":
    sys.exit(main())
