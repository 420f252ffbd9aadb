"""Warm start: which earlier campaigns count, how much, and what a campaign keeps and says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import toy

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.model import Activation, Norm, Position
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.access.tokens import Scope, Token
from meshtune.tuner.campaign.campaign import Campaign, Lesson
from meshtune.tuner.campaign.spec import Backend
from meshtune.tuner.campaign.trial import Proposal, Trial
from meshtune.tuner.prediction.predict import training_of
from meshtune.tuner.search.base import Observation, PastCampaign, Task
from meshtune.tuner.search.registry import GridSearch
from meshtune.tuner.search.warm_start import (
    MAX_TRIALS,
    MAX_TRIALS_EACH,
    OTHER_FAMILY,
    OTHER_RELEASE,
    UNKNOWN_RELEASE,
    doubts,
    learn_from,
    lessons_text,
    related,
    release_doubt,
    weight_of,
)

CLUSTER = toy.CLUSTER | {"nodes": 4}
OURS = {"torch": "2.13.0+cu126", "cuda": "12.6", "python": "3.11.7", "driver": "535.183.01"}


class Site:
    """Campaigns with trials, and how often those were read."""

    def __init__(self, lab: Any, make: Any) -> None:
        self._lab, self._make = lab, make
        self.trials: dict[str, list[Trial]] = {}
        self.read: list[str] = []

    def campaign(self, id: str, trials: list[Trial] | None = None, **over: Any) -> Campaign:
        spec = self._lab.spec(**{"cluster": CLUSTER, "global_batch_size": 64, **over})
        self.trials[id] = [self.trial(0)] if trials is None else trials
        return replace(self._make.campaign(spec), id=id)

    def trial(self, number: int, outcome: Any = None, software: dict[str, str] | None = None) -> Trial:
        measured = self._make.measurement(1.0 + number, software=OURS if software is None else software)
        rows = self._make.trial(number).plan.global_batch_size
        return self._make.trial(number, outcome or replace(measured, tokens_per_step=128 * rows))

    def trials_of(self, id: str) -> list[Trial]:
        self.read.append(id)
        return self.trials[id][:MAX_TRIALS_EACH]

    def weights(self, campaign: Campaign, *others: Campaign, own: list[Trial] | None = None) -> dict[str, float]:
        found = learn_from(campaign, own or [], others, self.trials_of)
        return {earlier.campaign_id: earlier.past.weight for earlier in found}


@pytest.fixture
def site(lab, make) -> Site:
    return Site(lab, make)


def test_other_models_batches_and_node_counts_count_in_full(site):
    others = [
        site.campaign("nodes", cluster=CLUSTER | {"nodes": 1}),
        site.campaign("size", model={"preset": "gpt-micro", "layers": 8}),
        site.campaign("length", model={"preset": "gpt-micro", "seq_len": 512}),
        site.campaign("batch", global_batch_size=128),
        site.campaign("search", search="grid", objective="step_time"),
    ]
    assert site.weights(site.campaign("c"), *others) == dict.fromkeys(["batch", "search", "size", "nodes", "length"], 1)


@pytest.mark.parametrize(
    "over",
    [
        {"cluster": CLUSTER | {"device": toy.DEVICE | {"name": "other"}}},
        {"cluster": CLUSTER | {"device": toy.DEVICE | {"kind": "cpu"}}},
        {"workload": {"kind": "torch", "dtype": "bfloat16"}},
        {"workload": {"kind": "torch", "dtype": "float32"}},  # the fake workload plays this framework
    ],
)
def test_another_device_or_training_code_teaches_nothing(site, over):
    assert related(site.campaign("c"), [site.campaign("other", **over)]) == []


def test_a_campaign_does_not_learn_from_itself(site):
    campaign = site.campaign("c")
    assert related(campaign, [campaign, site.campaign("twin")]) == [site.campaign("twin")]


@pytest.mark.parametrize(
    "kind", [{"kind": "gone"}, {"kind": "torch", "options": {"dtype": "float7"}}, {"kind": "fake", "options": {"x": 1}}]
)
def test_a_campaign_of_a_workload_that_is_no_more_is_passed_over(site, kind):
    old = site.campaign("old")
    old = replace(old, spec=replace(old.spec, workload=Backend(**kind)))
    assert related(site.campaign("c"), [old, site.campaign("new")]) == [site.campaign("new")]


def test_the_most_alike_comes_first_then_the_nearest_in_scale_then_the_newest(site):
    others = [
        site.campaign("other links", cluster=CLUSTER | {"node_link": toy.LINK | {"latency_s": 2e-6}}),
        site.campaign("1 node", cluster=CLUSTER | {"nodes": 1}),
        site.campaign("newer", cluster=CLUSTER | {"nodes": 2}),
        site.campaign("older", cluster=CLUSTER | {"nodes": 8}),
        site.campaign("same"),
    ]
    found = [other.id for other in related(site.campaign("c"), others)]
    assert found == ["same", "newer", "older", "1 node", "other links"]


@pytest.mark.parametrize(
    "shape", [{"norm": Norm.RMSNORM}, {"activation": "swiglu"}, {"position": "rope"}, {"experts": 4, "top_k": 1}]
)
def test_layers_of_another_kind_count_less(site, shape):
    spec = site.campaign("c").spec
    model = replace(spec.model, norm=Norm.LAYERNORM, activation=Activation.GELU, position=Position.LEARNED)
    other = replace(spec, model=replace(model, **shape))
    assert doubts(replace(spec, model=model), other) == (0.0, OTHER_FAMILY)


@pytest.mark.parametrize(
    ("theirs", "doubt"),
    [
        ({"torch": "2.13.1"}, 0.0),
        ({"torch": "2.13"}, 0.0),
        ({"torch": "2.12.0"}, OTHER_RELEASE),
        ({"torch": "3.13.0"}, OTHER_RELEASE),
        ({"torch": "2.13.0", "cuda": "12.4"}, OTHER_RELEASE),
        ({"torch": "2.13.0", "nccl": "2.20"}, 0.0),
        ({"torch": "2.13.0", "python": "3.12.0", "driver": "550.54.15"}, 0.0),
        ({"torch": "main"}, OTHER_RELEASE),
        ({"python": "3.11.7"}, UNKNOWN_RELEASE),
        ({"megatron": "0.9"}, UNKNOWN_RELEASE),
        ({}, UNKNOWN_RELEASE),
    ],
)
def test_another_release_of_a_library_counts_less(theirs, doubt):
    assert release_doubt(OURS, theirs) == release_doubt(theirs, OURS) == doubt


def test_until_the_campaign_has_measured_it_is_taken_to_run_on_the_newest_software(site):
    newest = site.campaign("newest", [site.trial(0, software={"torch": "2.13.0"})], cluster=CLUSTER | {"nodes": 1})
    oldest = site.campaign("oldest", [site.trial(0, software={"torch": "2.12.0"})])
    campaign = site.campaign("c")
    assert site.weights(campaign, newest, oldest) == {"oldest": weight_of(OTHER_RELEASE), "newest": 1.0}
    own = [site.trial(0, software={"torch": "2.12.1"}), site.trial(1, Verdict.OOM)]
    assert site.weights(campaign, newest, oldest, own=own) == {"oldest": 1.0, "newest": weight_of(OTHER_RELEASE)}


def test_a_search_sees_what_was_measured_and_what_did_not_fit(site):
    trials = [site.trial(number, verdict) for number, verdict in enumerate([None, Verdict.OOM])]
    trials += [site.trial(9, verdict) for verdict in Verdict if verdict not in (Verdict.OK, Verdict.OOM)]
    trials.append(site.trial(10, None, {}))
    other = site.campaign("other", trials, cluster=CLUSTER | {"nodes": 2}, objective="step_time")
    (earlier,) = learn_from(site.campaign("c"), [], [other], site.trials_of)
    assert earlier.past.training == training_of(other.spec)
    assert [seen.verdict for seen in earlier.past.seen] == [Verdict.OK, Verdict.OOM, Verdict.OK]
    assert [seen.step_time_s for seen in earlier.past.seen] == [1.0, None, 11.0]
    assert earlier.past.seen[1].plan == Plan(dp=4, micro_batch_size=2, grad_accum_steps=2)
    assert earlier.lesson == Lesson(campaign_id="other", trials=3, weight=1.0)


def test_of_each_campaign_the_first_trials_enter_and_of_all_so_many(site):
    many = [site.trial(number) for number in range(MAX_TRIALS_EACH + 10)]
    few = many[:30]
    others = [site.campaign(f"{number}", few if number == 0 else many) for number in range(9)]
    found = learn_from(site.campaign("c"), [], others, site.trials_of)
    assert [earlier.lesson.trials for earlier in found] == [30, 50, 50, 50, 20]
    assert sum(earlier.lesson.trials for earlier in found) == MAX_TRIALS == 200
    assert [seen.step_time_s for seen in found[1].past.seen] == [1.0 + number for number in range(MAX_TRIALS_EACH)]
    assert site.read == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("counts", "search", "text"),
    [
        ((), "physics", ""),
        ((1,), "physics", "learns from 1 earlier campaign, 1 trial"),
        ((20, 20, 1), "physics", "learns from 3 earlier campaigns, 41 trials"),
        ((1,), "deephyper", "learns what fits into memory, and no speeds, from 1 earlier campaign, 1 trial"),
        ((1, 3), "optuna", "learns what fits into memory, and no speeds, from 2 earlier campaigns, 4 trials"),
        ((1,), "random", ""),
    ],
)
def test_how_much_is_learnt_from_is_said_in_words(counts, search, text):
    assert lessons_text([Lesson(campaign_id="a", trials=count, weight=1.0) for count in counts], search) == text
    assert str(Lesson(campaign_id="a", trials=20, weight=weight_of(OTHER_RELEASE))) == "a (20 trials, weight 0.2)"


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
    assert told == {"lessons": [{"campaign_id": first, "trials": 4, "weight": past.weight, "calibration": False}]}


READS_ALL = {Scope.READ_ALL}


@pytest.mark.parametrize(
    ("owner", "project", "rights", "learns_from"),
    [
        ("", "", None, "all"),
        ("ann", "", None, "own"),
        ("ann", "", {"projects": {"llm:read"}}, "own shared"),
        ("ann", "", {"scopes": READS_ALL}, "all"),
        ("ann", "llm", {"scopes": READS_ALL}, "shared"),
        ("", "llm", None, "shared"),
        ("ann", "empty", {"scopes": READS_ALL}, ""),
    ],
)
def test_a_campaign_learns_from_those_that_all_its_readers_may_read(lab, noted, owner, project, rights, learns_from):
    """The names of the campaigns that it learnt from stand in its answers and its events."""

    def run(name: str, owner: str, project: str = "") -> str:
        id = lab.service.create(lab.document(name=name, project=project, budget={"trials": 1}), owner).id
        lab.run(id)
        return id

    ids = {"own": run("own", "ann"), "shared": run("shared", "bob", "llm"), "closed": run("closed", "bob")}
    if rights is not None:
        kept = {"scopes": {Scope.READ}, **rights}
        lab.store.access.create(Token(name="ann", sha256="", created_at=0.0, expires_at=None, **kept))
    learnt = {lesson.campaign_id for lesson in lab.campaign(run("last", owner, project)).lessons}
    assert learnt == {ids[name] for name in (ids if learns_from == "all" else learns_from.split())}


def test_a_campaign_that_wants_no_warm_start_has_none(lab, noted):
    lab.run(lab.create())
    id = lab.create(warm_start=False)
    lab.run(id)
    assert noted.past == ()
    assert lab.campaign(id).lessons == ()


@pytest.mark.parametrize("search", ["random", "grid"])
def test_a_search_that_learns_nothing_from_others_names_none(lab, noted, search):
    lab.run(lab.create())
    id = lab.create(search=search)
    lab.run(id)
    assert lab.campaign(id).lessons == ()


TOLD = [f"--{name}={{{name}}}" for name in ("tp", "zero_stage", "micro_batch_size", "grad_accum_steps")]


@pytest.mark.parametrize(
    ("command", "counts"),
    [
        (["python3", "train.py", "--lr=2"], True),
        (["torchrun", "/other/folder/train.py"], True),
        (["python", "-m", "pkg.train"], False),
        (["python", "other.py", "--lr=1"], False),
    ],
)
def test_a_program_teaches_itself_whatever_its_arguments_and_no_other(site, command, counts):
    ours, other = (
        site.campaign(" ".join(words), workload={"kind": "command", "dtype": "float16", "command": [*words, *TOLD]})
        for words in (["python", "train.py", "--lr=1"], command)
    )
    assert related(ours, [other]) == [other] * counts


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
