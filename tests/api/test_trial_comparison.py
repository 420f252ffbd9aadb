"""Two to five trials side by side, over HTTP."""

import pytest


@pytest.fixture
def shown(client, create, drive):
    """The campaign, and its comparison of these trials."""
    id = create(budget={"trials": 40})
    drive(id)

    def compare(*numbers):
        return client.get(f"/v1/campaigns/{id}/trial-comparison", params={"trial": list(numbers)})

    compare.trials = client.get(f"/v1/campaigns/{id}/trials", params={"page_size": 200}).json()["trials"]
    return compare


def test_trials_are_compared_by_what_differs_by_their_numbers_and_by_time(shown):
    failed = next(trial for trial in shown.trials if trial["verdict"] == "oom")
    other = next(trial for trial in shown.trials[1:] if trial["verdict"] == "ok")
    found = shown(failed["number"], 0, other["number"]).json()
    assert found["simulated"] is False
    assert [one["trial"] for one in found["trials"]] == [failed["number"], 0, other["number"]]
    whole = [failed, shown.trials[0], other]
    told = {row["name"]: row["values"] for row in found["differences"]}
    assert told["tp"] == [trial["plan"]["tp"] for trial in whole]
    for name in whole[0]["plan"]:
        values = [trial["plan"][name] for trial in whole]
        assert (name in told) == (values != [values[0]] * 3), name
    without, first, second = found["trials"]
    assert (without["verdict"], without["objective"], without["relative"], without["parts"]) == ("oom", None, None, [])
    assert first["relative"] == 1
    assert second["relative"] == pytest.approx(first["step_time_s"] / second["step_time_s"])
    assert second["step_time_s"] == other["measurement"]["step_time_s"]
    assert [part["part"] for part in first["parts"]] == ["compute", "dp"]


def test_too_few_too_many_and_unknown_trials_are_refused(shown, problem):
    for numbers in ((0,), range(6), (0, -1)):
        problem(shown(*numbers), 422, "/problems/malformed-request")
    problem(shown(0, 999), 404, "/problems/not-found")
