"""Projects the best plan to where nothing was measured, from the nearest campaigns' best plans, by the physics.

The physics is calibrated by all trials of these neighbours, and its intervals are widened by their differences from the
question (`tuner.search.warm_start` has those doubts). Two plans compete: the nearest campaign's best with dp scaled,
which was run, and the one that is predicted best of all legal ones; the second must be better by more than plans
scatter around the formulas. The answer is marked as a prediction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from math import exp, hypot, log, log2, sqrt

from meshtune.runners.outcome import Verdict
from meshtune.runners.registry import UnknownBackend
from meshtune.search_spaces.checks import InvalidValue, raising
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.physics.constants import Calibration
from meshtune.search_spaces.physics.estimate import estimate
from meshtune.search_spaces.physics.fitting import calibrate
from meshtune.search_spaces.physics.training import Training, missing
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Space, SpaceTooLarge
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.spec import CampaignSpec, space_of
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.campaign.units import Estimate, percent
from meshtune.tuner.prediction.predict import WIDTH, Prediction, foresee, measured_rows, training_of
from meshtune.tuner.results.known_best import (
    MAX_READ,
    Advice,
    BestKnown,
    CampaignRecords,
    LaunchQuestion,
    NothingKnown,
    Provenance,
    Target,
    advice_of,
    alike,
    best_known,
    other_software,
    target_of,
)
from meshtune.tuner.results.sizes import node_counts_of, on_nodes
from meshtune.tuner.search.warm_start import OTHER_RELEASE, distance, doubts

# A projection learns from so many campaigns at the most.
MAX_SOURCES = 3
# How far the nearest may be: doublings of devices, of weights, of sequence length and of the batch, added up: judged.
# Twice the nodes with twice the batch are 2.
MAX_DOUBLINGS = 6.0


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A campaign that measured something nearby. differs: from the question, in words. doubt: by how much the physics'
    error is taken to differ, as the standard deviation of its logarithm. doublings: how far apart in scale."""

    advice: Advice
    trials: Sequence[Trial]
    differs: tuple[str, ...]
    doubt: float
    doublings: float

    @property
    def training(self) -> Training:
        """Of the whole cluster, whatever sizes the jobs have: plans say their own."""
        return training_of(self.advice.campaign.spec)


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """What an answer is projected from: at least one source, the nearest first. spec: of the nearest, moved to what was
    asked for."""

    question: LaunchQuestion
    sources: Sequence[Neighbour]
    spec: CampaignSpec

    @property
    def space(self) -> Space:
        """The legal plans of `spec`, not enumerated yet. Raises NothingKnown."""
        words = f"nothing was measured for {_asked(self.spec)}, and it cannot be projected"
        with raising(NothingKnown, words, SpaceTooLarge, InvalidValue):
            return space_of(self.spec)


def best_projected(question: LaunchQuestion, records: CampaignRecords) -> BestKnown:
    """The plan to take where none was measured for just this. Raises NothingKnown, saying how far the nearest is."""
    return project(neighbourhood(question, records))


def neighbourhood(question: LaunchQuestion, records: CampaignRecords) -> Neighbourhood:
    """What is near, which reads the trials of some campaigns. Raises NothingKnown, saying how far the nearest is."""
    records = records.only(simulated=question.simulated)
    target = target_of(question, records.campaigns)
    sources = _nearest(question, target, records)
    spec = _moved(sources[0].advice.campaign.spec, question, target)
    if problems := missing(training_of(spec)):
        unknown = "; ".join(map(str, problems))
        raise NothingKnown(f"nothing was measured for this, and it cannot be projected: {unknown}")
    return Neighbourhood(question, sources, spec)


