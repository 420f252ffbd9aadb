"""A campaign learns from earlier ones of its home, keeps from which, and says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.campaign import Lesson
from meshtune.tuner.campaign.trial import Proposal
from meshtune.tuner.prediction.predict import training_of
from meshtune.tuner.search.base import Observation, PastCampaign, Task
from meshtune.tuner.search.baseline import GridSearch


@dataclass
class NotingSearch:
    """The grid, which notes what it was asked to solve."""

    tasks: list[Task] = field(default_factory=list)

    def ask(self, task: Task, seen: Sequence[Observation], n: int) -> Proposal:
        self.tasks.append(task)
        return GridSearch().ask(task, seen, n)

    @property
    def past(self) -> tuple[PastCampaign, ...]:
        return self.tasks[-1].past


@pytest.fixture
def noted(lab) -> NotingSearch:
    lab.search = NotingSearch()
    return lab.search


def learnt(lab, id: str) -> list[object]:
    return [event.data for event in lab.store.events(id) if event.kind == "campaign.learns"]


def test_a_later_campaign_sees_what_an_earlier_one_measured_and_keeps_from_which_it_learnt(lab, noted, make):
    lab.machine.script = lambda name: make.Behaviour(kind="oom" if name.endswith("t0001-a1") else "ok")
    first = lab.create(confirm=0)
    lab.run(first)
    assert (noted.past, lab.campaign(first).lessons, learnt(lab, first)) == ((), (), [])
    second = lab.create(cluster={"preset": "local-cpu", "nodes": 2})
    lab.run(second)
    (past,) = noted.past
    assert past.training == training_of(lab.campaign(first).spec)
    assert [seen.plan for seen in past.seen] == [trial.plan for trial in lab.trials(first)]
    assert [seen.verdict for seen in past.seen] == [Verdict.OK, Verdict.OOM, Verdict.OK, Verdict.OK]
    assert [seen.step_time_s for seen in past.seen] == [
        None if trial.measurement is None else trial.measurement.step_time_s for trial in lab.trials(first)
    ]
    lesson = Lesson(campaign_id=first, trials=4, weight=past.weight)
    assert lab.campaign(second).lessons == (lesson,)
    [told] = learnt(lab, second)
    assert told == {"lessons": [{"campaign_id": first, "trials": 4, "weight": past.weight}]}


def test_a_campaign_that_wants_no_warm_start_has_none(lab, noted):
    lab.run(lab.create())
    id = lab.create(warm_start=False)
    lab.run(id)
    assert noted.past == ()
    assert lab.campaign(id).lessons == ()


def test_what_is_learnt_is_read_once_and_again_when_the_campaign_is_opened_again(lab, noted):
    first, second = lab.create(name="first"), lab.create(name="second")
    lab.run(second, until=lambda: len(lab.trials(second)) == 2)
    assert noted.past == ()
    lab.run(first)
    lab.run(second, until=lambda: len(lab.trials(second)) == 3)
    assert noted.past == ()
    lab.service.release(second)
    lab.run(second)
    assert len(noted.past[0].seen) == len(lab.trials(first))
    assert [lesson.campaign_id for lesson in lab.campaign(second).lessons] == [first]
    assert len(learnt(lab, second)) == 1


@pytest.mark.parametrize("after", [False, True])
def test_a_service_that_dies_as_it_keeps_the_lessons_doubles_nothing(lab, noted, make, after):
    lab.run(lab.create())
    id = lab.create()
    counter = [0]
    lab.wrap = lambda thing: make.Mortal(thing, counter, dies_at=2, after=after)
    lab.open()
    with pytest.raises(make.Killed):
        lab.run(id)
    assert len(lab.campaign(id).lessons) == after
    lab.kill()
    lab.wrap = lambda thing: thing
    lab.open()
    lab.run(id)
    assert len(noted.past) == len(lab.campaign(id).lessons) == len(learnt(lab, id)) == 1
