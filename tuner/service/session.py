"""What one service holds of one campaign while it works on it: its search's task, search, workload and runner.

All of it can be built again from the spec at any time; nothing here is truth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from meshtune.runners.base import Runner
from meshtune.runners.registry import create_runner
from meshtune.runners.workloads.base import Workload
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.home import Home
from meshtune.tuner.campaign.space import space_of, workload_of
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.prediction.predict import training_of
from meshtune.tuner.search.base import Search, Task
from meshtune.tuner.search.registry import create_search
from meshtune.tuner.search.warm_start import MAX_CAMPAIGNS, MAX_TRIALS_EACH, learn_from, software_of
from meshtune.tuner.service.history import Known
from meshtune.tuner.service.leases import Hold
from meshtune.tuner.store import Store


@dataclass(slots=True)
class Work:
    """One campaign in this process's hands. unsaved_s: time worked on it that the store does not know yet.
    cancelled: jobs whose end was asked for already. stuck_at: how many trials had ended when the search had nothing to
    propose. weighed_for: the campaign's own software when its past was read, None before that."""

    hold: Hold
    known: Known
    task: Task
    search: Search
    workload: Workload
    runner: Runner
    worked_at: float | None = None
    unsaved_s: float = 0.0
    cancelled: set[str] = field(default_factory=set)
    stuck_at: int | None = None
    weighed_for: Mapping[str, str] | None = None

    def remember(self, campaign: Campaign, trials: Sequence[Trial], store: Store, now: float) -> None:
        """Let the search learn from other campaigns; the store keeps from which.

        They are read once, and again when the campaign's own trials tell that it runs on other software than was
        thought. So a campaign that is opened again later may learn more.
        """
        spec, software = campaign.spec, software_of(trials)
        if not spec.warm_start or software == self.weighed_for:
            return
        # One more, since the campaign itself is among them.
        others = store.campaigns_on(spec.cluster.device.name, spec.workload.kind, limit=MAX_CAMPAIGNS + 1)
        found = learn_from(campaign, trials, others, partial(store.trials, limit=MAX_TRIALS_EACH))
        store.keep_lessons(campaign.id, [earlier.lesson for earlier in found], now=now)
        past = tuple(earlier.past for earlier in found)
        if past != self.task.past:  # searches keep what they worked out for a task
            self.task = replace(self.task, past=past)
        self.weighed_for = software

    def close(self) -> None:
        self.runner.close()


def open_work(campaign: Campaign, home: Home, hold: Hold, known: Known) -> Work:
    """What it takes to work on a campaign that this process holds. Raises what the backends raise."""
    spec = campaign.spec
    search = create_search(spec.search.kind, seed=spec.seed, options=spec.search.options)
    task = Task(space=space_of(spec), training=training_of(spec), tolerance=spec.stop.tolerance, pareto=spec.pareto)
    workload = workload_of(spec)
    runner = create_runner(spec.runner.kind, home.runner(spec.runner.kind), spec.cluster, spec.runner.options)
    return Work(hold, known, task, search, workload, runner)
