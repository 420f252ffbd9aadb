"""What the commands do where the campaigns are at a service (`--server`): the same as on a home, by the client. What a
campaign's results look like is not told here: that is made of its record (`opening.recorded`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import typer

from meshtune.runners.outcome import Outcome
from meshtune.search_spaces.checks import Problem
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.trial import Trial, TrialState
from meshtune.tuner.cli.commands.campaign import print_campaign, print_result, require_going_on
from meshtune.tuner.cli.common import Refused, console, print_page
from meshtune.tuner.cli.following import Look, ended_trials, follow
from meshtune.tuner.cli.opening import refuse_unknown
from meshtune.tuner.cli.render.display import Listed
from meshtune.tuner.cli.render.predictions import quote_parts
from meshtune.tuner.cli.spec_file import read_document, wrong_spec
from meshtune.tuner.cli.usage.options import LEAST_EFFICIENCY, Limits, Place
from meshtune.tuner.client.campaign import Campaign
from meshtune.tuner.client.client import Client
from meshtune.tuner.client.errors import InvalidRequest, NotFound, ServiceError
from meshtune.tuner.client.spec import body_of
from meshtune.tuner.prediction.projection import Projection, node_counts
from meshtune.tuner.prediction.quote import Explanation, Quote
from meshtune.tuner.results.known_best import BestKnown, Question
from meshtune.tuner.specs.document import changed_document

# Between two looks at a campaign that is followed; the record of a large one takes longer than this.
LOOK_S = 0.2
# So many times as long as a look takes it pauses, for the service's sake.
LOOK_SHARE = 4.0


@contextmanager
def open_client(place: Place) -> Iterator[Client]:
    with Client(place.server) as client:
        yield client


@contextmanager
def open_remote(place: Place, campaign_id: str) -> Iterator[Campaign]:
    """The campaign of that id, or with `last` the newest. Raises Refused for one that is not there."""
    with open_client(place) as client:
        yield _find(client, campaign_id)


def _find(client: Client, campaign_id: str) -> Campaign:
    if campaign_id == "last":
        newest = client.campaigns(limit=1)
        return newest[0] if newest else refuse_unknown(campaign_id, [])
    try:
        return client.campaign(campaign_id)
    except NotFound:
        return refuse_unknown(campaign_id, [campaign.id for campaign in client.campaigns(limit=20)])


def run(spec: Path, place: Place, *, dry_run: bool, cluster: Path | None, project: str) -> None:
    body = body_with(spec, cluster=cluster, changes={"project": project} if project else {})
    with open_client(place) as client, spec_told(spec):
        if dry_run:
            print_page(quote_parts(client.estimate(body, to_run=True)))
            console.print("no job is shown: its files are made where the service is", soft_wrap=True)
            return
        campaign = client.create(body)
        _follow(campaign, place, set())


def body_with(
    spec: Path, *, cluster: Path | None = None, model: str = "", changes: Mapping[str, Any] | None = None
) -> Any:
    """The spec in a file as it is sent: as its text, comments and all, where nothing is put into it."""
    document = read_document(spec, cluster, model)
    if cluster is None and not model and not changes:
        return body_of(spec)
    return changed_document(document, changes or {})


@contextmanager
def spec_told(spec: Path) -> Iterator[None]:
    """The mistakes that the service finds in a spec, as those that are found here. Raises Refused."""
    try:
        yield
    except InvalidRequest as error:
        if not error.problem.type.endswith("/invalid-spec"):
            raise
        found = [Problem(_path(mistake.pointer), mistake.detail) for mistake in error.mistakes]
        raise wrong_spec(spec, found) from None


def _path(pointer: str) -> str:
    """Of RFC 6901, as a spec's problems have it."""
    return ".".join(part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])


def resume(campaign: str, place: Place, limits: Limits) -> None:
    with open_remote(place, campaign) as remote:
        if budget := limits.given:
            remote.update(budget=budget)
        require_going_on(remote.view, "resume")
        if remote.view.state.resting:
            remote.resume()
        _follow(remote, place, ended_trials(remote.record().trials))


def pause(campaign: str, place: Place) -> str:
    with open_remote(place, campaign) as remote:
        require_going_on(remote.view, "pause")
        return remote.pause().id


