"""A campaign compares what was measured on one kind of hardware, and says so where it was not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from meshtune.runners.base import Cause, JobState, JobStatus
from meshtune.runners.documents import plain
from meshtune.runners.hardware import HardwareKind
from meshtune.runners.outcome import Outcome, Verdict
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.decide import Finish, PolledJob, decide, nodes_to_avoid
from meshtune.tuner.campaign.eligibility import eligible
from meshtune.tuner.campaign.node_kinds import comparable, reference_of
from meshtune.tuner.campaign.second_runs import finalists
from meshtune.tuner.campaign.trial import Origin, TrialState
from meshtune.tuner.cli.render.display import best_notes
from meshtune.tuner.cli.render.trial import trial_page
from meshtune.tuner.results.comparison import compare
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.results.recommendation import recommend
from meshtune.tuner.results.views import best_view

H100 = HardwareKind(
    device="NVIDIA H100 80GB HBM3", memory_bytes=80 << 30, clock_mhz=1980, driver="550.54", nodes=("n0",)
)
A100 = HardwareKind(device="NVIDIA A100-SXM4-80GB", memory_bytes=80 << 30, clock_mhz=1410, nodes=("n2",))
NOTE = "measured on other hardware: NVIDIA A100-SXM4-80GB (baseline: NVIDIA H100 80GB HBM3)"


@pytest.fixture
def campaign(lab, make):
    return lambda **over: make.campaign(lab.spec(**{"baseline": {"tp": 1}, **over}))


@pytest.fixture
def trials(make):
    """The baseline on H100, then a trial for each kind or kinds. step_s: of the baseline and each of them."""

    def build(*kinds, step_s=(2.0, 1.0, 1.5)):
        placed = [(H100,), *(kind if isinstance(kind, tuple) else (kind,) for kind in kinds)]
        return [
            make.trial(
                number,
                make.measurement(step_s[number], hardware=hardware),
                origin=Origin.BASELINE if number == 0 else Origin.SEARCH,
            )
            for number, hardware in enumerate(placed)
        ]

    return build


def seen(measurement, *nodes):
    status = JobStatus(state=JobState.SUCCEEDED, nodes=nodes, finished_at=9.0)
    return PolledJob(status, Outcome(verdict=Verdict.OK, measurement=measurement))


def test_a_trial_on_another_kind_than_the_baseline_is_lost_to_its_nodes(campaign, trials, make):
    running = make.trial(1, state=TrialState.RUNNING)
    look = {1: seen(make.measurement(1.0, hardware=(A100,)), "n2")}
    (finish,) = decide(campaign(), [*trials(), running], look, 9.0)
    assert finish == Finish(
        1,
        Outcome(
            verdict=Verdict.LOST,
            cause=Cause.OTHER_HARDWARE,
            reason=f"{NOTE}: to be run again without n2",
        ),
        *(None, 9.0, ("n2",), ("n2",)),
    )


@pytest.mark.parametrize(
    ("hardware", "nodes"),
    [
        ((H100,), ("n0",)),
        ((replace(H100, driver="535.1", nodes=("n9",)),), ("n9",)),
        # Unknown.
        ((), ("n2",)),
    ],
)
def test_a_measurement_counts_where_it_is_alike_or_unknown(campaign, trials, make, hardware, nodes):
    measurement = make.measurement(1.0, hardware=hardware)
    running = make.trial(1, state=TrialState.RUNNING)
    (finish,) = decide(campaign(), [*trials(), running], {1: seen(measurement, *nodes)}, 9.0)
    assert finish.outcome == Outcome(verdict=Verdict.OK, measurement=measurement)


@pytest.mark.parametrize("nodes", [(), ("n7",)])
def test_without_nodes_that_could_be_avoided_a_measurement_stays_and_tells_its_hardware(campaign, trials, make, nodes):
    running = make.trial(1, state=TrialState.RUNNING)
    look = {1: seen(make.measurement(1.0, hardware=(A100,)), *nodes)}
    (finish,) = decide(campaign(), [*trials(), running], look, 9.0)
    assert (finish.outcome.verdict, finish.outcome.reason, finish.failed_nodes) == (Verdict.OK, NOTE, ())


def test_of_a_mix_the_nodes_of_the_other_kind_are_avoided(campaign, trials, make):
    running = make.trial(1, state=TrialState.RUNNING)
    mix = make.measurement(1.0, hardware=(replace(H100, nodes=("n1",)), replace(A100, nodes=("n2", "n3"))))
    (finish,) = decide(campaign(), [*trials(), running], {1: seen(mix, "n1", "n2", "n3")}, 9.0)
    assert finish.failed_nodes == ("n2", "n3")
    assert finish.outcome.reason.startswith(
        "measured on other hardware: NVIDIA H100 80GB HBM3 and NVIDIA A100-SXM4-80GB (base"
    )


def test_the_last_attempt_and_the_baseline_and_nodes_that_were_to_be_avoided_keep_their_measurement(
    campaign, trials, make
):
    look = seen(make.measurement(1.0, hardware=(A100,)), "n2")
    last = make.trial(1, state=TrialState.RUNNING, attempt=3)
    told = make.trial(1, state=TrialState.RUNNING)
    told = replace(told, attempts=(replace(told.last, avoid=("n2",)),))
    again = make.trial(0, state=TrialState.RUNNING, origin=Origin.BASELINE)
    for history, number in (([*trials(), last], 1), ([*trials(), told], 1), ([again], 0)):
        (finish,) = decide(campaign(), history, {number: look}, 9.0)
        assert finish.outcome.verdict is Verdict.OK
    ending = replace(campaign(), state=CampaignState.CANCELLING)
    (finish,) = decide(ending, [*trials(), make.trial(1, state=TrialState.RUNNING)], {1: look}, 9.0)
    assert finish.outcome.verdict is Verdict.OK


def test_the_reference_is_the_baseline_else_the_first_measured_trial(trials, make):
    first, second = (
        make.trial(n, make.measurement(1.0, hardware=(kind,)), finished_at=9.0 - n)
        for n, kind in enumerate([A100, H100])
    )
    assert reference_of([first, second]).hardware == (H100,)
    assert reference_of([first, second]).whose == "trial 1"
    assert reference_of(trials(A100)).hardware == (H100,)
    assert reference_of([make.trial(0, state=TrialState.RUNNING, origin=Origin.BASELINE), second]) is None
    assert reference_of([make.trial(0, make.measurement(1.0), origin=Origin.BASELINE), second]) is None
    assert reference_of([make.trial(0, Verdict.OOM, origin=Origin.BASELINE), second]).whose == "trial 1"


def test_nodes_of_other_kinds_are_avoided_by_all_and_are_no_faulty_ones(trials, make):
    lost = Outcome(verdict=Verdict.LOST, cause=Cause.OTHER_HARDWARE, reason="elsewhere")
    moved = make.trial(2, make.measurement(1.0, hardware=(replace(H100, nodes=("n1",)),)), attempt=3)
    first, second, third = moved.attempts
    first, second = (replace(one, outcome=lost, nodes=("n1", "n3"), failed_nodes=("n3",)) for one in (first, second))
    moved = replace(moved, attempts=(first, second, third))
    _, kept = trials(A100)
    kept = replace(kept, attempts=(replace(kept.last, nodes=("n2",)),))
    fresh = make.trial(3)
    assert nodes_to_avoid([trials()[0], kept, moved, fresh], fresh, {}) == ("n2", "n3")
    # Nor do second runs avoid the nodes of the first then, of which too few might be left.
    again = make.trial(4, origin=Origin.CONFIRMATION, plan=moved.plan)
    assert nodes_to_avoid([trials()[0], kept, moved, again], again, {}) == ("n2", "n3")


def test_what_was_measured_elsewhere_is_ranked_told_and_never_recommended(campaign, make, trials):
    history = trials(A100, H100)
    ranking = rank(campaign(), history)
    assert [(entry.trial.number, entry.usable, entry.other_hardware) for entry in ranking] == [
        *((1, False, NOTE), (2, True, ""), (0, True, ""))
    ]
    found = recommend(campaign(), make.thrice(history))
    assert (found.choice.trial.number, found.better) == (2, True)
    assert f"had a faster first run, but was {NOTE}" in found.reason
    assert plain(best_view(campaign(), ranking, 3))["best"][0]["other_hardware"] == NOTE
    assert f"! trial 1 {NOTE}; never recommended" in [str(note) for note in best_notes(campaign(), ranking, 3)]


def test_a_trial_shows_its_hardware(trials):
    console = Console(width=200)
    with console.capture() as shown:
        console.print(trial_page(trials()[0]))
    assert "hardware: NVIDIA H100 80GB HBM3 (80 GiB, 1980 MHz), driver 550.54 on n0" in shown.get()


def test_nothing_is_learnt_from_the_speed_of_other_hardware(trials):
    first, second, third = comparable(trials(A100, H100))
    assert (first.verdict, second.verdict, third.verdict) == (Verdict.OK, Verdict.LOST, Verdict.OK)
    assert second.outcome.failure is Cause.OTHER_HARDWARE


def test_what_was_measured_elsewhere_takes_no_place_among_the_second_runs(campaign, trials):
    history = trials(A100, H100)
    spec = replace(campaign().spec, confirm=1)
    assert finalists(spec, history, eligible(spec, history)) == [history[2].plan, history[0].plan]


def test_a_second_run_elsewhere_says_nothing_of_its_plan(campaign, trials, make):
    history = trials(H100)
    again = make.trial(
        2,
        make.measurement(0.1, hardware=(A100,)),
        origin=Origin.CONFIRMATION,
        plan=history[1].plan,
    )
    entry = rank(campaign(), [*history, again])[0]
    assert (entry.step_time_s, entry.other_hardware, entry.confirmed) == (pytest.approx(1.0), "", False)


def test_campaigns_on_unlike_hardware_are_compared_with_a_word(campaign, trials, make):
    one, other = campaign(), replace(campaign(), id="d", created_at=1.0)
    elsewhere = [make.trial(0, make.measurement(1.0, hardware=(A100,)), origin=Origin.BASELINE)]
    notes = compare([(one, trials(H100)), (other, elsewhere)]).notes
    assert "d was measured on NVIDIA A100-SXM4-80GB, c on NVIDIA H100 80GB HBM3" in notes
    assert not [note for note in compare([(one, trials(H100)), (other, trials(H100))]).notes if "measured on" in note]


def test_a_campaign_moves_to_the_nodes_of_its_baselines_kind(lab):
    lab.machine.nodes = ("n0", "n2", "n1")
    lab.machine.kinds = {"n0": H100, "n1": H100, "n2": A100}
    id = lab.create(budget={"trials": 3}, confirm=0, baseline={"tp": 1})
    lab.run(id, until=lambda: bool(lab.trials(id)) and lab.trials(id)[0].state.final)
    # The first node is somebody else's now.
    lab.machine.nodes = ("n2", "n1")
    lab.run(id)
    baseline, moved, straight = lab.trials(id)
    assert baseline.measurement.hardware == (replace(H100, nodes=("n0",)),)
    assert [(one.nodes, one.failed_nodes, one.outcome.failure) for one in moved.attempts] == [
        (("n2",), ("n2",), Cause.OTHER_HARDWARE),
        (("n1",), (), None),
    ]
    assert [one.nodes for one in straight.attempts] == [("n1",)]
    assert straight.last.avoid == ("n2",)
    assert lab.store.node_faults(lab.campaign(id).spec.cluster.device.name, 0.0) == {}


def test_a_campaign_that_finds_no_other_nodes_keeps_what_it_measured(lab):
    lab.machine.nodes, lab.machine.kinds = ("n0",), {"n0": H100, "n2": A100}
    id = lab.create(budget={"trials": 2}, confirm=0, baseline={"tp": 1})
    lab.run(id, until=lambda: bool(lab.trials(id)) and lab.trials(id)[0].state.final)
    lab.machine.nodes = ("n2",)
    lab.run(id)
    _, kept = lab.trials(id)
    # The second attempt was told to avoid the only node, so a third one would meet it too.
    assert [one.outcome.verdict for one in kept.attempts] == [Verdict.LOST, Verdict.OK]
    assert (kept.outcome.reason, kept.last.failed_nodes) == (NOTE, ())
    (_, entry) = sorted(rank(lab.campaign(id), lab.store.pages.listed(id)), key=lambda one: one.trial.number)
    assert entry.other_hardware == NOTE
