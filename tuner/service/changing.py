"""What people change of a campaign while it goes on, or after its end: its details, plans put in by hand, plans that
are measured once more. The process that drives the campaign may be another, and sees it at its next look.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from meshtune.runners.documents import plain, read_value
from meshtune.search_spaces.checks import InvalidValue, Problem
from meshtune.search_spaces.physics.training import missing
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.access.quotas import QuotaExceeded
from meshtune.tuner.campaign.campaign import Campaign, CampaignState
from meshtune.tuner.campaign.changes import (
    CampaignDetails,
    CannotChange,
    changed,
    details_of,
    require_version,
    running_again,
)
from meshtune.tuner.campaign.spec import CampaignSpec, space_of
from meshtune.tuner.campaign.trial import Origin, Trial, first_runs
from meshtune.tuner.prediction.limits import require_room
from meshtune.tuner.prediction.predict import Basis, learn, training_of
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.results.winners import winners_of
from meshtune.tuner.service.calibrations import known_basis, readers_of
from meshtune.tuner.service.quotas import CampaignQuotas
from meshtune.tuner.specs.document import changed_document
from meshtune.tuner.specs.knobs import plan_fields
from meshtune.tuner.store import IllegalMove, Store


class Changing:
    """The changes of one store's campaigns. Methods may be called from any thread."""

    def __init__(self, store: Store, quotas: CampaignQuotas, clock: Callable[[], float]) -> None:
        self._store, self._quotas, self._clock = store, quotas, clock

    def change(
        self, campaign_id: str, patch: object, *, resume: bool = False, versions: Collection[str] = ()
    ) -> Campaign:
        """Lay an RFC 7396 merge patch over the campaign's name, tags, notes, budget and limits of trials. One that is
        complete goes on where its new budget leaves room; resume: so does one that is paused, and any other raises
        IllegalMove. versions: as of `require_version`.

        Raises NotFound, VersionConflict, InvalidValue with every mistake, CannotChange, and InvalidSpec for a patch
        that no spec could hold. Then nothing was written.
        """
        now, basis = self._clock(), Basis()
        if isinstance(patch, Mapping) and "trial" in patch:
            known, ended = self._store.recorded(campaign_id)
            basis = known_basis(self._store, known.spec, readers_of(self._store, known), ended)
            if not missing(training_of(known.spec)):
                basis = learn(known.label, known.spec, ended, basis)

        def laid_over(campaign: Campaign, trials: Sequence[Trial]) -> Campaign:
            require_version(campaign, versions)
            details = read_value(CampaignDetails, changed_document(plain(details_of(campaign)), patch))
            after = changed(campaign, details, trials, now)
            if after.spec.trial != campaign.spec.trial:
                require_room(after.spec, basis)
            if not resume or after.state is CampaignState.RUNNING:
                return after
            if not after.state.may_become(CampaignState.RUNNING):
                raise IllegalMove(f"campaign {campaign_id}", after.state, CampaignState.RUNNING)
            return running_again(after, now)

        return self._store.change_campaign(campaign_id, laid_over, now=now)

    def enqueue(self, campaign_id: str, plan: Plan) -> Trial:
        """Plan a trial of this plan, which is complete and legal (`legal_plan`); it runs before the search's next
        choice.

        Raises NotFound, IllegalMove, AlreadyExists, BudgetSpent, CannotChange, QuotaExceeded, and InvalidValue for the
        baseline.
        """
        campaign = self._store.campaign(campaign_id)
        if plan == campaign.spec.baseline:
            raise InvalidValue([Problem("", f"{plan.key} is the baseline, which runs by itself, before all others")])
        self._require_quota(campaign, 1)
        return self._store.enqueue_trial(campaign_id, plan, now=self._clock())

    def rerun(self, campaign_id: str, number: int) -> Trial:
        """Measure the trial's plan once more, as a second run, by a fresh job. Raises NotFound, IllegalMove,
        CannotChange, QuotaExceeded."""
        plan = self._store.trial(campaign_id, number).plan
        return self._repeat(*self._store.recorded(campaign_id), [plan])[0]

    def revalidate(self, campaign_id: str) -> list[Trial]:
        """As `rerun`, of the recommended plan and the baseline, side by side; where the baseline is recommended, of the
        best other plan that may be."""
        campaign, trials = self._store.recorded(campaign_id)
        ranking = rank(campaign, trials)
        chosen = winners_of(campaign.spec, ranking).recommended
        if chosen is None or chosen.trial.origin is Origin.BASELINE:
            chosen = next((one for one in ranking if one.usable and one.trial.origin is not Origin.BASELINE), chosen)
        plans = [] if chosen is None else [chosen.trial.plan]
        plans += [trial.plan for trial in trials if trial.measurement and trial.origin is Origin.BASELINE]
        return self._repeat(campaign, trials, list(dict.fromkeys(plans)))

    def _repeat(self, campaign: Campaign, trials: Sequence[Trial], plans: list[Plan]) -> list[Trial]:
        measured = {trial.plan for trial in first_runs(trials) if trial.measurement is not None}
        if not plans or not measured.issuperset(plans):
            named = ", ".join(plan.key for plan in plans if plan not in measured)
            reason = f"{named} was not measured in its first run" if named else "nothing was measured yet"
            raise CannotChange(f"campaign {campaign.id}: only what was measured is measured once more, and {reason}")
        self._require_quota(campaign, len(plans))
        return self._store.repeat_plans(campaign.id, plans, now=self._clock())

    def _require_quota(self, campaign: Campaign, n: int) -> None:
        """Raises QuotaExceeded."""
        left = self._quotas.trials_left(campaign.owner, self._clock())
        if left is not None and left < n:
            reason = f"{left} of the trials within 24 h of the token {campaign.owner} are left"
            raise QuotaExceeded(f"{reason}, and this is {n}")


def legal_plan(spec: CampaignSpec, given: object) -> Plan:
    """The plan of a text or of fields, complete. Raises InvalidValue with the rules that it breaks."""
    space = space_of(spec)
    plan = space.complete(**plan_fields(given, space.knobs))
    if broken := space.explain(plan):
        raise InvalidValue([Problem("", violation.message) for violation in broken])
    return plan
