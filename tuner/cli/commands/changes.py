"""The commands that change a campaign while it goes on or after its end: `edit` and `enqueue`."""

from __future__ import annotations

from typing import Any

from meshtune.search_spaces.knobs import KnobSet
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.spec import space_of
from meshtune.tuner.cli import commands
from meshtune.tuner.cli.common import Refused, console
from meshtune.tuner.cli.opening import open_campaign
from meshtune.tuner.cli.spec_file import plan_fields
from meshtune.tuner.cli.usage.options import Limits, Place
from meshtune.tuner.service.changing import require_legal


def edit(
    campaign: str, place: Place, *, name: str | None, tags: list[str] | None, notes: str | None, limits: Limits
) -> None:
    given: dict[str, Any] = {"name": name, "tags": tags, "notes": notes, "budget": limits.given or None}
    changes = {key: value for key, value in given.items() if value is not None}
    if not changes:
        raise Refused("edit: say what is to change: --name, --tag, --notes, --trials, --wall-time-s or --device-hours")
    if place.server:
        with commands.remote.open_remote(place, campaign) as remote:
            id, state, was = remote.id, remote.update(**changes).state, remote.view.state
    else:
        with open_campaign(place.home, place.db, campaign) as (service, known):
            was = known.state
            changed = service.changing.change(known.id, changes)
            id, state = changed.id, changed.state
    console.print(f"{id} is changed: {', '.join(changes)}", soft_wrap=True)
    if was.final and state is CampaignState.RUNNING:
        console.print(f"it goes on: `meshtune resume {id}{place.option}` works on it", soft_wrap=True)


def enqueue(campaign: str, plan: str, place: Place) -> None:
    if place.server:
        with commands.remote.open_remote(place, campaign) as remote:
            knobs = KnobSet(remote.record().campaign.spec.knobs)
            trial = remote.enqueue(plan_fields("PLAN", plan, knobs))
            id, number, key = remote.id, trial.number, trial.plan_key
    else:
        with open_campaign(place.home, place.db, campaign) as (service, known):
            space = space_of(known.spec)
            chosen = space.complete(**plan_fields("PLAN", plan, space.knobs))
            require_legal(chosen, space)
            made = service.changing.enqueue(known.id, chosen)
            id, number, key = known.id, made.number, made.plan.key
    console.print(f"trial {number} of {id}: {key}, before the search's next choice", soft_wrap=True)
