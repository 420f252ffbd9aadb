"""Several plans that are measured at once: each is chosen as if those under way, and those chosen before it, had been
measured just as expected (the kriging believer, Ginsbourger et al. 2010).

What is believed so moves no mean; it takes doubt away around it. So a choice costs one product of a matrix and a vector
for each hypothesis, however much was measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from meshtune.search_spaces.columns import FloatColumn
from meshtune.tuner.search.physics.speed import Views
from meshtune.tuner.search.physics.weighing import Weighing, moments_of


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A weighing of candidates. views: of the candidates, then of the plans under way. under_way_peaks: what is
    expected of the latter, as log(bytes)."""

    weighing: Weighing
    views: Views
    under_way_peaks: FloatColumn

    def choices(self, most: int) -> Iterator[tuple[int, Weighing]]:
        """Up to `most` candidates, best first: the position of each, and the weighing that it was chosen by."""
        batch = self.waiting()
        left = np.ones(len(self.weighing.rows), dtype=np.bool_)
        count = min(most, len(left))
        for number in range(count):
            at = batch.weighing.choose(left)
            left[at] = False
            yield at, batch.weighing
            if number + 1 < count:
                batch = batch.believing(np.array([at]))

    def waiting(self) -> Batch:
        """As if the plans under way had been measured just as expected."""
        count = len(self.under_way_peaks)
        return self.believing(len(self.weighing.rows) + np.arange(count)) if count else self

    def believing(self, at: npt.NDArray[np.int64]) -> Batch:
        """As if the plans at these positions of the views had been measured just as expected."""
        weighing, views = self.weighing, self.views.believing(at)
        times = moments_of(self.views.components())[0][at]
        best = float(np.min(times if weighing.best is None else np.append(times, weighing.best)))
        trials = weighing.trials
        if weighing.pareto:
            peaks = np.append(weighing.memory.peak, self.under_way_peaks)[at]
            trials = replace(
                trials, own_times=np.append(trials.own_times, times), own_peaks=np.append(trials.own_peaks, peaks)
            )
        components = views.components(len(weighing.rows))
        return replace(self, weighing=replace(weighing, components=components, best=best, trials=trials), views=views)
