"""Where a trial runs and how long: the nodes that its attempt keeps away from, and the step time that it must beat.

Pure. A runner drops the nodes that cannot be avoided. An attempt avoids nodes that failed under its trial, nodes that
failed twice under anybody lately, and, for a plan that is measured once more, the nodes of its first run: a second run
elsewhere tells the plan from the node.

Where the spec lets trials race against the best one so far, a trial that is surely slower ends as PRUNED, without a
measurement: a search sees that as a failed plan, so racing saves steps at the price of what the search could have
learned from a slow one. Off unless the spec asks for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.trial import Origin, Trial

# So many failures exclude a node: one may be the job's, a second one under another job is the node's.
EXCLUDED_AT = 2
# Failures under other campaigns count for so long: a node that was mended comes back.
FAULTS_S = 86400.0


def nodes_to_avoid(trials: Sequence[Trial], trial: Trial, faults: Mapping[str, int]) -> tuple[str, ...]:
    """The nodes, by name. trials: the campaign's. faults: failures by node under all campaigns, lately."""
    failed = {node for attempt in trial.attempts for node in attempt.failed_nodes}
    return tuple(sorted(failed | excluded_nodes(trials, faults) | _first_nodes(trials, trial)))


def excluded_nodes(trials: Sequence[Trial], faults: Mapping[str, int]) -> set[str]:
    """The nodes that every new attempt of the campaign keeps away from. faults: as above; the campaign's own failures
    count however long ago they were."""
    own = Counter(node for trial in trials for attempt in trial.attempts for node in attempt.failed_nodes)
    return {node for node in (*own, *faults) if max(own[node], faults.get(node, 0)) >= EXCLUDED_AT}


def _first_nodes(trials: Sequence[Trial], trial: Trial) -> set[str]:
    if trial.origin is not Origin.CONFIRMATION:
        return set()
    firsts = [other for other in trials if other.plan == trial.plan and other.origin is not Origin.CONFIRMATION]
    return {node for first in firsts for node in first.last.nodes}


def incumbent_step_time_s(campaign: Campaign, trials: Sequence[Trial], trial: Trial) -> float | None:
    """The upper end of the best measured trial's interval, scaled to the tokens that `trial` does in a step.

    None: no racing, nothing measured yet, or a trial that must be measured to its end: the baseline, which everything
    is compared with, and a confirmation. Any objective ranks plans on equal devices by tokens per second.
    """
    if not campaign.spec.trial.racing or trial.origin is not Origin.SEARCH:
        return None
    tokens = trial.plan.global_batch_size * campaign.spec.model.seq_len
    measured = [known.measurement for known in trials if known.measurement is not None]
    if not measured:
        return None
    best = max(measured, key=lambda measurement: measurement.tokens_per_s)
    return best.step_time_interval_s.high * tokens / best.tokens_per_step
