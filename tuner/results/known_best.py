"""The best known plan for a model on a cluster, from everything that campaigns measured; what was measured comes first.

A question names the model, the cluster and the node count. What it leaves open (the global batch, the training code,
the software) is as in the newest campaign that fits it: that is what people run now. Of the campaigns that agree in all
of that, each with its own recommendation, the best is taken: a plan that was measured twice before one that was
measured once, then the highest lower end of the interval, which is both fast and sure. Where no campaign fits,
`tuner.results.known_best_projection` projects the nearest. Pure over what the store holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from itertools import islice
from typing import Any

from meshtune.runners.documents import read_value
from meshtune.search_spaces.checks import Checks, InvalidValue, Problem, did_you_mean
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import PLAN_FIELDS, Plan
from meshtune.search_spaces.presets import cluster_presets, model_presets
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.interval import Estimate
from meshtune.tuner.campaign.space import workload_of
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.results.ranking import Ranked
from meshtune.tuner.results.recommendation import recommend
from meshtune.tuner.search.warm_start import OTHER_RELEASE, release_doubt, release_of

# Of the newest: reading a thousand takes a quarter of a second, and a launch waits for the answer.
MOST_CAMPAIGNS = 1000
# Of those that fit, the trials of so many are read.
MOST_READ = 20


class NothingKnown(LookupError):
    """Nothing that was measured answers the question; the message says what is known instead."""


class Standing(StrEnum):
    """What the answer's numbers are. MEASURED: of this plan, there. PROJECTED: predicted from what was measured nearby.
    SIMULATED: made up, of campaigns on no device."""

    MEASURED = "measured"
    PROJECTED = "projected"
    SIMULATED = "simulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a launch wants to know. software: versions by name that the job will run on. What is left out is as in the
    newest campaign that fits. simulated: of simulated campaigns, which otherwise count for nothing."""

    model: str
    cluster: str
    nodes: int
    global_batch_size: int | None = None
    workload: str | None = None
    software: Mapping[str, str] = field(default_factory=dict)
    simulated: bool = False

    def __post_init__(self) -> None:
        checks = Checks()
        checks.whole(1, nodes=self.nodes)
        if self.global_batch_size is not None:
            checks.whole(1, global_batch_size=self.global_batch_size)
        checks.done()


@dataclass(frozen=True, slots=True)
class Records:
    """What is known. campaigns: newest first. trials_of: all trials of a campaign, by its id."""

    campaigns: Sequence[Campaign]
    trials_of: Callable[[str], Sequence[Trial]]

    def only(self, *, simulated: bool) -> Records:
        """Those of the simulated campaigns, or of the others."""
        return replace(self, campaigns=[one for one in self.campaigns if one.simulated is simulated])


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A campaign that an answer rests on, with its own best plan. tokens_per_s: of the whole job. confirmed: measured
    twice. differs: in what it is not what was asked for; empty where it is."""

    campaign: str
    trial: int
    plan_key: str
    model: str
    cluster: str
    nodes: int
    tokens_per_s: Estimate
    confirmed: bool
    software: Mapping[str, str]
    differs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BestKnown:
    """The answer. tokens_per_s: of the whole job. p_fits: the probability that the plan fits the devices; None for one
    that ran. reason: for people. sources: what it rests on, the one that the plan is from first."""

    question: Question
    standing: Standing
    plan: Plan
    workload: str
    tokens_per_s: Estimate
    p_fits: float | None
    reason: str
    sources: tuple[Source, ...]

    @property
    def measured(self) -> bool:
        """True when this very plan ran there, on devices."""
        return self.standing is Standing.MEASURED

    def environment(self) -> dict[str, str]:
        """What a job script sees: MESHTUNE_ and a name in capitals. Values have letters, digits and _.:/- only."""
        source = self.sources[0]
        values = {name: _plain(value) for name, value in self.plan.as_dict().items()}
        values |= {
            "global_batch_size": str(self.plan.global_batch_size),
            "measured": _plain(self.measured),
            "source": f"{source.campaign}/{source.trial}",
        }
        return {f"MESHTUNE_{name.upper()}": value for name, value in values.items()}

    def document(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            **{name: getattr(self.question, name) for name in ("model", "cluster", "nodes")},
            "standing": str(self.standing),
            "measured": self.measured,
            "plan": self.plan.as_dict(),
            "plan_key": self.plan.key,
            "devices": self.plan.world_size,
            "global_batch_size": self.plan.global_batch_size,
            "workload": self.workload,
            "tokens_per_s": self.tokens_per_s.document(),
            "p_fits": self.p_fits,
            "reason": self.reason,
            "sources": [
                {**asdict(source), "software": dict(source.software), "differs": list(source.differs)}
                for source in self.sources
            ],
            "environment": self.environment(),
        }


# What a script may hope for, whatever the plan.
ENVIRONMENT_NAMES = tuple(
    f"MESHTUNE_{name.upper()}" for name in (*PLAN_FIELDS, "global_batch_size", "measured", "source")
)


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a question's names stand for; the cluster has as many nodes as were asked for."""

    model: ModelSpec
    cluster: ClusterSpec

    def is_of(self, campaign: Campaign) -> bool:
        """True when the campaign trained this model on such nodes, and as many of them."""
        cluster = campaign.spec.cluster
        there = (cluster.name, cluster.nodes) == (self.cluster.name, self.cluster.nodes)
        return there and alike(cluster, self.cluster) and campaign.spec.model == self.model


