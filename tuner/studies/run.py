"""Runs the campaigns of a study by the service's own loop, one after the other, in a home folder of the study's own.

A campaign's id is the name that the study has for it, so that a study that was interrupted goes on where it was, and
one that is called again only tells its results.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from meshtune.tuner.service.driving.loop import Driver, drive_one
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import NotFound
from meshtune.tuner.studies.evidence import Evidence, Run
from meshtune.tuner.studies.read import LoadedStudy, Planned


class OtherCampaign(Exception):
    """The home has a campaign of that id with another spec: it is of another study, or of another state of this one."""


def run_campaigns(service: Service, loaded: LoadedStudy, watch: Callable[[Planned], None]) -> Evidence:
    """Run what has not run yet. watch: called before each campaign. Raises OtherCampaign, and what driving raises."""
    for planned in loaded.planned:
        _known(service, planned)  # before any is started
    runs: dict[str, list[Run]] = defaultdict(list)
    for planned in loaded.planned:
        watch(planned)
        runs[planned.name].append(_run(service, planned))
    return dict(runs)


def _known(service: Service, planned: Planned) -> bool:
    """Whether it is there. Raises OtherCampaign."""
    try:
        campaign = service.store.campaign(planned.id)
    except NotFound:
        return False
    if campaign.spec != planned.spec:
        raise OtherCampaign(f"the campaign {planned.id} there has another spec: name another folder with -o DIR")
    return True


def _run(service: Service, planned: Planned) -> Run:
    if not _known(service, planned):
        service.add(planned.spec, planned.space.totals, drives=True, id=planned.id)
    elif service.store.campaign(planned.id).state.resting:
        service.resume(planned.id)
    if not service.store.campaign(planned.id).state.final:
        drive_one(Driver(service), service, planned.id, lambda: None)
    return Run(
        seed=planned.seed,
        campaign=service.store.campaign(planned.id),
        space=planned.space,
        trials=tuple(service.store.trials(planned.id)),
    )
