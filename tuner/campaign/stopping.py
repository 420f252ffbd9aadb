"""How a search and a campaign end: enough found, the best plans measured once more, or no hope; with the words for it.

Pure, as `tuner.campaign.decide` is. Budgets of time end a campaign without any of this. A campaign is hopeless where
nothing was measured and the failures of its trials would be those of any other one too; one measurement is proof of the
contrary. Losing every job says something of the cluster, not of the campaign, and passes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshtune.runners.base import Cause
from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.campaign import Campaign, CampaignState
from meshtune.tuner.campaign.second_runs import next_turn
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.trial import Origin, Proposal, Trial

# With fewer measured plans, what a search says of the others is its prior's word.
MIN_MEASURED = 3
# So many trials of different plans that crash with the same words, or whose jobs are all invalid, do so for a reason
# that no plan changes.
ALIKE = 3
# So many trials, each lost in all its attempts, and one after the other.
LOST = 3
# Of the log of a trial, in the reason.
LOG_LINES = 15
ADVICE = "mend it and start a new campaign"
# Failures that another plan may not have.
_OF_THE_PLAN = frozenset({Cause.OOM, Cause.ILLEGAL_SETTING})
# ECMA-48 control sequences, then what is left of the control characters.
_CONTROLS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")
# Texts that differ between two jobs that fail alike: paths, then addresses, hashes and other numbers. Each is searched
# for in a time that grows with the text alone.
_PATHS = re.compile(r"(?<![^\s'\"])[^\s'\"]*/[^\s'\":,]*")
_NUMBERS = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{8,}\b|[0-9]+(\.[0-9]+)?", re.IGNORECASE)


def search_end(campaign: Campaign, trials: Sequence[Trial], proposal: Proposal, untried: int) -> str:
    """Why this proposal is the search's last word, for people; empty while the search goes on.

    untried: legal plans that were never chosen. A search that has nothing to propose while trials run is asked again
    when one of them has ended.
    """
    spec, chance = campaign.spec, proposal.chance_left
    if not proposal.choices and untried == 0:
        return f"every one of the {campaign.legal} legal plans has been tried"
    measured = sum(trial.measurement is not None for trial in trials)
    if chance is not None and chance < spec.stop.chance and measured >= MIN_MEASURED:
        plans = "the one untried plan" if untried == 1 else f"any of the {untried} untried plans"
        return chance_text(spec, plans, chance)
    if not proposal.choices and all(trial.state.final for trial in trials):
        return f"the search {spec.search.kind} proposes no further plan"
    return ""


def chance_text(spec: CampaignSpec, plans: str, chance: float) -> str:
    """What a search said of the plans that it did not choose. plans: how to call them."""
    share = "less than 0.01 %" if chance < 1e-4 else f"{100 * chance:.2g} %"
    better = "extends the front" if spec.pareto else "beats the best"
    return f"the probability that {plans} {better} by more than {100 * spec.stop.tolerance:g} % is {share}"


def confirmations(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that measure a plan once more."""
    return [trial for trial in trials if trial.origin is Origin.CONFIRMATION]


def closing_reason(campaign: Campaign, trials: Sequence[Trial]) -> str:
    """Why a campaign is complete whose search has ended and whose finalists were measured again, as far as they ran."""
    again = confirmations(trials)
    measured = sum(trial.measurement is not None for trial in again)
    if not again:
        return campaign.search_ended
    plans, rounds = len({trial.plan for trial in again}), max(trial.round for trial in again)
    failed = f", {len(again) - measured} without a measurement" if measured < len(again) else ""
    turns = "1 round" if rounds == 1 else f"{rounds} rounds"
    return f"{campaign.search_ended}; {len(again)} second runs of {plans} plans in {turns}{failed}"


def phase_text(campaign: Campaign, trials: Sequence[Trial]) -> str:
    """What a campaign does between its first trial and its end, for people; empty for one that is over or ends."""
    if campaign.state not in (CampaignState.RUNNING, CampaignState.PAUSED):
        return ""
    if not campaign.search_ended:
        chance = campaign.chance_left
        said = "" if chance is None else f": {chance_text(campaign.spec, 'an untried plan', chance)}"
        return f"searching{said}"
    waiting = any(not trial.state.final for trial in trials if trial.origin is not Origin.CONFIRMATION)
    turn = None if waiting else next_turn(campaign.spec, trials)
    if turn is None:
        return f"the search has ended: {campaign.search_ended}"
    done = sum(trial.state.final for trial in confirmations(trials))
    return f"second runs, round {turn.round} of at most {turn.last}, {done} done: {campaign.search_ended}"


