"""`meshtune edit`, `enqueue`, and `resume` with a larger budget, on a home."""

from __future__ import annotations

import yaml
from command_lab import run_meshtune

from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.store import Store

SPEC = """# a comment
name: sim
model: gpt-micro
cluster: dgx-h100
global_batch_size: 64
baseline: {tp: 8}
search: random
workload: simulated
runner: simulated
budget: {trials: 3}
confirm: 0
"""


def stored(folder):
    store = Store.open(Home(folder / ".meshtune").database_url)
    (campaign,) = store.campaigns(limit=10)
    return store, campaign


def test_a_campaign_of_the_command_line_is_edited_extended_and_given_plans(tmp_path):
    (tmp_path / "spec.yaml").write_text(SPEC)

    def meshtune(*words):
        return run_meshtune(tmp_path, *words)

    done = meshtune("run", "spec.yaml")
    assert done.code == 0, done
    refused = meshtune("edit", "last")
    assert (refused.code, "say what is to change" in refused.err) == (2, True)
    refused = meshtune("resume", "last")
    assert (refused.code, "there is nothing to resume" in refused.err) == (2, True)
    refused = meshtune("edit", "last", "--trials", "2")
    assert (refused.code, "3 of 2 trials are planned" in refused.err) == (2, True)
    assert meshtune("edit", "last", "--tag", "a", "--tag", "b", "--notes", "mine").out.endswith(
        "changed: tags, notes\n"
    )
    extended = meshtune("edit", "last", "--trials", "5")
    assert "it goes on: `meshtune resume sim-" in extended.out
    put = meshtune("enqueue", "last", "tp=2,pp=2")
    assert (put.code, put.out.startswith("trial 3 of sim-")) == (0, True), put
    wrong = meshtune("enqueue", "last", "tp=3")
    assert (wrong.code, "tp" in wrong.err) == (2, True)
    resumed = meshtune("resume", "last", "--trials", "6")
    assert resumed.code == 0, resumed
    store, campaign = stored(tmp_path)
    with store:
        trials = store.trials(campaign.id)
        assert [str(trial.origin) for trial in trials] == [
            "baseline",
            "search",
            "search",
            "enqueued",
            "search",
            "search",
        ]
        assert (campaign.tags, campaign.notes, campaign.spec.budget.trials) == (("a", "b"), "mine", 6)
        assert store.spec_text(campaign.id) == SPEC
    assert meshtune("edit", "last", "--no-tags").code == 0
    assert stored(tmp_path)[1].tags == ()


def test_the_text_of_a_spec_is_not_kept_where_something_else_runs(tmp_path):
    (tmp_path / "spec.yaml").write_text(SPEC)
    assert run_meshtune(tmp_path, "run", "spec.yaml", "--project", "llm").code == 0
    store, campaign = stored(tmp_path)
    with store:
        assert (store.spec_text(campaign.id), campaign.spec.project) == ("", "llm")
    assert yaml.safe_load(SPEC)["name"] == campaign.spec.name
