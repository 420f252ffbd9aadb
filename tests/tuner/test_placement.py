"""Which nodes a new attempt keeps away from, and that a campaign does."""

from __future__ import annotations

from dataclasses import replace

from meshtune.tuner.campaign.decide import excluded_nodes, nodes_to_avoid, standing_faults
from meshtune.tuner.campaign.trial import Origin, Trial


def placed(trial: Trial, *places: tuple[str, str]) -> Trial:
    """The trial, its attempts on these nodes, of which some failed; names by spaces."""
    attempts = tuple(
        replace(attempt, nodes=tuple(nodes.split()), failed_nodes=tuple(failed.split()))
        for attempt, (nodes, failed) in zip(trial.attempts, places, strict=True)
    )
    return replace(trial, attempts=attempts)


def test_an_attempt_keeps_away_from_what_failed_under_its_trial(make):
    again = placed(make.trial(0, attempt=3), ("n1 n2", "n2"), ("n1 n3", "n3"), ("", ""))
    fresh = make.trial(1)
    assert nodes_to_avoid([again, fresh], again, {}) == ("n2", "n3")
    assert nodes_to_avoid([again, fresh], fresh, {}) == ()


def test_a_node_that_failed_twice_is_shunned_by_all(make):
    fresh = make.trial(2)
    assert excluded_nodes({"n2": 2, "n3": 1}) == {"n2"}
    assert nodes_to_avoid([fresh], fresh, {"n2": 2, "n3": 1}) == ("n2",)


def test_failures_count_until_the_node_has_run_a_job_well():
    runs = [
        (("n1", "n2"), ("n1", "n2"), False),
        (("n1",), (), False),
        (("n2", "n3"), (), True),
        (("n3",), ("n3",), False),
    ]
    assert +standing_faults(runs) == {"n1": 1, "n3": 1}
    assert +standing_faults([*runs, runs[0]]) == {"n1": 2, "n2": 1, "n3": 1}


def test_a_second_measurement_keeps_away_from_the_nodes_of_the_first(make):
    first, other = placed(make.trial(0), ("n1 n2", "")), placed(make.trial(1), ("n5", ""))
    again = make.trial(2, origin=Origin.CONFIRMATION, plan=first.plan)
    assert nodes_to_avoid([first, other, again], again, {}) == ("n1", "n2")
    moved = placed(make.trial(0, attempt=2), ("n8", "n8"), ("n3", ""))
    assert nodes_to_avoid([moved, again], again, {}) == ("n3",)


def test_a_campaign_goes_on_elsewhere_and_tells_where_it_was(lab, make):
    lab.machine.nodes = ("n1", "n2", "n3")
    lab.machine.script = lambda name: make.Behaviour("fault" if "t0000-a1" in name else "ok")
    id = lab.create(budget={"trials": 2}, confirm=1)
    lab.run(id)
    first, second, again, *_ = lab.trials(id)
    assert [(one.avoid, one.nodes, one.failed_nodes) for one in first.attempts] == [
        ((), ("n1",), ("n1",)),
        (("n1",), ("n2",), ()),
    ]
    assert (second.last.avoid, second.last.nodes) == ((), ("n1",))
    origin = first if again.plan == first.plan else second
    assert again.last.avoid == origin.last.nodes
    assert again.last.nodes != origin.last.nodes
    data = [event.data for event in lab.store.events(id) if event.kind in ("trial.submitted", "trial.done")]
    assert [(row.get("avoid"), row.get("nodes"), row.get("failed_nodes")) for row in data[:4]] == [
        (None, None, None),
        (None, ["n1"], ["n1"]),
        (["n1"], None, None),
        (None, ["n2"], None),
    ]
    assert data[1]["failure"] == "node_fault"


def test_a_node_that_failed_under_two_campaigns_is_shunned_by_a_third_for_a_day(lab, make):
    lab.machine.nodes = ("n1", "n2")
    lab.machine.script = lambda name: make.Behaviour("fault" if name.endswith("t0000-a1") else "ok")
    for _ in range(2):
        lab.run(lab.create(budget={"trials": 1}))
    for hours, avoided in ((0.0, ("n1",)), (25.0, ())):
        lab.now += 3600 * hours
        id = lab.create(budget={"trials": 2})
        lab.run(id)
        assert lab.trials(id)[0].attempts[0].avoid == avoided
    other = lab.create(budget={"trials": 1}, cluster={"preset": "local-cpu", "device": {"name": "another"}})
    lab.run(other)
    assert lab.trials(other)[0].attempts[0].avoid == ()


def test_a_node_that_ran_well_since_it_failed_twice_is_used_again(lab, make):
    lab.machine.nodes = ("n1", "n2")
    lab.machine.script = lambda name: make.Behaviour("fault" if name.endswith("t0000-a1") else "ok")
    for _ in range(2):
        lab.run(lab.create(budget={"trials": 1}))
    # Nobody else was to be had: it ran, and well.
    lab.machine.nodes = ("n1",)
    lab.machine.script = lambda name: make.Behaviour("ok")
    shunning, trusting = lab.create(budget={"trials": 1}), lab.create(budget={"trials": 1})
    lab.run(shunning)
    lab.run(trusting)
    firsts = [lab.trials(id)[0].attempts[0] for id in (shunning, trusting)]
    assert [(attempt.avoid, attempt.nodes) for attempt in firsts] == [(("n1",), ("n1",)), ((), ("n1",))]
