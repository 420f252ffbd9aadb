"""Which nodes an attempt keeps away from. Pure; the runner drops what cannot be had.

What failed under this trial, what failed twice under anybody lately, and, for a plan that is measured once more, the
nodes of its first run: a second run elsewhere tells the plan from the node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from meshtune.tuner.campaign.trial import Origin, Trial

# So many failures shun a node: one may be the job's, a second one under another job is the node's.
SHUNNED_AT = 2
# Failures under other campaigns count for so long: a node that was mended comes back.
FAULTS_S = 86400.0


def nodes_to_avoid(trials: Sequence[Trial], trial: Trial, faults: Mapping[str, int]) -> tuple[str, ...]:
    """The nodes, by name. trials: the campaign's. faults: failures by node under all campaigns, lately."""
    failed = {node for attempt in trial.attempts for node in attempt.failed_nodes}
    return tuple(sorted(failed | shunned(trials, faults) | _first_nodes(trials, trial)))


def shunned(trials: Sequence[Trial], faults: Mapping[str, int]) -> set[str]:
    """The nodes that every new attempt of the campaign keeps away from. faults: as above; the campaign's own failures
    count however long ago they were."""
    own = Counter(node for trial in trials for attempt in trial.attempts for node in attempt.failed_nodes)
    return {node for node in (*own, *faults) if max(own[node], faults.get(node, 0)) >= SHUNNED_AT}


def _first_nodes(trials: Sequence[Trial], trial: Trial) -> set[str]:
    if trial.origin is not Origin.CONFIRMATION:
        return set()
    firsts = [other for other in trials if other.plan == trial.plan and other.origin is not Origin.CONFIRMATION]
    return {node for first in firsts for node in first.last.nodes}
