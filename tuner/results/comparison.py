"""Campaigns of one model side by side, such as at several node counts: the best of each, and how it scales.

Efficiencies are per device, against the campaign with the fewest devices that measured something. Beside them stand the
predictions of that campaign's calibrated physics for the others, compared with its prediction for itself, so that
common errors cancel. Pure: campaigns and trials in, a value out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from meshtune.runners.hardware import kinds_text, same_hardware
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.knobs import KnobSet, sized
from meshtune.search_spaces.physics.training import missing
from meshtune.tuner.campaign.campaign import Campaign, CampaignState
from meshtune.tuner.campaign.node_kinds import reference_of
from meshtune.tuner.campaign.objective import Objective
from meshtune.tuner.campaign.spec import CampaignSpec, space_of
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.campaign.units import ONE, Estimate
from meshtune.tuner.prediction.predict import Basis, Speed, check_same, foresee, learn, training_of
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.results.sizes import on_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best trial of a campaign that was measured on its baseline's hardware, by the campaign's own objective.
    tokens_per_s: of all its devices. nodes: of its job."""

    trial: int
    plan_key: str
    nodes: int
    tokens_per_s: Estimate
    tokens_per_s_per_device: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Projected:
    """The prediction of the smallest campaign's calibrated physics for the best plan here; never measured. efficiency:
    against its prediction for the best plan there."""

    tokens_per_s: Estimate
    efficiency: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedCampaign:
    """One campaign. nodes, devices: of the best plan's job, where a knob sizes the jobs. best: as measured; null where
    nothing was. efficiency: speed per device over that of the smallest campaign that measured something. projected:
    null where nothing can be predicted, for a reason among the notes."""

    id: str
    name: str
    state: CampaignState
    nodes: int
    devices: int
    model: str
    cluster: str
    best: Best | None
    efficiency: Estimate | None
    projected: Projected | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Campaigns in the order of devices. objective: of the smallest campaign that measured something. notes: sentences
    on what keeps the campaigns from being compared as they are."""

    objective: Objective
    campaigns: tuple[ComparedCampaign, ...]
    notes: tuple[str, ...]


def compare(entries: Sequence[tuple[Campaign, Sequence[Trial]]]) -> Comparison:
    """The comparison of at least one campaign with its trials."""
    found = [(_of_size(campaign, best := _best(campaign, trials)), trials, best) for campaign, trials in entries]
    found.sort(key=lambda one: (one[0].spec.cluster.devices, one[0].created_at))
    entries, bests = [(campaign, trials) for campaign, trials, _ in found], [best for _, _, best in found]
    smallest = next((row for row, best in enumerate(bests) if best is not None), 0)
    base, base_trials = entries[smallest]
    start = bests[smallest]
    campaigns = [campaign for campaign, _ in entries]
    projections, notes = _projections(campaigns, base, base_trials)
    compared = []
    for campaign, best, projected in zip(campaigns, bests, projections, strict=True):
        efficiency = None
        if best is not None and start is not None:
            efficiency = ONE if best is start else best.tokens_per_s_per_device.over(start.tokens_per_s_per_device)
        cluster = campaign.spec.cluster
        compared.append(
            ComparedCampaign(
                id=campaign.id,
                name=campaign.spec.name,
                state=campaign.state,
                nodes=cluster.nodes,
                devices=cluster.devices,
                model=campaign.spec.model.name,
                cluster=cluster.name,
                best=best,
                efficiency=efficiency,
                projected=projected,
            )
        )
    return Comparison(
        objective=base.spec.objective,
        campaigns=tuple(compared),
        notes=(*_differences(campaigns, base), *_hardware_notes(entries), *notes),
    )


def _best(campaign: Campaign, trials: Sequence[Trial]) -> Best | None:
    ranking = rank(campaign, trials)
    first = next((one for one in ranking if not one.other_hardware and not one.unaccepted_numerics), None)
    if first is None:
        return None
    return Best(
        trial=first.trial.number,
        plan_key=first.trial.plan.key,
        nodes=sized(campaign.spec.cluster, first.trial.plan).nodes,
        tokens_per_s=first.tokens_per_s,
        tokens_per_s_per_device=first.tokens_per_s.times(1 / first.measurement.devices),
    )


def _of_size(campaign: Campaign, best: Best | None) -> Campaign:
    """The campaign as one of jobs of its best plan's size, where a knob sizes them."""
    if best is None or KnobSet(campaign.spec.knobs).size is None:
        return campaign
    return replace(campaign, spec=on_nodes(campaign.spec, best.nodes))


