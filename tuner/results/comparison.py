"""Campaigns side by side, such as of one model at several node counts: what each found, and how it scales.

Efficiencies are per device, of the recommended plans, against the campaign with the fewest devices of the same kind:
one model, device, training code and number format, and simulated or not. Between kinds there is none. Beside them
stand the predictions of that campaign's calibrated physics for the others, scaled to pass through its recommended
plan, so that common errors cancel. And two to five trials of one campaign side by side, or two settings of one or two
campaigns with all that differs. Pure: campaigns and trials in, a value out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshtune.runners.documents import plain, walk
from meshtune.runners.hardware import kinds_text, same_hardware
from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.changes import Change, Moves, plan_changes
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.knobs import KnobSet, sized
from meshtune.search_spaces.physics.training import missing
from meshtune.tuner.campaign.campaign import Campaign, CampaignState
from meshtune.tuner.campaign.node_kinds import reference_of
from meshtune.tuner.campaign.objective import Objective, yardstick_of
from meshtune.tuner.campaign.spec import CampaignSpec, space_of
from meshtune.tuner.campaign.trial import Origin, PartTime, Trial, TrialState, first_runs, time_by_part
from meshtune.tuner.campaign.units import ONE, Estimate, percent
from meshtune.tuner.prediction.predict import Basis, Speed, check_same, foresee, learn, training_of
from meshtune.tuner.prediction.projection import scaled
from meshtune.tuner.results.quantities import TrialBrief, numbers_of, shown_in, trial_briefs
from meshtune.tuner.results.ranking import Ranked, rank, trial_gain
from meshtune.tuner.results.record import Record
from meshtune.tuner.results.sizes import on_nodes
from meshtune.tuner.results.views import ObjectiveView, objective_view, view_of
from meshtune.tuner.results.winners import winners_of

# What must be the same for speeds to be compared, in words, and how it is shown.
_ALIKE: Sequence[tuple[str, Callable[[CampaignSpec], object]]] = (
    ("model", lambda spec: spec.model.name),
    ("device", lambda spec: spec.cluster.device.name),
    ("workload", lambda spec: spec.workload.kind),
    ("number format", lambda spec: training_of(spec).framework.dtype),
    ("objective", lambda spec: str(spec.objective)),
    ("global batch", lambda spec: spec.global_batch_size or "free"),
)
FEWEST, MOST = 2, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSetting:
    """A plan of a campaign. tokens_per_s: of all devices. nodes: of its job. interval_known: as of RankedView."""

    trial: int
    plan_key: str
    nodes: int
    tokens_per_s: Estimate
    tokens_per_s_per_device: Estimate
    interval_known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """The best objective by first runs once so many of them had ended, with the device-hours that these took."""

    done: int
    device_hours: float
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Projected:
    """The prediction of the smallest campaign of the kind, by its calibrated physics, for the plan that it predicts
    best here, scaled to pass through what it recommends, which stands for itself. efficiency: against that; null where
    it is alone."""

    tokens_per_s: Estimate
    efficiency: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedCampaign:
    """One campaign. simulated: no device measured its numbers. nodes, devices: of the recommended plan's job, where a
    knob sizes the jobs. fastest_once, fastest_confirmed, recommended: as of BestView; null where there is none.
    efficiency: speed per device of the recommended plan over that of the campaign `efficiency_against`, the smallest
    of its kind; null where no other campaign is of its kind. projected: null where nothing can be predicted, for a
    reason among the notes. speed_unit: of tokens_per_s; samples/s without a model. progress: where the best changed,
    and the end."""

    id: str
    name: str
    state: CampaignState
    simulated: bool
    nodes: int
    devices: int
    model: str
    speed_unit: str
    cluster: str
    fastest_once: ComparedSetting | None
    fastest_confirmed: ComparedSetting | None
    recommended: ComparedSetting | None
    efficiency: Estimate | None
    efficiency_against: str | None
    projected: Projected | None
    progress: tuple[Reached, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Campaigns in the order of devices. objective: of the smallest campaign that measured something. notes: sentences
    on what keeps the campaigns from being compared as they are."""

    objective: Objective
    campaigns: tuple[ComparedCampaign, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """campaign: as one of jobs of its recommended plan's size."""

    campaign: Campaign
    trials: Sequence[Trial]
    fastest_once: ComparedSetting | None
    fastest_confirmed: ComparedSetting | None
    recommended: ComparedSetting | None

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal for campaigns whose speeds of a device tell how one training scales."""
        spec = self.campaign.spec
        # Where the model is unknown, only the same program's speeds tell how one training scales.
        model, device = spec.model if spec.model.known else str(spec.workload), spec.cluster.device.name
        return model, device, spec.workload.kind, training_of(spec).framework.dtype, self.campaign.simulated


def compare(given: Sequence[tuple[Campaign, Sequence[Trial]]]) -> Comparison:
    entries = [_entry(campaign, trials) for campaign, trials in given]
    entries.sort(key=lambda one: (one.campaign.spec.cluster.devices, one.campaign.created_at))
    kinds: dict[tuple[object, ...], list[_Entry]] = {}
    for one in entries:
        kinds.setdefault(one.kind, []).append(one)
    by_id, notes = dict[str, ComparedCampaign](), list[str]()
    for alike in kinds.values():
        compared, remarks = _of_kind(alike)
        by_id |= {one.id: one for one in compared}
        notes += remarks
    base = _smallest(entries).campaign
    campaigns = [one.campaign for one in entries]
    return Comparison(
        objective=base.spec.objective,
        campaigns=tuple(by_id[campaign.id] for campaign in campaigns),
        notes=(*_simulated(campaigns), *_differences(campaigns, base), *_hardware_notes(entries), *notes),
    )


def _smallest(entries: Sequence[_Entry]) -> _Entry:
    """The first that has a recommended plan; the first of all where none has."""
    return next((one for one in entries if one.recommended is not None), entries[0])


def _of_kind(entries: Sequence[_Entry]) -> tuple[list[ComparedCampaign], list[str]]:
    """Campaigns that scale one training, and sentences on them."""
    start = _smallest(entries)
    base = start.campaign
    projections, notes = _projections([one.campaign for one in entries], start)
    compared = []
    for one, projected in zip(entries, projections, strict=True):
        efficiency = None
        if len(entries) > 1 and one.recommended is not None and start.recommended is not None:
            own, other = one.recommended, start.recommended
            efficiency = ONE if one is start else own.tokens_per_s_per_device.over(other.tokens_per_s_per_device)
            if efficiency.value > 1:
                beside = f"{one.campaign.id} has {percent(efficiency.value)} of the speed per device of {base.id}"
                above = f"above 100 %, as the plans are not alike ({other.plan_key} there, {own.plan_key} here)"
                notes.append(f"{beside}: {above if efficiency.low > 1 else 'not surely more, their intervals overlap'}")
        campaign, cluster = one.campaign, one.campaign.spec.cluster
        compared.append(
            view_of(
                ComparedCampaign,
                one,
                campaign,
                cluster,
                name=campaign.spec.name,
                model=campaign.spec.model.name,
                speed_unit=campaign.spec.model.worded("tokens/s"),
                cluster=cluster.name,
                efficiency=efficiency,
                efficiency_against=None if efficiency is None else base.id,
                projected=projected,
                progress=_progress(campaign.spec, one.trials),
            )
        )
    return compared, notes


def _progress(spec: CampaignSpec, trials: Sequence[Trial]) -> tuple[Reached, ...]:
    reached, device_s = list[Reached](), 0.0
    over = (trial for trial in first_runs(trials) if trial.verdict is not None)
    ended = sorted(over, key=lambda trial: trial.last.finished_at or trial.last.planned_at)
    best = yardstick_of(spec).best_so_far(trial.measurement for trial in ended)
    for done, (trial, value) in enumerate(zip(ended, best, strict=True), start=1):
        device_s += trial.device_s
        if value is not None and (not reached or value != reached[-1].value or done == len(ended)):
            reached.append(Reached(done=done, device_hours=device_s / 3600.0, value=value))
    return tuple(reached)


def _entry(campaign: Campaign, trials: Sequence[Trial]) -> _Entry:
    winners = winners_of(campaign.spec, rank(campaign, trials))
    recommended, own = _setting(campaign, winners.recommended), campaign
    if recommended is not None and KnobSet(campaign.spec.knobs).size is not None:
        own = replace(campaign, spec=on_nodes(campaign.spec, recommended.nodes))
    return _Entry(
        campaign=own,
        trials=trials,
        fastest_once=_setting(campaign, winners.fastest_once),
        fastest_confirmed=_setting(campaign, winners.fastest_confirmed),
        recommended=recommended,
    )


def _setting(campaign: Campaign, entry: Ranked | None) -> ComparedSetting | None:
    if entry is None:
        return None
    return view_of(
        ComparedSetting,
        entry,
        entry.trial,
        trial=entry.trial.number,
        nodes=sized(campaign.spec.cluster, entry.trial.plan).nodes,
        tokens_per_s_per_device=entry.tokens_per_s.times(1 / entry.measurement.devices),
    )


def _projections(campaigns: Sequence[Campaign], base: _Entry) -> tuple[list[Projected | None], list[str]]:
    """By campaign, and why there is none for some. They pass through the recommended plan of the base: each is
    scaled by what that was measured at over what is predicted for it."""
    own = base.campaign
    try:
        basis = learn(own.label, own.spec, base.trials)
        start = _predicted(own, basis)
    except InvalidValue as error:
        return [None] * len(campaigns), [f"nothing can be projected from {own.label}: {error}"]
    assert start is not None  # nothing is missing, else nothing could have been learnt
    if (anchor := base.recommended) is not None:
        plan = next(trial.plan for trial in base.trials if trial.number == anchor.trial)
        expected = foresee(training_of(own.spec), columns_of([plan]), basis.calibration).of(0, plan).speed
        assert expected is not None
        factor, reference = anchor.tokens_per_s.value / expected.tokens_per_s.value, anchor.tokens_per_s.value
    else:
        factor, reference = 1.0, start.tokens_per_s.value
    projections: list[Projected | None] = []
    notes: list[str] = []
    for campaign in campaigns:
        try:
            check_same(own.spec, campaign.spec)
            speed = _predicted(campaign, basis)
        except InvalidValue as error:
            projections.append(None)
            notes.append(f"{campaign.label} cannot be projected from {own.label}: {error}")
            continue
        if speed is None:
            projections.append(None)
            continue
        # The interval is of this prediction alone, with and without the factor, as in `tuner.prediction.scaling`.
        tokens_per_s = scaled(speed.tokens_per_s, factor)
        if campaign is own and anchor is not None:
            tokens_per_s = anchor.tokens_per_s
        share = own.spec.cluster.devices / campaign.spec.cluster.devices / reference
        known = ONE if campaign is own else tokens_per_s.times(share)
        efficiency = known if len(campaigns) > 1 else None
        projections.append(Projected(tokens_per_s=tokens_per_s, efficiency=efficiency))
    return projections, notes


def _predicted(campaign: Campaign, basis: Basis) -> Speed | None:
    """The speed of the plan predicted best. Raises InvalidValue where facts are missing."""
    training = training_of(campaign.spec)
    if problems := missing(training):
        raise InvalidValue(problems)
    space = space_of(campaign.spec)
    outlook = foresee(training, space.columns, basis.calibration)
    first = int(outlook.best(1)[0])
    return outlook.of(first, space[first]).speed


def _hardware_notes(entries: Sequence[_Entry | Record]) -> list[str]:
    """Sentences on campaigns that were measured on other hardware than the first one whose hardware is known."""
    real = [one for one in entries if not one.campaign.simulated]
    known = [(one.campaign, own) for one in real if (own := reference_of(one.trials)) is not None]
    return [
        f"{one.id} was measured on {kinds_text(own.hardware, beside=base.hardware)}, "
        f"{known[0][0].id} on {kinds_text(base.hardware, beside=own.hardware)}"
        for one, own in known[1:]
        if not same_hardware(own.hardware, (base := known[0][1]).hardware)
    ]


def _simulated(campaigns: Sequence[Campaign]) -> list[str]:
    return [f"{one.id} is simulated: no device measured its numbers" for one in campaigns if one.simulated]


def _differences(campaigns: Sequence[Campaign], base: Campaign) -> list[str]:
    """Sentences on what is not as in `base`."""
    notes = []
    for one in campaigns:
        pairs = [(words, of(one.spec), of(base.spec)) for words, of in _ALIKE]
        differ = [f"{words} {own}, not {other}" for words, own, other in pairs if own != other]
        if one.spec.model.name == base.spec.model.name and one.spec.model != base.spec.model:
            differ.append(f"{one.spec.model.name} in another shape")
        if differ:
            notes.append(f"{one.id} is not as {base.id}: {'; '.join(differ)}")
    return notes


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A field of the plan, or a knob, that is not alike. values: in the order of the trials; null where a knob is
    inactive."""

    name: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTrial:
    """One trial. objective, step_time_s, tokens_per_s: of this run alone; null where it measured nothing. relative: its
    speed over that of the first trial that measured something, as the objective compares speeds; 1 for that one, null
    for a run of another round, at another time. peak_memory_bytes: of tensors on the most loaded rank. parts: where the
    time of a profiled step went; empty where it was not profiled."""

    trial: int
    plan_key: str
    origin: Origin
    state: TrialState
    verdict: Verdict | None
    objective: ObjectiveView | None
    step_time_s: float | None
    tokens_per_s: float | None
    relative: float | None
    mfu: float | None
    peak_memory_bytes: int | None
    parts: tuple[PartTime, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialComparison:
    """Trials in the order asked for. simulated: no device measured the numbers. differences: in the order of a plan's
    fields, then of knobs; empty where the trials ran one plan."""

    campaign: str
    simulated: bool
    differences: tuple[Difference, ...]
    trials: tuple[ComparedTrial, ...]


_OF_TRIAL = shown_in(ComparedTrial, but=["objective"])


def side_by_side(campaign: Campaign, trials: Sequence[Trial]) -> TrialComparison:
    """trials: complete ones, with their profiles."""
    settings: list[dict[str, Any]] = [
        {**plan.axes_as_dict(), "global_batch_size": plan.global_batch_size, **plan.knobs}
        for plan in (trial.plan for trial in trials)
    ]
    names = list(dict.fromkeys(name for setting in settings for name in setting))
    rows = [Difference(name=name, values=tuple(setting.get(name) for setting in settings)) for name in names]
    firsts = [trial for trial in trials if trial.measurement is not None][:1]
    yardstick, against = yardstick_of(campaign.spec), {trial.round: trial for trial in firsts}
    compared = [
        view_of(
            ComparedTrial,
            trial,
            trial=trial.number,
            objective=None if run is None else objective_view(campaign.spec, yardstick.reached(run)),
            relative=None if gain is None else 1 + gain,
            parts=() if run is None else time_by_part(run.profile),
            **numbers_of(yardstick, run, _OF_TRIAL),
        )
        for trial, run in ((trial, trial.measurement) for trial in trials)
        for gain in [trial_gain(campaign.spec.objective, trial, against)]
    ]
    return TrialComparison(
        campaign=campaign.id,
        simulated=campaign.simulated,
        differences=tuple(row for row in rows if any(value != row.values[0] for value in row.values)),
        trials=tuple(compared),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """Two trials, in the order asked for. trials: null where a campaign recommends none. parts: of ComparedTrial, of a
    run of each plan. spec: what the specs of the campaigns differ in, by path. plan: what the plans differ in. ratio:
    the second plan's speed over the first's, over all runs: of one campaign as its objective compares speeds, of two
    per device; null where one was not measured, or notes say what keeps the two from being compared."""

    campaigns: tuple[str, ...]
    trials: tuple[TrialBrief | None, ...]
    parts: tuple[tuple[PartTime, ...], ...]
    spec: Moves
    plan: Moves
    ratio: Estimate | None
    notes: tuple[str, ...]


def diff(*meant: tuple[Record, Trial | None]) -> Diff:
    """Two trials; None stands for the one that the campaign recommends."""
    campaigns = [record.campaign for record, _ in meant]
    shown, entries = list[TrialBrief | None](), list[Ranked | None]()
    for record, trial in meant:
        ranking = rank(record.campaign, record.trials)
        if trial is None and (best := winners_of(record.campaign.spec, ranking).recommended) is not None:
            trial = best.trial
        shown += [None] if trial is None else trial_briefs(record.campaign, [trial], record.trials)
        entries.append(next((one for one in ranking if trial is not None and one.trial.plan == trial.plan), None))
    values = (walk("", plain(campaign.spec), 0) for campaign in campaigns)
    before, after = ({path: value for path, value, _ in each if not isinstance(value, dict | list)} for each in values)
    changes = [Change(name, before.get(name), after.get(name)) for name in {**before, **after}]
    simulated, apart = _simulated(campaigns), _differences(campaigns, campaigns[0])
    without = (one.id for one, own in zip(campaigns, shown, strict=True) if own is None)
    apart += [f"{id} has no plan to compare: no trial has a speed" for id in without]
    apart += _hardware_notes([record for record, _ in meant])
    (one, other), ratio = entries, None
    if one is not None and other is not None and not apart and len(simulated) != 1:
        base, speed = (each.tokens_per_s.times(1 / each.measurement.devices) for each in (one, other))
        ratio = other.over(one).as_ratio() if campaigns[0].id == campaigns[1].id else speed.over(base)
    return Diff(
        campaigns=tuple(campaign.id for campaign in campaigns),
        trials=tuple(shown),
        parts=tuple(() if one is None else time_by_part(one.measurement.profile) for one in entries),
        spec=tuple(change for change in changes if change.differs),
        plan=() if None in shown else plan_changes(*(one.plan for one in shown if one)),
        ratio=ratio,
        notes=tuple(dict.fromkeys([*apart, *simulated])),
    )
