"""Warm start: which earlier campaigns a new one learns from, with what weight, and from how many of their trials.

A campaign counts when the same program ran on the same device: the physics' errors belong to those. Model, node count,
batch, sequence length and the program's arguments may differ; the search sees the scales in `PastCampaign.training`.
Other differences lower its weight: docs/how-to/warm-start.md has the weights and their reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log2

from meshtune.runners.outcome import Verdict
from meshtune.runners.registry import UnknownBackend
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.training import Training
from meshtune.tuner.campaign.calibration import release_of
from meshtune.tuner.campaign.campaign import Campaign, Lesson
from meshtune.tuner.campaign.spec import CampaignSpec, workload_of
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.prediction.predict import training_of
from meshtune.tuner.search.base import PastCampaign, history
from meshtune.tuner.search.physics.speed import NOISE
from meshtune.tuner.search.registry import SearchKind, searches

# By how much the physics' error for one plan is taken to differ, as standard deviations of its logarithm: judged.
OTHER_RELEASE, UNKNOWN_RELEASE = 0.10, 0.05
OTHER_CLUSTER = 0.10
OTHER_FAMILY = 0.10
# A search's time grows with what it learns from, and the nearest campaigns come first.
MAX_CAMPAIGNS, MAX_TRIALS, MAX_TRIALS_EACH = 50, 200, 50
# What teaches: a time, and a lack of memory. What crashed or took too long there may do well elsewhere.
TEACHING = (Verdict.OK, Verdict.OOM)
# A device's driver and Python come in many versions, and a step's time hardly depends on them.
IDLE_SOFTWARE = frozenset({"driver", "python"})


@dataclass(frozen=True, slots=True)
class Earlier:
    """One campaign as another one's search sees it."""

    campaign_id: str
    past: PastCampaign

    @property
    def lesson(self) -> Lesson:
        return Lesson(campaign_id=self.campaign_id, trials=len(self.past.seen), weight=self.past.weight)


def learn_from(
    campaign: Campaign, own: Sequence[Trial], others: Sequence[Campaign], trials_of: Callable[[str], Sequence[Trial]]
) -> list[Earlier]:
    """The other campaigns (newest first) that the search learns from: the most alike, then the nearest in scale first.

    own: its own trials, for the software that it runs on; while none is measured, it is taken to be the newest
    campaign's. trials_of: the first MAX_TRIALS_EACH trials of a campaign; called until MAX_TRIALS teach something.
    """
    taught: dict[str, list[Trial]] = {}
    left = MAX_TRIALS
    alike = related(campaign, others)
    for other in alike:
        teaching = [trial for trial in trials_of(other.id) if trial.verdict in TEACHING]
        taught[other.id] = teaching[:left]
        left -= len(taught[other.id])
        if left == 0:
            break
    known = (software_of(own), *(software_of(taught.get(other.id, ())) for other in others))
    software: Mapping[str, str] = next(filter(None, known), {})
    return [
        Earlier(
            other.id,
            PastCampaign(
                training=training_of(other.spec),
                seen=tuple(history(other.spec, taught[other.id])),
                weight=weight_of(
                    *doubts(campaign.spec, other.spec), release_doubt(software, software_of(taught[other.id]))
                ),
            ),
        )
        for other in alike
        if taught.get(other.id)
    ]


def related(campaign: Campaign, others: Sequence[Campaign]) -> list[Campaign]:
    """Those of the others that count, itself never: the most alike first, of those the nearest in scale."""
    training = training_of(campaign.spec)
    near: list[tuple[float, float, Campaign]] = []
    for other in others:
        try:
            theirs = training_of(other.spec)
        except (InvalidValue, UnknownBackend):  # written for a meshtune that knew its workload
            continue
        known = campaign.spec.model.known and other.spec.model.known
        if known and other.id != campaign.id and _ground(campaign.spec, training) == _ground(other.spec, theirs):
            near.append((-weight_of(*doubts(campaign.spec, other.spec)), distance(training, theirs), other))
    return [other for _, _, other in sorted(near, key=lambda entry: entry[:2])]


def weight_of(*doubts: float) -> float:
    """The weight of an observation with these further standard deviations beside the noise from run to run."""
    return NOISE**2 / (NOISE**2 + sum(doubt**2 for doubt in doubts))


def doubts(spec: CampaignSpec, other: CampaignSpec) -> tuple[float, float]:
    """Doubts from the two specs: of the cluster, and of the model."""
    same_cluster = _fabric(spec.cluster, other.cluster.nodes) == _fabric(other.cluster, other.cluster.nodes)
    same_family = _family(spec.model) == _family(other.model)
    return (0.0 if same_cluster else OTHER_CLUSTER, 0.0 if same_family else OTHER_FAMILY)


def release_doubt(software: Mapping[str, str], theirs: Mapping[str, str]) -> float:
    """The doubt from the versions: of a library that both name, major and minor version count."""
    shared = (software.keys() & theirs.keys()) - IDLE_SOFTWARE
    if not shared:
        return UNKNOWN_RELEASE
    return 0.0 if all(release_of(software[name]) == release_of(theirs[name]) for name in shared) else OTHER_RELEASE


def software_of(trials: Sequence[Trial]) -> Mapping[str, str]:
    """The software of the last measured trial; empty where it is unknown."""
    known = [trial.measurement.software for trial in trials if trial.measurement is not None]
    return next((software for software in reversed(known) if software), {})


def lessons_text(lessons: Sequence[Lesson], search: str) -> str:
    """What the search of that name learns, and from how many campaigns and trials, in words; empty for nothing."""
    learns = searches().get(search, SearchKind()).learns if lessons else ""
    if not learns:
        return ""
    trials = sum(lesson.trials for lesson in lessons)
    return (
        f"{learns} from {len(lessons)} earlier campaign{'' if len(lessons) == 1 else 's'}, "
        f"{trials} trial{'' if trials == 1 else 's'}"
    )


def _ground(spec: CampaignSpec, training: Training) -> tuple[str, ...]:
    """The properties that must be equal; the workload's name, because simulated jobs play real training codes."""
    device, framework, program = training.cluster.device, training.framework, workload_of(spec).program
    return (spec.workload.kind, program, framework.name, framework.dtype, device.name, device.kind)


def _fabric(cluster: ClusterSpec, nodes: int) -> tuple[object, ...]:
    """The properties of a cluster that jobs on so many nodes depend on."""
    inside = (cluster.device, cluster.devices_per_node, cluster.devices_per_module, cluster.module_link)
    network = (cluster.network_link, cluster.nodes_per_rack, cluster.rack_link) if nodes > 1 else ()
    return (*inside, cluster.node_link, *network)


def _family(model: ModelSpec) -> tuple[object, ...]:
    """The composition of a layer, whatever its size."""
    return (model.norm, model.activation, model.position, model.experts > 0)


def distance(training: Training, other: Training) -> float:
    """The distance in scale: doublings of devices, of weights and of sequence length, added up."""
    scales = [(each.cluster.devices, each.model.parameters, each.model.seq_len) for each in (training, other)]
    return sum(abs(log2(own / theirs)) for own, theirs in zip(*scales, strict=True))