def _projections(
    campaigns: Sequence[Campaign], base: Campaign, trials: Sequence[Trial]
) -> tuple[list[Projected | None], list[str]]:
    """By campaign, and why there is none for some."""
    try:
        basis = learn(base.label, base.spec, trials)
        start = _predicted(base, basis)
    except InvalidValue as error:
        return [None] * len(campaigns), [f"nothing can be projected: {error}"]
    assert start is not None  # nothing is missing, else nothing could have been learnt
    found: list[Projected | None] = []
    notes: list[str] = []
    for campaign in campaigns:
        try:
            check_same(base.spec, campaign.spec)
            speed = _predicted(campaign, basis)
        except InvalidValue as error:
            found.append(None)
            notes.append(f"{campaign.label} cannot be projected from {base.label}: {error}")
            continue
        if speed is None:
            found.append(None)
            continue
        # The interval is of this prediction alone, as in `tuner.prediction.scaling`.
        own = speed.tokens_per_s.times(1 / campaign.spec.cluster.devices)
        reference = start.tokens_per_s.value / base.spec.cluster.devices
        efficiency = ONE if campaign is base else own.times(1 / reference)
        found.append(Projected(tokens_per_s=speed.tokens_per_s, efficiency=efficiency))
    return found, notes


def _predicted(campaign: Campaign, basis: Basis) -> Speed | None:
    """The speed of the plan predicted best. Raises InvalidValue where facts are missing."""
    training = training_of(campaign.spec)
    if problems := missing(training):
        raise InvalidValue(problems)
    space = space_of(campaign.spec)
    outlook = foresee(training, space.columns, basis.calibration)
    first = int(outlook.best(1)[0])
    return outlook.of(first, space[first]).speed


# What must be the same for speeds to be compared, in words, and how it is shown.
_ALIKE: Sequence[tuple[str, Callable[[CampaignSpec], object]]] = (
    ("model", lambda spec: spec.model.name),
    ("device", lambda spec: spec.cluster.device.name),
    ("workload", lambda spec: spec.workload.kind),
    ("number format", lambda spec: training_of(spec).framework.dtype),
    ("objective", lambda spec: str(spec.objective)),
    ("global batch", lambda spec: spec.global_batch_size or "free"),
)


def _hardware_notes(entries: Sequence[tuple[Campaign, Sequence[Trial]]]) -> list[str]:
    """Sentences on campaigns that were measured on other hardware than the first one whose hardware is known."""
    known = [(campaign, found) for campaign, trials in entries if (found := reference_of(trials)) is not None]
    return [
        f"{one.id} was measured on {kinds_text(own.hardware, beside=base.hardware)}, "
        f"{known[0][0].id} on {kinds_text(base.hardware, beside=own.hardware)}"
        for one, own in known[1:]
        if not same_hardware(own.hardware, (base := known[0][1]).hardware)
    ]


def _differences(campaigns: Sequence[Campaign], base: Campaign) -> list[str]:
    """Sentences on what is not as in `base`, and on campaigns that no device measured."""
    notes = [f"{one.id} is simulated: no device measured its numbers" for one in campaigns if one.simulated]
    for one in campaigns:
        pairs = [(words, of(one.spec), of(base.spec)) for words, of in _ALIKE]
        differ = [f"{words} {own}, not {other}" for words, own, other in pairs if own != other]
        if one.spec.model.name == base.spec.model.name and one.spec.model != base.spec.model:
            differ.append(f"{one.spec.model.name} in another shape")
        if differ:
            notes.append(f"{one.id} is not as {base.id}: {'; '.join(differ)}")
    return notes