def project(near: Neighbourhood) -> BestKnown:
    """The projection, of values alone. Raises NothingKnown where no plan is legal."""
    question, sources, spec = near.question, near.sources, near.spec
    nearest = sources[0]
    calibration = _calibrated(sources)
    knobs = "; no effect of the knobs is predicted" if any(knob.way != "size" for knob in spec.knobs) else ""
    campaigns = "1 campaign" if len(sources) == 1 else f"{len(sources)} campaigns"
    plan, prediction, why = _choose(nearest.advice.choice.trial.plan, spec, near.space, calibration)
    assert prediction.speed is not None  # nothing is missing
    speed = prediction.speed.tokens_per_s
    log_width = hypot(log(speed.high / speed.value), WIDTH * nearest.doubt)
    return best_known(
        question,
        Provenance.PROJECTED,
        plan,
        nearest.advice,
        tokens_per_s=Estimate.around(speed.value, exp(log_width)),
        p_fits=prediction.p_fits,
        reason=f"not measured: {why}; {nearest.advice.campaign.label} has {', '.join(nearest.differs)}; the physics is "
        f"calibrated by {calibration.times} step times of {campaigns}{knobs}",
        sources=tuple(one.advice.source(one.differs) for one in sources),
    )


def _nearest(question: LaunchQuestion, target: Target, records: CampaignRecords) -> list[Neighbour]:
    """The nearest first, and what shares its training code; at least one. Raises NothingKnown."""
    device = target.cluster.device.name
    around = list(islice(_around(question, target, records), MAX_READ))
    near = sorted(around, key=lambda one: (one.doubt, one.doublings))
    if not near:
        measured = sorted({one.spec.cluster.device.name for one in records.campaigns})
        code = "" if question.workload is None else f" with {question.workload}"
        raise NothingKnown(f"nothing was measured on {device}{code}; measured: {', '.join(measured) or 'nothing'}")
    within = [one for one in near if one.doublings <= MAX_DOUBLINGS]
    if not within:
        least = min(near, key=lambda one: one.doublings)
        raise NothingKnown(
            f"nothing near was measured: the nearest, {least.advice.campaign.id}, has {', '.join(least.differs)}: "
            f"{least.doublings:.1f} doublings away, more than {MAX_DOUBLINGS:g}"
        )
    framework = within[0].training.framework
    return [one for one in within if one.training.framework == framework][:MAX_SOURCES]


def _around(question: LaunchQuestion, target: Target, records: CampaignRecords) -> Iterator[Neighbour]:
    """The campaigns on the device that have a best plan, the nearest specs first."""
    device, workload = target.cluster.device, question.workload
    specs: list[tuple[float, float, Campaign, int]] = []
    for campaign in records.campaigns:
        spec = campaign.spec
        theirs = spec.cluster.device
        if (theirs.name, theirs.kind) != (device.name, device.kind) or workload not in (None, spec.workload.kind):
            continue
        moved = _moved(spec, question, target)
        with suppress(InvalidValue, UnknownBackend):  # written for a meshtune that knew its workload
            for nodes in node_counts_of(spec):
                own = on_nodes(spec, nodes)
                far = distance(training_of(moved), training_of(own))
                specs.append((hypot(*doubts(moved, own)), far, campaign, nodes))
    seen = set[str]()
    for doubt, far, campaign, nodes in sorted(specs, key=lambda entry: entry[:2]):
        # Of a campaign with several sizes the nearest one that has an answer.
        if campaign.id in seen:
            continue
        trials = records.trials_of(campaign.id)
        advice = advice_of(campaign, trials, nodes)
        if advice is None:
            continue
        seen.add(campaign.id)
        own = on_nodes(campaign.spec, nodes)
        # Beside what follows from the two specs: what the best plan ran on, and its batch.
        batch = advice.choice.trial.plan.global_batch_size
        asked = question.global_batch_size or batch
        software = other_software(question.software, advice.software)
        other_batch = [f"global batch {batch}, asked for {asked}"] if batch != asked else []
        yield Neighbour(
            advice=advice,
            trials=trials,
            differs=(*_differences(own, _moved(own, question, target)), *other_batch, *software),
            doubt=hypot(doubt, OTHER_RELEASE if software else 0.0),
            doublings=far + abs(log2(asked / batch)),
        )