def cancel(campaign: str, place: Place) -> None:
    with open_remote(place, campaign) as remote:
        require_going_on(remote.view, "cancel")
        if remote.view.state is not CampaignState.CANCELLING:
            remote.cancel()
        console.print(f"{remote.id} is {remote.wait().state}")


def show(campaign: str, place: Place) -> None:
    """Without the nodes that new jobs are kept away from: they are known to the service alone."""
    with open_remote(place, campaign) as remote:
        record = remote.record()
        print_campaign(record.campaign, record.trials, remote.view.trouble, ())


def listed(place: Place, most: int) -> list[Listed]:
    with open_client(place) as client:
        views = [campaign.view for campaign in client.campaigns(limit=most)]
        return [Listed(view, view.created_at, view.trials) for view in views]


def estimate(spec: Path, place: Place, *, cluster: Path | None, model: str) -> Quote:
    with open_client(place) as client, spec_told(spec):
        return client.estimate(body_with(spec, cluster=cluster, model=model))


def why(spec: Any, plan: Mapping[str, Any], place: Place) -> Explanation:
    """spec: a document that was read here already."""
    with open_client(place) as client:
        return client.why(spec, plan)


def project(source: str, place: Place, *, nodes: str, plan: str, wall: float, tokens: float | None) -> Projection:
    if source.endswith((".yaml", ".yml", ".json")):
        raise Refused("project SPEC asks no service: give --server '' (MESHTUNE_SERVER)")
    if wall != LEAST_EFFICIENCY or tokens is not None:
        option = "--wall" if wall != LEAST_EFFICIENCY else "--tokens"
        raise Refused(f"project {option} is for campaigns of a home on this machine: a service does not take it")
    with open_remote(place, source) as remote:
        return remote.projection(node_counts(nodes, 1) if nodes else (), plan)


def recommend(question: Question, place: Place) -> BestKnown:
    with open_client(place) as client:
        return client.recommend(
            model=question.model,
            cluster=question.cluster,
            nodes=question.nodes,
            global_batch_size=question.global_batch_size,
            workload=question.workload,
            software=question.software,
            simulated=question.simulated,
        )


def remeasure(place: Place, campaign_id: str, trials: Sequence[Trial]) -> Iterator[tuple[Trial, Outcome]]:
    """Run each trial's plan again, as second runs of the campaign; yield each with its new outcome."""
    with open_remote(place, campaign_id) as remote:
        numbers = [remote.rerun(trial.number).number for trial in trials]
        for trial, number in zip(trials, numbers, strict=True):
            remote.wait_trial(number)
            outcome = next(one for one in remote.record().trials if one.number == number).outcome
            assert outcome is not None  # of a trial that is done
            yield trial, outcome


def _follow(remote: Campaign, place: Place, told: set[int]) -> None:
    """Until the campaign rests; then what it found is printed. Ctrl-C ends this alone."""
    try:
        follow(lambda: _look(remote), lambda watch: _drive(remote, watch), told)
    except KeyboardInterrupt:
        console.print(f"\n{remote.id} goes on at {place.server}. To follow it again, to look at it, or to end it:")
        for command in ("resume", "show", "cancel"):
            console.print(f"    meshtune {command} {remote.id}{place.option}", soft_wrap=True)
        raise typer.Exit(130) from None
    record = remote.record()
    print_result(record.campaign, record.trials)


def _look(remote: Campaign) -> Look:
    trouble = remote.refresh().trouble
    record = remote.record()
    return Look(record.campaign, record.trials, trouble)


def _drive(remote: Campaign, watch: Callable[[], None]) -> None:
    """Call `watch` after what happens, many events at once where they come fast."""
    news, over, failed = Event(), Event(), list[ServiceError]()

    def listen() -> None:
        try:
            for _ in remote.follow():
                news.set()
        except ServiceError as error:
            failed.append(error)
        finally:
            over.set()
            news.set()

    Thread(target=listen, daemon=True).start()
    while not over.is_set() and not _rests(remote):
        news.wait()
        news.clear()
        before = time.monotonic()
        watch()
        over.wait(LOOK_S + LOOK_SHARE * (time.monotonic() - before))
    watch()
    if failed:
        raise failed[0]


def _rests(remote: Campaign) -> bool:
    """Paused, with nothing out."""
    out = sum(remote.view.trials.get(state, 0) for state in (TrialState.SUBMITTED, TrialState.RUNNING))
    return remote.view.state.resting and not out
