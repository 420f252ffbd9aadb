"""When a campaign cannot get anywhere: nothing was measured, and what ended its trials would end any other one too.

Pure. One measurement is proof of the contrary. Losing every job says something of the cluster, not of the campaign:
that is `lost_in_a_row`, and passes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshtune.runners.failure_cause import Cause
from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.trial import Trial

# So many trials of different plans that crash with the same words crash for a reason that no plan changes.
ALIKE = 3
# So many trials, each lost in all its attempts, and one after the other.
LOST = 3
LOG_LINES = 15
_TO_DO = "mend it and start a new campaign"
# What a plan may change, so that the next one need not fail.
_OF_THE_PLAN = frozenset({Cause.OOM, Cause.ILLEGAL_SETTING})
# ECMA-48 control sequences, then what is left of the control characters.
_CONTROLS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")
# What differs between two jobs that fail alike: paths, then addresses, hashes and other numbers.
_PATHS = re.compile(r"[^\s'\"]*/[^\s'\":,]*")
_NUMBERS = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{8,}\b|[0-9]+(\.[0-9]+)?", re.IGNORECASE)


def hopeless(trials: Sequence[Trial]) -> str:
    """Why no trial will be measured, and below that the end of the log that tells it; empty while there is hope."""
    if any(trial.measurement is not None for trial in trials):
        return ""
    ended = [trial for trial in trials if trial.state.final and trial.verdict is not Verdict.CANCELLED]
    for trial in ended:
        if trial.outcome is not None and trial.outcome.failure is Cause.USER_BUG:
            return _told(f"trial {trial.number} failed for a reason that no plan can change", trial)
    refused = [trial for trial in ended if trial.verdict is Verdict.ILLEGAL and trial.last.job_id is None]
    sent = any(attempt.job_id is not None for trial in trials for attempt in trial.attempts)
    # Every job of a campaign asks for the same nodes and devices.
    if refused and not sent:
        return _told(f"the runner takes no such jobs: trial {refused[0].number}", refused[0])
    if len(ended) >= ALIKE and len({signature(trial) for trial in ended}) == 1 and signature(ended[0]):
        numbers = ", ".join(str(trial.number) for trial in ended)
        return _told(f"trials {numbers} crashed in the same way, and no trial was measured", ended[-1])
    return ""


def signature(trial: Trial) -> str:
    """The last words of a crash, of its reason and its log, without what differs from job to job; empty for a trial
    that did not crash, or whose plan may be to blame."""
    outcome = trial.outcome
    if outcome is None or outcome.verdict is not Verdict.CRASHED or outcome.failure in _OF_THE_PLAN:
        return ""
    words = f"{_last_line(outcome.reason)}\n{_last_line(outcome.log_tail)}".strip()
    return _NUMBERS.sub("#", _PATHS.sub("PATH", words))


def lost_in_a_row(campaign: Campaign, trials: Sequence[Trial]) -> str:
    """Why to wait for a better cluster; empty where one of the last trials was not lost, as far as they ended since the
    campaign was set running."""
    ended = [
        (trial.last.finished_at, trial.number, trial)
        for trial in trials
        if trial.last.finished_at is not None and trial.last.finished_at > campaign.running_since
        if trial.verdict is not Verdict.LOST or len(trial.attempts) >= campaign.spec.trial.attempts
    ]
    last = [trial for _, _, trial in sorted(ended, key=lambda entry: entry[:2])][-LOST:]
    if len(last) < LOST or any(trial.verdict is not Verdict.LOST for trial in last):
        return ""
    jobs = sum(len(trial.attempts) for trial in last)
    reason = _last_line(last[-1].outcome.reason) if last[-1].outcome is not None else ""
    return f"the cluster loses every job: the last {jobs} jobs, of {LOST} trials, were lost; the last one: {reason}"


def _told(what: str, trial: Trial) -> str:
    outcome = trial.outcome
    assert outcome is not None  # it has ended
    reason = _last_line(outcome.reason)
    first = f"{what}{f': {reason}' if reason else ''}; {_TO_DO}"
    log = [_CONTROLS.sub("", line) for line in outcome.log_tail.splitlines() if line.strip()]
    return "\n".join([first, *log[-LOG_LINES:]])


def _last_line(text: str) -> str:
    """The last line with words in it: where programs say what was wrong."""
    lines = [line for line in _CONTROLS.sub("", text).splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