@dataclass(frozen=True, slots=True)
class Advice:
    """What one campaign recommends. software: what its choice was measured on. choice: measured; of `reason`."""

    campaign: Campaign
    choice: Ranked
    reason: str

    @property
    def software(self) -> Mapping[str, str]:
        return self.choice.measurement.software

    def source(self, differs: Sequence[str] = ()) -> Source:
        spec = self.campaign.spec
        return Source(
            campaign=self.campaign.id,
            trial=self.choice.measured_by.number,
            plan_key=self.choice.trial.plan.key,
            model=spec.model.name,
            cluster=spec.cluster.name,
            nodes=spec.cluster.nodes,
            tokens_per_s=self.choice.tokens_per_s,
            confirmed=self.choice.confirmed,
            software=self.software,
            differs=tuple(differs),
        )


def best_measured(question: Question, records: Records) -> BestKnown | None:
    """The best plan that was measured for just this; None where none was. Raises NothingKnown for unknown names."""
    records = records.only(simulated=question.simulated)
    meaning = meaning_of(question, records.campaigns)
    fitting = (
        campaign
        for campaign in records.campaigns
        if meaning.is_of(campaign) and question.workload in (None, campaign.spec.workload.kind)
    )
    found = [
        advice
        for campaign in islice(fitting, MOST_READ)
        if (advice := advice_of(campaign, records.trials_of(campaign.id))) is not None
        if question.global_batch_size in (None, advice.choice.trial.plan.global_batch_size)
        if not other_software(question.software, advice.software)
    ]
    if not found:
        return None
    rivals = [advice for advice in found if _same_ground(advice, found[0])]
    best = max(rivals, key=lambda advice: (advice.choice.confirmed, advice.choice.tokens_per_s.low))
    return BestKnown(
        question=question,
        standing=Standing.SIMULATED if question.simulated else Standing.MEASURED,
        plan=best.choice.trial.plan,
        workload=best.campaign.spec.workload.kind,
        tokens_per_s=best.choice.tokens_per_s,
        p_fits=None,
        reason="; ".join([best.reason, *_passed_over(len(rivals) - 1, len(found) - len(rivals))]),
        sources=(best.source(),),
    )


def meaning_of(question: Question, campaigns: Sequence[Campaign]) -> Meaning:
    """What the names stand for: in the newest campaign that uses them, else among the presets. Raises NothingKnown."""
    models = {one.spec.model.name: one.spec.model for one in reversed(campaigns)}
    clusters = {one.spec.cluster.name: one.spec.cluster for one in reversed(campaigns)}
    model = _named("model", question.model, models, model_presets(), ModelSpec)
    cluster = _named("cluster", question.cluster, clusters, cluster_presets(), ClusterSpec)
    return Meaning(model, replace(cluster, nodes=question.nodes))


def advice_of(campaign: Campaign, trials: Sequence[Trial]) -> Advice | None:
    """None where the campaign measured nothing that it would recommend."""
    found = recommend(campaign, trials)
    return None if found.choice is None else Advice(campaign, found.choice, found.reason)


def alike(cluster: ClusterSpec, other: ClusterSpec) -> bool:
    """True for nodes of the same kind. Links are not compared: probing a cluster again gives slightly other ones."""
    own, theirs = cluster.device, other.device
    same_device = (own.name, own.kind, own.memory_bytes) == (theirs.name, theirs.kind, theirs.memory_bytes)
    return same_device and cluster.devices_per_node == other.devices_per_node


def other_software(wanted: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Sentences for the versions that are not those asked for, by major and minor number."""
    return [
        f"{name} {found.get(name, 'unknown')}, asked for {version}"
        for name, version in wanted.items()
        if name not in found or release_of(found[name]) != release_of(version)
    ]


def software_versions(text: str) -> dict[str, str]:
    """The versions in `name=version,name=version`. Raises InvalidValue."""
    found: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, _, version = part.partition("=")
        if not name or not version:
            raise InvalidValue([Problem("software", f"must be name=version, separated by commas, not {part!r}")])
        found[name] = version
    return found


def environment_text(found: BestKnown) -> str:
    """One NAME=value a line, for a shell or a job script."""
    return "".join(f"{name}={value}\n" for name, value in found.environment().items())


def _named(seam: str, name: str, used: Mapping[str, Any], presets: Mapping[str, Mapping[str, Any]], kind: type) -> Any:
    if name in used:
        return used[name]
    if name in presets:
        return read_value(kind, {key: value for key, value in presets[name].items() if key != "source"})
    raise NothingKnown(f"no campaign and no preset has a {seam} {name!r}; {did_you_mean(name, {*used, *presets})}")


def _same_ground(advice: Advice, newest: Advice) -> bool:
    """True when the speeds of the two can be compared, and the older one's still holds."""
    own, other = advice.campaign.spec, newest.campaign.spec
    same_code = workload_of(own).framework == workload_of(other).framework and own.workload.kind == other.workload.kind
    batches = [one.choice.trial.plan.global_batch_size for one in (advice, newest)]
    same_batch = own.global_batch_size == other.global_batch_size or batches[0] == batches[1]
    return same_code and same_batch and release_doubt(advice.software, newest.software) < OTHER_RELEASE


def _passed_over(worse: int, elsewhere: int) -> list[str]:
    told = []
    if worse:
        told.append(f"the surest of {worse + 1} campaigns")
    if elsewhere:
        campaigns = "an older campaign" if elsewhere == 1 else f"{elsewhere} older campaigns"
        told.append(f"{campaigns} with another batch, training code or software than the newest left out")
    return told


def _plain(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