def _moved(spec: CampaignSpec, question: LaunchQuestion, target: Target) -> CampaignSpec:
    """The spec of a campaign for what was asked. Its batch stays where none was asked for: training does not change."""
    batch = question.global_batch_size or spec.global_batch_size
    moved = replace(spec, model=target.model, cluster=target.cluster, global_batch_size=batch)
    return on_nodes(moved, target.cluster.nodes)


def _differences(spec: CampaignSpec, asked: CampaignSpec) -> list[str]:
    notes = []
    if spec.model != asked.model:
        same = spec.model.name == asked.model.name
        notes.append(f"another model {spec.model.name}" if same else f"{spec.model.name}, asked for {asked.model.name}")
    if spec.cluster.name != asked.cluster.name or not alike(spec.cluster, asked.cluster):
        own, wanted = (f"{one.name} ({one.devices_per_node} devices a node)" for one in (spec.cluster, asked.cluster))
        notes.append(f"{own}, asked for {wanted}")
    if spec.cluster.nodes != asked.cluster.nodes:
        notes.append(f"{spec.cluster.nodes} nodes, asked for {asked.cluster.nodes}")
    return notes


def _calibrated(sources: Sequence[Neighbour]) -> Calibration:
    """The calibration by all trials of the sources that can be compared with the physics."""
    observed = []
    for source in (one for one in sources if not missing(one.training)):
        taught = [one for one in source.trials if one.measurement is not None or one.verdict is Verdict.OOM]
        expected = estimate(source.training, columns_of([one.plan for one in taught]))
        observed.append((expected, measured_rows(taught)))
    return calibrate(observed)


def _choose(known: Plan, spec: CampaignSpec, space: Space, calibration: Calibration) -> tuple[Plan, Prediction, str]:
    """The plan, its prediction and why: the known one with dp scaled, or a clearly better one. Raises NothingKnown."""
    if len(space) == 0:
        raise NothingKnown(f"nothing was measured for {_asked(spec)}, and no plan is legal there")
    outlook = foresee(training_of(spec), space.columns, calibration)
    row = int(outlook.best(1)[0])
    # What is predicted is of the layout alone; the knobs are the known plan's, as far as the layout has them.
    best = outlook.of(row, space.adopted(replace(space[row], knobs=known.knobs)))
    stretched = _stretched(known, space)
    if stretched is None:
        return best.plan, best, f"{known.key} is not legal there, this is predicted best of {len(space)} legal plans"
    own = foresee(training_of(spec), columns_of([stretched]), calibration).of(0, stretched)
    # What is wrong with the constants is wrong for both; what the formulas miss from plan to plan is not.
    margin = exp(WIDTH * sqrt(2) * calibration.time_log_sd)
    gain = best.score / own.score
    if gain > margin:
        fits = f"tokens/s x P(fits), which is {percent(best.p_fits)} against {percent(own.p_fits)}"
        better = f"predicted {gain:.2f} times as good ({fits}) as the nearest measured best there, {stretched.key}"
        return best.plan, best, f"{better}; two predictions scatter by {margin:.2f}"
    scaled = "the same plan" if stretched == known else f"{known.key} with dp {stretched.dp}"
    return stretched, own, f"{scaled}, which the nearest campaign measured best; no plan is predicted clearly better"


def _asked(spec: CampaignSpec) -> str:
    return f"{spec.model.name} on {spec.cluster.devices} devices with global batch {spec.global_batch_size or 'free'}"


def _stretched(known: Plan, space: Space) -> Plan | None:
    """The plan with as many replicas as there are devices for, and its knobs as far as they are active there; None
    where that breaks a rule."""
    kept = {name: value for name, value in known.axes_as_dict().items() if name != "dp"}
    if space.context.global_batch_size is not None:
        del kept["grad_accum_steps"]
    plan = space.adopted(replace(space.complete(**kept), knobs=known.knobs))
    return None if space.explain(plan, ignore_bounds=True) else plan
