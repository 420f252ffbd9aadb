"""The best known plan for a model on a cluster, from the measurements of all campaigns.

A question names the model, the cluster and the node count; of a campaign whose knob sizes the jobs, those of that size
answer. Whatever else it leaves open is as in the newest campaign that fits it, which is the present practice. Of the
campaigns that agree in all of that, each with its own recommendation, the best is taken: a plan that was measured again
first, then the highest lower end of the interval, which is both fast and sure. Where none fits,
`tuner.results.known_best_projection` projects the nearest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from typing import Any

from meshtune.runners.documents import read_value
from meshtune.search_spaces.checks import Checked, InvalidValue, Problem, UserError, Whole, did_you_mean, raising
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.knobs import sized
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.presets import cluster_presets, described, model_presets
from meshtune.tuner.campaign.calibration import release_of
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.spec import workload_of
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.campaign.units import Estimate
from meshtune.tuner.results.environment import knob_environment
from meshtune.tuner.results.handover import MeasuredWith, measured_with
from meshtune.tuner.results.ranking import Ranked, rank
from meshtune.tuner.results.recommendation import recommend_among
from meshtune.tuner.results.sizes import node_counts_of
from meshtune.tuner.results.views import view_of
from meshtune.tuner.search.warm_start import OTHER_RELEASE, release_doubt

# Of the newest: reading a thousand takes a quarter of a second, and a launch waits for the answer.
MAX_CAMPAIGNS = 1000
# Of those that fit, the trials of so many are read.
MAX_READ = 20


class NothingKnown(UserError, LookupError):
    """No measurement answers the question; the message names what is known instead."""


class Provenance(StrEnum):
    """The origin of an answer's numbers. MEASURED: of this plan, there. PROJECTED: predicted from what was measured
    nearby. SIMULATED: made up, of campaigns on no device."""

    MEASURED = "measured"
    PROJECTED = "projected"
    SIMULATED = "simulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchQuestion(Checked):
    """The question of a launch. Whatever is left out is as in the newest campaign that fits. software: versions by name
    that the job will run on. simulated: ask simulated campaigns, and only them."""

    model: str
    cluster: str
    nodes: Whole
    global_batch_size: Whole | None = None
    workload: str | None = None
    software: Mapping[str, str] = field(default_factory=dict)
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class CampaignRecords:
    """campaigns: newest first. trials_of: all trials of a campaign, by its id."""

    campaigns: Sequence[Campaign]
    trials_of: Callable[[str], Sequence[Trial]]

    def only(self, *, simulated: bool) -> CampaignRecords:
        """Those of the simulated campaigns, or of the others; none whose model is unknown."""
        kept = [one for one in self.campaigns if one.simulated is simulated and one.spec.model.known]
        return replace(self, campaigns=kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A campaign that an answer rests on, with its own best plan. tokens_per_s: of the whole job. confirmed: measured
    twice. differs: sentences on differences from the question."""

    campaign: str
    trial: int
    plan_key: str
    model: str
    cluster: str
    nodes: int
    tokens_per_s: Estimate
    confirmed: bool
    software: Mapping[str, str]
    differs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BestKnown:
    """The best known plan. measured: this plan ran there; otherwise tokens_per_s, of the whole job, is predicted with
    its 95 % interval, and p_fits the probability that the plan fits the devices (null for a plan that ran).
    sources: the campaigns that it rests on, the source of the plan first. measured_with: the program that this first
    source was measured with. environment: the same for a job script, in letters, digits and _.:/- only: the plan, its
    knobs as MESHTUNE_KNOB_NAME, and the variables that knobs set."""

    model: str
    cluster: str
    nodes: int
    standing: Provenance
    measured: bool
    plan: Plan
    plan_key: str
    devices: int
    global_batch_size: int
    workload: str
    measured_with: MeasuredWith
    tokens_per_s: Estimate
    p_fits: float | None
    reason: str
    sources: tuple[Source, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Target:
    """The model and the cluster of a question; the cluster has the number of nodes asked for."""

    model: ModelSpec
    cluster: ClusterSpec


@dataclass(frozen=True, slots=True)
class Advice:
    """The recommendation of one campaign. choice: measured; recommended for the `reason`."""

    campaign: Campaign
    choice: Ranked
    reason: str

    @property
    def software(self) -> Mapping[str, str]:
        """The versions that the choice was measured on."""
        return self.choice.measurement.software

    def source(self, differs: Sequence[str] = ()) -> Source:
        spec = self.campaign.spec
        return view_of(
            Source,
            self,
            self.choice,
            self.choice.trial,
            campaign=self.campaign.id,
            trial=self.choice.measured_by.number,
            model=spec.model.name,
            cluster=spec.cluster.name,
            nodes=sized(spec.cluster, self.choice.trial.plan).nodes,
            differs=tuple(differs),
        )


def best_known(
    question: LaunchQuestion,
    standing: Provenance,
    plan: Plan,
    advice: Advice,
    sources: tuple[Source, ...],
    reason: str,
    **numbers: Any,
) -> BestKnown:
    """The answer with its derived fields. A plan of a simulated campaign is never measured. advice: that it rests on
    first. numbers: tokens_per_s and p_fits."""
    standing = Provenance.SIMULATED if question.simulated else standing
    measured = standing is Provenance.MEASURED
    variables, untold = knob_environment(advice.campaign.spec.knobs, plan)
    left_out = f"; {', '.join(untold)} left out of the environment: no job script is given such values" * bool(untold)
    values = plan.axes_as_dict() | {
        "global_batch_size": plan.global_batch_size,
        "measured": measured,
        "source": f"{sources[0].campaign}/{sources[0].trial}",
    }
    return view_of(
        BestKnown,
        plan,
        question,
        standing=standing,
        measured=measured,
        plan=plan,
        plan_key=plan.key,
        devices=plan.world_size,
        workload=advice.campaign.spec.workload.kind,
        measured_with=measured_with(advice.campaign.spec, advice.choice.measurement),
        reason=reason + left_out,
        sources=sources,
        environment={
            f"MESHTUNE_{name.upper()}": str(int(value) if isinstance(value, bool) else value)
            for name, value in values.items()
        }
        | variables,
        **numbers,
    )


def best_measured(question: LaunchQuestion, records: CampaignRecords) -> BestKnown | None:
    """The best plan that was measured for just this; None where none was. Raises NothingKnown for unknown names."""
    records = records.only(simulated=question.simulated)
    target = target_of(question, records.campaigns)
    fitting = (
        campaign
        for campaign in records.campaigns
        if campaign.spec.model == target.model
        and campaign.spec.cluster.name == target.cluster.name
        and target.cluster.nodes in node_counts_of(campaign.spec)
        and alike(campaign.spec.cluster, target.cluster)
        and question.workload in (None, campaign.spec.workload.kind)
    )
    advices = [
        advice
        for campaign in islice(fitting, MAX_READ)
        if (advice := advice_of(campaign, records.trials_of(campaign.id), question.nodes)) is not None
        if question.global_batch_size in (None, advice.choice.trial.plan.global_batch_size)
        if not other_software(question.software, advice.software)
    ]
    if not advices:
        return None
    rivals = [advice for advice in advices if _same_ground(advice, advices[0])]
    best = max(rivals, key=lambda advice: (advice.choice.confirmed, advice.choice.tokens_per_s.low))
    reasons = [best.reason]
    if len(rivals) > 1:
        reasons.append(f"the surest of {len(rivals)} campaigns")
    if older := len(advices) - len(rivals):
        campaigns = "an older campaign" if older == 1 else f"{older} older campaigns"
        reasons.append(f"{campaigns} with another batch, training code or software than the newest left out")
    return best_known(
        question,
        Provenance.MEASURED,
        best.choice.trial.plan,
        best,
        tokens_per_s=best.choice.tokens_per_s,
        p_fits=None,
        reason="; ".join(reasons),
        sources=(best.source(),),
    )


def target_of(question: LaunchQuestion, campaigns: Sequence[Campaign]) -> Target:
    """The values of the names: in the newest campaign that uses them, else among the presets. Raises NothingKnown,
    also for more nodes than a cluster may have."""
    models = {one.spec.model.name: one.spec.model for one in reversed(campaigns)}
    clusters = {one.spec.cluster.name: one.spec.cluster for one in reversed(campaigns)}
    model = _named("model", question.model, models, model_presets(), ModelSpec)
    cluster = _named("cluster", question.cluster, clusters, cluster_presets(), ClusterSpec)
    with raising(NothingKnown, "no cluster is that large", InvalidValue):
        return Target(model, replace(cluster, nodes=question.nodes))


def advice_of(campaign: Campaign, trials: Sequence[Trial], nodes: int) -> Advice | None:
    """The recommendation for so many nodes, which the campaign's jobs may have; None where it measured nothing there
    that it would recommend."""
    spec, ranking = campaign.spec, rank(campaign, trials)
    devices = nodes * spec.cluster.devices_per_node
    choice = recommend_among(spec, [one for one in ranking if one.trial.plan.world_size == devices])
    return None if choice.choice is None else Advice(campaign, choice.choice, choice.reason)


def alike(cluster: ClusterSpec, other: ClusterSpec) -> bool:
    """True for nodes of the same kind. Links are not compared: probing a cluster again gives slightly other ones."""
    own, theirs = cluster.device, other.device
    same_device = (own.name, own.kind, own.memory_bytes) == (theirs.name, theirs.kind, theirs.memory_bytes)
    return same_device and cluster.devices_per_node == other.devices_per_node


def other_software(wanted: Mapping[str, str], present: Mapping[str, str]) -> list[str]:
    """Sentences for the versions that are not those asked for, by major and minor number."""
    return [
        f"{name} {present.get(name, 'unknown')}, asked for {version}"
        for name, version in wanted.items()
        if name not in present or release_of(present[name]) != release_of(version)
    ]


def software_versions(text: str) -> dict[str, str]:
    """The versions in `name=version,name=version`. Raises InvalidValue."""
    versions: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, _, version = part.partition("=")
        if not name or not version:
            raise InvalidValue([Problem("software", f"must be name=version, separated by commas, not {part!r}")])
        versions[name] = version
    return versions


def environment_text(best: BestKnown) -> str:
    """One NAME=value a line, for a shell or a job script."""
    return "".join(f"{name}={value}\n" for name, value in best.environment.items())


def _named(seam: str, name: str, used: Mapping[str, Any], presets: Mapping[str, Mapping[str, Any]], kind: type) -> Any:
    if name in used:
        return used[name]
    if name in presets:
        return read_value(kind, described(presets[name]))
    raise NothingKnown(f"no campaign and no preset has a {seam} {name!r}; {did_you_mean(name, {*used, *presets})}")


def _same_ground(advice: Advice, newest: Advice) -> bool:
    """True when the speeds of the two can be compared, and the older one's still holds."""
    own, other = advice.campaign.spec, newest.campaign.spec
    same_code = workload_of(own).framework == workload_of(other).framework and own.workload.kind == other.workload.kind
    batches = [one.choice.trial.plan.global_batch_size for one in (advice, newest)]
    same_batch = own.global_batch_size == other.global_batch_size or batches[0] == batches[1]
    return same_code and same_batch and release_doubt(advice.software, newest.software) < OTHER_RELEASE
