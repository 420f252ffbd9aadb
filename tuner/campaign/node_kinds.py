"""Trials of one campaign are measured on one kind of hardware: the baseline's, else that of the first measured trial.

A trial that ran on another kind, or on a mix, is lost to its nodes and tried again without them, as long as it has
attempts left and there are nodes of its to avoid that it was not told of before. After that its measurement stays, is
shown as one on other hardware, and is never recommended. Pure, as `tuner.campaign.decide` is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshtune.runners.base import Cause
from meshtune.runners.hardware import Hardware, kinds_text, nodes_text, same_hardware, unlike_kinds
from meshtune.runners.outcome import Measurement, Outcome, Verdict
from meshtune.tuner.campaign.trial import Attempt, Origin, Trial


@dataclass(frozen=True, slots=True)
class Reference:
    """What the campaign's measurements are compared on. whose: the trial's name in a sentence."""

    hardware: Hardware
    whose: str

    def note(self, measured: Measurement) -> str:
        """How a measurement's hardware differs, for people; empty where it does not, as far as both are known."""
        if same_hardware(measured.hardware, self.hardware):
            return ""
        own = kinds_text(measured.hardware, beside=self.hardware)
        return (
            f"measured on other hardware: {own} ({self.whose}: {kinds_text(self.hardware, beside=measured.hardware)})"
        )


def reference_of(trials: Sequence[Trial]) -> Reference | None:
    """None while it is not settled, and where its hardware is unknown."""
    baseline = next((trial for trial in trials if trial.origin is Origin.BASELINE), None)
    if baseline is not None and not baseline.state.final:
        return None
    measured = [(trial, run) for trial in trials if (run := trial.measurement) is not None]
    measured.sort(key=lambda pair: (pair[0] is not baseline, pair[0].last.finished_at or 0.0, pair[0].number))
    for trial, run in measured[:1]:
        whose = "baseline" if trial is baseline else f"trial {trial.number}"
        return Reference(run.hardware, whose) if run.hardware else None
    return None


def judged(
    trials: Sequence[Trial], trial: Trial, outcome: Outcome, nodes: Sequence[str], attempts: int
) -> tuple[Outcome, tuple[str, ...]]:
    """The outcome of an attempt of `trial`, and the nodes of another kind that it is lost to; a measurement that stays
    although it was made on other hardware says so. nodes: those that its job had. attempts: how many a trial has."""
    measured, reference = outcome.measurement, reference_of(trials)
    if measured is None or reference is None or not (note := reference.note(measured)):
        return outcome, ()
    unlike = _unlike_nodes(measured, nodes, reference)
    if trial.counted_attempts >= attempts or not set(unlike) - set(trial.last.avoid):
        return replace(outcome, reason="; ".join(filter(None, (outcome.reason, note)))), ()
    reason = f"{note}: to be run again without {nodes_text(unlike)}"
    return Outcome(verdict=Verdict.LOST, cause=Cause.OTHER_HARDWARE, reason=reason), unlike


def nodes_of_other_kinds(trials: Sequence[Trial]) -> set[str]:
    """The nodes that the campaign's trials have shown to be of another kind than the reference."""
    nodes = {
        node for trial in trials for attempt in trial.attempts if is_elsewhere(attempt) for node in attempt.failed_nodes
    }
    if (reference := reference_of(trials)) is not None:
        for trial in trials:
            if trial.measurement is not None:
                nodes.update(_unlike_nodes(trial.measurement, trial.last.nodes, reference))
    return nodes


def comparable(trials: Sequence[Trial]) -> list[Trial]:
    """The trials, those that were measured on other hardware as lost: nothing is to be learnt from their speeds."""
    reference = reference_of(trials)
    if reference is None:
        return list(trials)
    measured = ((trial, trial.measurement) for trial in trials)
    return [_lost(trial, note) if run and (note := reference.note(run)) else trial for trial, run in measured]


def _lost(trial: Trial, reason: str) -> Trial:
    outcome = Outcome(verdict=Verdict.LOST, cause=Cause.OTHER_HARDWARE, reason=reason)
    return replace(trial, attempts=(*trial.attempts[:-1], replace(trial.last, outcome=outcome)))


def is_elsewhere(attempt: Attempt) -> bool:
    """Whether the attempt was lost to nodes that are sound, and of another kind."""
    return attempt.outcome is not None and attempt.outcome.cause is Cause.OTHER_HARDWARE


def _unlike_nodes(measured: Measurement, nodes: Sequence[str], reference: Reference) -> tuple[str, ...]:
    """Of the job's nodes; a job may name others, or none where all are alike."""
    all_alike = nodes if len(measured.hardware) == 1 else ()
    kinds = unlike_kinds(measured.hardware, reference.hardware)
    unlike = {node for kind in kinds for node in kind.nodes or all_alike}
    return tuple(node for node in nodes if node in unlike)