def hopeless_reason(trials: Sequence[Trial]) -> str:
    """Why no trial will be measured, and below that the end of the log that tells it; empty while there is hope."""
    if any(trial.measurement is not None for trial in trials):
        return ""
    ended = [trial for trial in trials if trial.state.final and trial.verdict is not Verdict.CANCELLED]
    for trial in ended:
        if trial.outcome is not None and trial.outcome.failure is Cause.USER_BUG:
            return _with_log(f"trial {trial.number} failed for a reason that no plan can change", trial)
    refused = [trial for trial in ended if trial.verdict is Verdict.ILLEGAL and trial.last.job_id is None]
    sent = any(attempt.job_id is not None for trial in trials for attempt in trial.attempts)
    if len(refused) >= ALIKE and not sent:
        return _with_log(f"the runner could send no job of {len(refused)} plans: trial {refused[0].number}", refused[0])
    if len(ended) >= ALIKE and len({signature(trial) for trial in ended}) == 1 and signature(ended[0]):
        numbers = ", ".join(str(trial.number) for trial in ended)
        return _with_log(f"trials {numbers} crashed in the same way, and no trial was measured", ended[-1])
    return ""


def signature(trial: Trial) -> str:
    """The last words of a crash, of its reason and its log, without what differs from job to job; empty for a trial
    that did not crash, or whose plan may be to blame."""
    outcome = trial.outcome
    if outcome is None or outcome.verdict is not Verdict.CRASHED or outcome.failure in _OF_THE_PLAN:
        return ""
    words = f"{_last_line(outcome.reason)}\n{_last_line(outcome.log_tail)}".strip()
    return _NUMBERS.sub("#", _PATHS.sub("PATH", words))


def loses_every_job(campaign: Campaign, trials: Sequence[Trial]) -> str:
    """Why to wait for a better cluster; empty where one of the last trials was not lost, as far as they ended since the
    campaign was set running."""
    ended = [
        (trial.last.finished_at, trial.number, trial)
        for trial in trials
        if trial.last.finished_at is not None and trial.last.finished_at > campaign.running_since
        if trial.verdict is not Verdict.LOST or not trial.may_retry(campaign.spec.trial.attempts)
    ]
    last = [trial for _, _, trial in sorted(ended, key=lambda entry: entry[:2])][-LOST:]
    if len(last) < LOST or any(trial.verdict is not Verdict.LOST for trial in last):
        return ""
    jobs = sum(len(trial.attempts) for trial in last)
    reason = _last_line(last[-1].outcome.reason) if last[-1].outcome is not None else ""
    return f"the cluster loses every job: the last {jobs} jobs, of {LOST} trials, were lost; the last one: {reason}"


def late_baseline(campaign: Campaign, trials: Sequence[Trial]) -> str:
    """Why to wait for a larger time limit; empty where none ended the baseline since the campaign was set running."""
    for trial in trials:
        if trial.late_baseline and (trial.last.finished_at or 0.0) > campaign.running_since:
            reason = "" if trial.outcome is None else _last_line(trial.outcome.reason)
            larger = f"`meshtune edit {campaign.id} --time-limit-s N` gives it more"
            return f"the baseline, trial {trial.number}, was not measured: {reason}; {larger}"
    return ""


def _with_log(claim: str, trial: Trial) -> str:
    outcome = trial.outcome
    assert outcome is not None  # it has ended
    reason = _last_line(outcome.reason)
    first = f"{claim}{f': {reason}' if reason else ''}; {ADVICE}"
    log = [_CONTROLS.sub("", line) for line in outcome.log_tail.splitlines() if line.strip()]
    return "\n".join([first, *log[-LOG_LINES:]])


def _last_line(text: str) -> str:
    """The last line with words in it: where programs say what was wrong."""
    lines = [line for line in _CONTROLS.sub("", text).splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
