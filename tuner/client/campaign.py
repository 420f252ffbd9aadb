"""A campaign of a service, by its id: what is known of it, what can be done to it, and its figures."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from meshtune.runners.base import Cause
from meshtune.runners.documents import json_of, read_value
from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.knob_values import word
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.trial import Origin, TrialState
from meshtune.tuner.client.errors import Outdated, WaitedTooLong
from meshtune.tuner.client.requests import Calls, Pause, Request, Steps, Tries, get, place, post
from meshtune.tuner.client.transport import AsyncLink, Awaiting, Blocking, BlockingLink, Follower, step
from meshtune.tuner.prediction.projection import Projection
from meshtune.tuner.prediction.quote import Explanation
from meshtune.tuner.results.analysis.analysis import Analysis
from meshtune.tuner.results.comparison import TrialComparison
from meshtune.tuner.results.export import ExportView
from meshtune.tuner.results.quantities import TrialBrief
from meshtune.tuner.results.record import Record, read_record
from meshtune.tuner.results.views import BestView
from meshtune.tuner.service.ask_tell import Completion, Heartbeat, Report, Suggestion, Suggestions
from meshtune.tuner.service.views.campaigns import CampaignView, EventPage, EventView, ParetoView
from meshtune.tuner.service.views.trials import JobView, LogsView, LogView, TrialBriefPage, TrialPage, TrialView

if TYPE_CHECKING:  # which needs Matplotlib
    from meshtune.tuner.client.plots import AsyncPlots, Plots

MAX_PAGE = 1000
# Between two looks of `wait`.
FIRST_LOOK_S, MOST_LOOK_S = 0.2, 5.0
Watched = TypeVar("Watched", CampaignView, TrialView)


class CampaignCalls(Calls):
    """Methods raise ServiceError.

    view: the campaign as this object was last told of it: by `refresh`, and by what changes it.
    """

    def __init__(self, link: Any, view: CampaignView) -> None:
        self._link = link
        self.view = view

    @property
    def id(self) -> str:
        return self.view.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}: {self.view.state}>"

    @step
    def refresh(self) -> Steps[CampaignView]:
        """The campaign as it is now."""
        return (yield from self._shown(get(self._place(), CampaignView)))

    @step
    def best(self, top: int = 10) -> Steps[BestView]:
        """The best plans measured, the recommended one and why, and the front of speed and memory."""
        return (yield from self._ask(get(self._place("best"), BestView, {"top": top})))

    @step
    def trials(
        self,
        *,
        verdicts: Sequence[Verdict | str] = (),
        states: Sequence[TrialState | str] = (),
        origins: Sequence[Origin | str] = (),
        failures: Sequence[Cause | str] = (),
        at_least: Mapping[str, float] | None = None,
        at_most: Mapping[str, float] | None = None,
        finished_after: datetime | str | None = None,
        finished_before: datetime | str | None = None,
        sort: str = "number",
        limit: int | None = None,
    ) -> Steps[list[TrialBrief]]:
        """One line of numbers for each trial, those of any of these verdicts and so on. at_least, at_most: numbers by
        what trials are sorted by, such as {"mfu": 0.3}; those that lack it are left out. limit: so many at the most;
        None: all. `trial` has the rest of one, `record` of all."""
        named = {"verdict": verdicts, "state": states, "origin": origins, "failure": failures}
        ends = {f"min_{name}": value for name, value in (at_least or {}).items()}
        ends |= {f"max_{name}": value for name, value in (at_most or {}).items()}
        times = {"finished_after": finished_after, "finished_before": finished_before}
        query = {**named, **ends, **times, "sort": sort, "view": "brief"}
        trials = self._paged(self._place("trials"), TrialBriefPage, lambda page: page.trials, query, limit, MAX_PAGE)
        return (yield from trials)

    @step
    def trial(self, number: int) -> Steps[TrialView]:
        """Everything of one trial: attempts, step times, where the time went."""
        return (yield from self._ask(get(self._place("trials", number), TrialView)))

    @step
    def analysis(self) -> Steps[Analysis]:
        """What the trials teach: the knobs that matter, failures, what was expected, why the best plans win."""
        return (yield from self._analysed())

    @step
    def why(self, plan: Plan | Mapping[str, Any]) -> Steps[Explanation]:
        """Why a plan was not chosen: the rules it breaks, the memory it needs, where it would lose its time."""
        fields = dict(fields_of(plan))
        knobs = fields.pop("knobs", {})
        query = {**fields, "knob": [f"{name}:{word(value)}" for name, value in knobs.items()]}
        return (yield from self._ask(get(self._place("space", "why"), Explanation, query)))

    @step
    def projection(self, nodes: Sequence[int] = (), plan: str = "") -> Steps[Projection]:
        """Speed and efficiency at other node counts; none named: the spec's, doubled 5 times. plan: one layout for all
        of them, such as `tp=8,pp=16`; empty: the best one of each."""
        query = {"nodes": nodes, **({"plan": plan} if plan else {})}
        return (yield from self._ask(get(self._place("projection"), Projection, query)))

    @step
    def events(self, after: int = 0) -> Steps[list[EventView]]:
        """What has happened until now, in order. after: only events with larger ids."""
        path, query = self._place("events"), {"after": after}
        return (yield from self._paged(path, EventPage, lambda page: page.events, query, None, MAX_PAGE))

    @step
    def wait(self, limit_s: float | None = None) -> Steps[CampaignView]:
        """The campaign once it is over. Raises WaitedTooLong where it is not after so long; it goes on."""
        look = partial(self._shown, get(self._place(), CampaignView))
        return (yield from _ended(self.id, look, limit_s))

    @step
    def wait_trial(self, number: int, limit_s: float | None = None) -> Steps[TrialView]:
        """The trial once it has ended. Raises WaitedTooLong as `wait`."""
        look = partial(self._ask, get(self._place("trials", number), TrialView))
        return (yield from _ended(f"trial {number} of {self.id}", look, limit_s))

    @step
    def pause(self) -> Steps[CampaignView]:
        """Start no more trials; those that run are measured to their end."""
        return (yield from self._shown(post(self._verb("pause"), CampaignView)))

    @step
    def resume(self) -> Steps[CampaignView]:
        """Go on with a paused campaign."""
        return (yield from self._shown(post(self._verb("resume"), CampaignView)))

    @step
    def cancel(self) -> Steps[CampaignView]:
        """End the campaign and its running jobs; what was measured stays. `wait` for its end."""
        return (yield from self._shown(post(self._verb("cancel"), CampaignView)))

    @step
    def delete(self) -> Steps[None]:
        """Forget a campaign that is over, with its trials, events and job folders."""
        yield from self._ask(Request(method="DELETE", path=self._place(), answer=type(None)))

    @step
    def update(
        self,
        *,
        name: str | None = None,
        tags: Sequence[str] | None = None,
        notes: str | None = None,
        budget: Mapping[str, float | None] | None = None,
        trial: Mapping[str, float | None] | None = None,
        version: str = "",
    ) -> Steps[CampaignView]:
        """Change what is given. version: of the view that this was decided on; raises Outdated after another's change.
        budget: of `trials`, `wall_time_s` and `device_hours` those that are named; None lifts a limit. An ended
        campaign goes on with a larger budget. trial: those of `time_limit_s` and others, alike."""
        given = {"name": name, "tags": tags, "notes": notes, "budget": budget, "trial": trial}
        return (yield from self._patched({key: value for key, value in given.items() if value is not None}, version))

    @step
    def extend(self, *, trials: int = 0, wall_time_s: float = 0.0, device_hours: float = 0.0) -> Steps[CampaignView]:
        """Let it have so much more than its budget says now, whoever else changes it. An ended campaign goes on."""
        more = {"trials": trials, "wall_time_s": wall_time_s, "device_hours": device_hours}
        named = {name: value for name, value in more.items() if value}
        if not named or min(named.values()) < 0:
            raise ValueError(f"extend: give a positive number of one of {', '.join(more)}")
        give_up, tries = time.monotonic() + self._link.patience_s, Tries()
        while True:
            view = yield from self._shown(get(self._place(), CampaignView))
            limits = asdict(view.summary.budget)
            if free := [name for name in named if limits[name] is None]:
                raise ValueError(f"extend: the budget of {self.id} sets no limit of {free[0]}; `update` sets one")
            budget = {name: limits[name] + value for name, value in named.items()}
            try:
                return (yield from self._patched({"budget": budget}, view.version))
            except Outdated:
                if time.monotonic() > give_up:
                    raise
                yield Pause(tries.pause_s())

    @step
    def enqueue(self, plan: Plan | Mapping[str, Any] | str) -> Steps[TrialView]:
        """Put a plan in by hand, which runs before the search's next choice. Of what a mapping or a text leaves out, dp
        and grad_accum_steps follow; the rest is as by default."""
        return (yield from self._ask(post(self._place("trials"), TrialView, {"plan": fields_of(plan)})))

    @step
    def suggest(
        self, count: int = 1, *, wait_s: float = 20.0, worker: str = "", lease_s: float | None = None
    ) -> Steps[Suggestions]:
        """Trials to measure by one's own means, of a campaign whose runner is `external`; each goes to one caller
        alone. None where nothing waits within wait_s, or the campaign is over (`state`). worker: a name, whose trials
        that are not completed come first. lease_s: a worker that is silent for longer loses them (`heartbeat`)."""
        asked = {"count": count, "wait_s": wait_s, "worker": worker, "lease_s": lease_s}
        return (yield from self._ask(post(self._verb("suggest"), Suggestions, asked)))

    @step
    def heartbeat(self, suggestion: Suggestion, step_times_s: Sequence[float] = ()) -> Steps[Heartbeat]:
        """Say that the suggestion is still measured, and the seconds of all steps timed so far; whether to go on."""
        report = Report(claim=suggestion.claim, step_times_s=tuple(step_times_s))
        return (yield from self._ask(post(self._place("trials", f"{suggestion.trial}:heartbeat"), Heartbeat, report)))

    @step
    def complete(
        self,
        /,
        trial: int | Suggestion,
        *,
        step_times_s: Sequence[float] = (),
        peak_memory_bytes: Sequence[int] = (),
        verdict: Verdict | str = "",
        reason: str = "",
        **words: Any,
    ) -> Steps[TrialView]:
        """Tell how a suggestion went, whose claim it names, or a trial by its number: the seconds of each timed step
        (none: as reported), and the most loaded memory of each rank, where known; or a verdict such as `oom`, with its
        reason. words: others of Completion. The trial, once the campaign has taken that."""
        number, claim = (trial, "") if isinstance(trial, int) else (trial.trial, trial.claim)
        measured = {"step_times_s": tuple(step_times_s), "peak_memory_bytes": tuple(peak_memory_bytes)}
        given = {"claim": claim, **measured, "verdict": str(verdict), "reason": reason, **words}
        completion = read_value(Completion, given)
        told = yield from self._ask(post(self._place("trials", f"{number}:complete"), TrialView, completion))
        if completion.ending is Verdict.LOST:  # it waits for another claim
            return told
        look = partial(self._ask, get(self._place("trials", number), TrialView))
        return (yield from _ended(f"trial {number} of {self.id}", look, None))

    @step
    def clone(self, changes: Mapping[str, Any], *, key: str = "") -> Steps[Self]:
        """A new campaign of its spec, over which the changes are laid as RFC 7396 has it. key: as of `create`."""
        view = yield from self._ask(post(self._verb("clone"), CampaignView, changes, key=key))
        return type(self)(self._link, view)

    @step
    def rerun(self, number: int) -> Steps[TrialView]:
        """Measure a trial's plan once more by a fresh job; the new trial. A campaign that is complete runs again until
        it has ended."""
        return (yield from self._ask(post(self._place("trials", f"{number}:rerun"), TrialView)))

    @step
    def revalidate(self) -> Steps[list[TrialView]]:
        """As `rerun`, of the recommended plan and the baseline, side by side."""
        return (yield from self._ask(post(self._verb("revalidate"), TrialPage))).trials

    @step
    def compare_trials(self, numbers: Sequence[int]) -> Steps[TrialComparison]:
        """Two to five trials side by side: what their plans differ in, speed, memory, where the time of a step went."""
        return (yield from self._ask(get(self._place("trial-comparison"), TrialComparison, {"trial": numbers})))

    @step
    def pareto(self) -> Steps[ParetoView]:
        """The plans of which none is both slower and fuller than another one."""
        return (yield from self._ask(get(self._place("pareto"), ParetoView)))

    @step
    def export(self, /, format: str, trial: int | str = "recommended", **options: object) -> Steps[ExportView]:
        """A measured plan in the words of a scheduler or program, whose options may be named. trial: a number, or
        `recommended`, `fastest-once`, `fastest-confirmed`, `best`."""
        query = {"trial": trial, "option": [f"{name}={json_of(value).decode()}" for name, value in options.items()]}
        return (yield from self._ask(get(self._place("exports", format), ExportView, query)))

    @step
    def job(self, trial: int) -> Steps[JobView]:
        """What the runner is given to measure a trial: the command, files, and a scheduler's script."""
        return (yield from self._ask(get(self._place("trials", trial, "job"), JobView)))

    @step
    def logs(self, trial: int, attempt: int = 1) -> Steps[list[LogView]]:
        """The logs of a job, of its ranks and its scheduler; none once its folder was pruned."""
        return (yield from self._ask(get(self._place("trials", trial, "attempts", attempt, "logs"), LogsView))).files

    @step
    def log(self, trial: int, name: str, attempt: int = 1) -> Steps[str]:
        """A log as long as it is now."""
        path = self._place("trials", trial, "attempts", attempt, "logs", name)
        return (yield from self._ask(get(path, bytes))).decode(errors="replace")

    @step
    def report(self, path: str | Path) -> Steps[Path]:
        """Write the campaign's report, one HTML file that needs no network."""
        text = yield from self._ask(get(self._place("report"), bytes))
        Path(path).write_bytes(text)
        return Path(path)

    @step
    def data(self, format: Literal["csv", "parquet", "json"] = "csv") -> Steps[bytes]:
        """One flat row for each trial."""
        return (yield from self._ask(get(self._place("data"), bytes, {"format": format})))

    @step
    def record(self) -> Steps[Record]:
        """All that is known of it: the campaign with its spec, and every trial with every step, as the values that
        meshtune's own rankings, analyses and figures take."""
        return (yield from self._recorded())

    @step
    def spec(self) -> Steps[str]:
        """The spec as it was written, comments and all."""
        return (yield from self._ask(get(self._place("spec.yaml"), bytes))).decode()

    def _analysed(self) -> Steps[Analysis]:
        return (yield from self._ask(get(self._place("analysis"), Analysis)))

    def _recorded(self) -> Steps[Record]:
        return read_record((yield from self._ask(get(self._place("record"), bytes))))

    def _place(self, *parts: object) -> str:
        return place("campaigns", self.id, *parts)

    def _verb(self, verb: str) -> str:
        return place("campaigns", f"{self.id}:{verb}")

    def _shown(self, request: Request[CampaignView]) -> Steps[CampaignView]:
        self.view = yield from self._ask(request)
        return self.view

    def _patched(self, changes: object, version: str) -> Steps[CampaignView]:
        request = post(self._place(), CampaignView, changes)
        return (yield from self._shown(replace(request, method="PATCH", version=version)))


class Campaign(CampaignCalls, Blocking):
    """A campaign of a service."""

    _link: BlockingLink

    def follow(self, after: int = 0) -> Iterator[EventView]:
        """What happens, event by event, from the campaign's first event on until it is over; where the service is away
        for a while, it goes on afterwards. after: only events with larger ids."""
        return self._link.follow(Follower(self.id, after, self._link.patience_s))

    @property
    def plot(self) -> Plots:
        """Figures, drawn here by Matplotlib. Raises MissingExtra without it."""
        from meshtune.tuner.client.plots import Plots

        return Plots(self._link, self._recorded, self._analysed)


class AsyncCampaign(CampaignCalls, Awaiting):
    """A campaign of a service, for asyncio."""

    _link: AsyncLink

    def follow(self, after: int = 0) -> AsyncIterator[EventView]:
        """As of `Campaign`."""
        return self._link.follow(Follower(self.id, after, self._link.patience_s))

    @property
    def plot(self) -> AsyncPlots:
        """As of `Campaign`."""
        from meshtune.tuner.client.plots import AsyncPlots

        return AsyncPlots(self._link, self._recorded, self._analysed)


def _ended(name: str, look: Callable[[], Steps[Watched]], limit_s: float | None) -> Steps[Watched]:
    give_up, pause_s = None if limit_s is None else time.monotonic() + limit_s, FIRST_LOOK_S
    while True:
        seen = yield from look()
        if seen.state.final:
            return seen
        if give_up is not None and time.monotonic() + pause_s > give_up:
            raise WaitedTooLong(f"{name} is {seen.state} after {limit_s:g} s, and goes on")
        yield Pause(pause_s)
        pause_s = min(MOST_LOOK_S, 1.2 * pause_s)


def fields_of(plan: Plan | Mapping[str, Any] | str) -> Any:
    return asdict(plan) if isinstance(plan, Plan) else plan
