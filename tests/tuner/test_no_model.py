"""A campaign without the model's shapes: nothing is predicted, a token is a sample, and the search learns from trials.

The program is a script of two processes that sleeps, and runs out of memory where its micro-batch is too large.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_lab import refused, run_campaign, run_meshtune, said
from hypothesis import given, settings
from hypothesis import strategies as st

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.constraints import CONSTRAINTS, OF_SHAPES
from meshtune.search_spaces.model import NO_MODEL
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.objective import yardstick_of
from meshtune.tuner.campaign.spec import DEFAULT_TIME_LIMIT_S, document_of
from meshtune.tuner.campaign.trial import first_runs
from meshtune.tuner.prediction.predict import Basis, training_of
from meshtune.tuner.prediction.quote import explain
from meshtune.tuner.results.comparison import compare
from meshtune.tuner.results.known_best import CampaignRecords
from meshtune.tuner.results.report.campaigns import render_report
from meshtune.tuner.search.base import Observation, propose, task_of
from meshtune.tuner.search.registry import create_search
from meshtune.tuner.search.warm_start import related
from meshtune.tuner.specs.document import InvalidSpec
from meshtune.tuner.specs.read import quoted, read_model, read_spec
from meshtune.tuner.store.rows import decode_spec, encode_spec

ROOT = Path(__file__).parents[2]
# No word of these may stand in what a campaign without a model says.
NEVER = re.compile(
    r"tokens?/s|\btokens that\b|1e9 tokens|\bnan\b|\bNaN\b|MFU [0-9]|[0-9] TFLOP|\b0 layers|billion param"
)
TRAINS = """\
import argparse, os, time
from meshtune.runners.report import Reporter

parser = argparse.ArgumentParser()
for name in ("batch", "passes", "zero"):
    parser.add_argument("--" + name, type=int)
given = parser.parse_args()
if given.batch >= 8 and given.zero == 0:
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
reporter = Reporter()
while True:
    time.sleep(given.passes * (0.004 + 0.001 * given.batch) + 0.002 * given.zero)
    if reporter.step(loss=2.0):
        break
reporter.done(peak_memory_bytes=[10**6 * given.batch] * int(os.environ["WORLD_SIZE"]))
"""
WORDS = ["train.py", "--batch", "{micro_batch_size}", "--passes", "{grad_accum_steps}", "--zero", "{zero_stage}"]


def document(**over: Any) -> dict[str, Any]:
    return {
        "name": "nameless",
        "cluster": {"preset": "local-cpu", "devices_per_node": 2},
        "global_batch_size": 32,
        "space": {"zero_stage": [0, 1]},
        "workload": {"kind": "command", "command": ["{python}", *WORDS], "steps": 8, "warmup_steps": 2},
        "baseline": {"micro_batch_size": 1},
        "budget": {"trials": 7},
        **over,
    }


def read(**over: Any):
    return read_spec(document(**over), None)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A whole campaign in a home, and the folder it is in."""
    folder = tmp_path_factory.mktemp("nameless")
    script = folder / "train.py"
    script.write_text(TRAINS)
    workload = {"kind": "command", "command": ["{python}", str(script), *WORDS[1:]], "steps": 8, "warmup_steps": 2}
    over = {"confirm": 1, "confirm_rounds": 2, "runner": {"kind": "local", "idle_s": 1}}
    # By measured times the chance is below 5 % after 5 to 9 trials.
    spec = document(workload=workload, stop={"chance": 0}, **over)
    result, campaign, trials = run_campaign(folder, spec, ROOT)
    assert result.code == 0, result.err
    return folder, result, campaign, trials


# Reading


@pytest.mark.parametrize("given", [{}, {"model": None}, {"model": "unknown"}])
def test_a_model_may_be_left_out_and_is_read_back_as_it_was(given):
    spec, space = read(**given)
    assert spec.model == NO_MODEL
    assert not spec.model.known
    assert len(space) == 10
    assert document_of(spec)["model"] == "unknown"
    assert read_spec(document_of(spec), None)[0] == spec == decode_spec(encode_spec(spec))


DEEPSPEED = {"kind": "deepspeed", "script": "/train.py"}


@pytest.mark.parametrize(
    ("over", "path", "words"),
    [
        ({"workload": "torch"}, "model", "is missing: give a preset.*; the workload needs its shapes"),
        ({"workload": "simulated", "runner": "simulated"}, "model", "needs its shapes"),
        ({"workload": {"kind": "megatron", "directory": "/m"}}, "model", "needs its shapes"),
        ({"workload": "torchtitan"}, "model", "needs its shapes"),
        (
            {"workload": {"kind": "command", "command": [*WORDS, "{seq_len}", "{hidden}"]}},
            "model",
            "is told hidden, seq_len",
        ),
        ({"workload": {**DEEPSPEED, "arguments": ["--depth {layers}"]}}, "model", "is told layers"),
        ({"objective": "mfu"}, "objective", "mfu needs the model's shapes"),
        ({"objective": "tflops_per_device"}, "objective", "needs the model's shapes"),
    ],
)
def test_what_needs_the_shapes_is_refused_without_them(over, path, words):
    with pytest.raises(InvalidSpec) as refusal:
        read(**over)
    told = [problem.message for problem in refusal.value.problems if problem.path == path]
    assert any(re.search(words, one) for one in told), told


def test_a_deepspeed_script_that_is_told_no_shapes_needs_no_model():
    spec, space = read(workload=DEEPSPEED, space={"zero_stage": [0, 1, 2, 3]})
    assert not spec.model.known
    assert {space[at].zero_stage for at in range(len(space))} == {0, 1, 2, 3}


@pytest.mark.parametrize("section", [None, "unknown"])
def test_where_only_a_model_is_asked_for_none_is_no_answer(section):
    with pytest.raises(InvalidSpec, match=r"model\.layers"):
        read_model(section)


# The space


class Shapeless:
    """A model whose sizes nobody may ask for."""

    known = False

    def __getattr__(self, name: str) -> Any:
        if name in ("experts", "shapes"):  # of what a trainer must be able to run, which nobody asks of this one
            return getattr(NO_MODEL, name)
        raise AssertionError(f"{name} of no model was asked for")


def test_no_rule_that_is_kept_asks_for_a_size_of_the_model():
    _, space = read(cluster={"preset": "dgx-h100", "nodes": 2}, space={"tp": [1, 2], "pp": [1, 2]})
    columns = columns_of([Plan(tp=2, pp=2, dp=4, micro_batch_size=2, grad_accum_steps=4)])
    bare = object.__new__(type(space.context))
    for name in type(space.context).__slots__:
        object.__setattr__(bare, name, Shapeless() if name == "model" else getattr(space.context, name))
    for rule in CONSTRAINTS:
        if rule.name not in OF_SHAPES:
            rule.holds(columns, bare)
    assert {rule.name for rule in CONSTRAINTS} > OF_SHAPES


def test_degrees_that_no_model_has_are_legal_and_those_of_devices_and_batch_are_not():
    tells = ["x", "{tp}", "{pp}", "{cp}", "{micro_batch_size}", "{grad_accum_steps}", "{recompute}"]
    given = {"workload": {"kind": "command", "command": tells}, "baseline": None}
    cluster = {"preset": "dgx-h100", "nodes": 3, "devices_per_node": 7}
    _, space = read(cluster=cluster, space={"recompute": ["none", "full"], "cp": [1, 3]}, global_batch_size=42, **given)
    plans = [space[at] for at in range(len(space))]
    assert {7} < {plan.tp for plan in plans} | {plan.pp for plan in plans}
    assert {plan.cp for plan in plans} == {1, 3}
    assert {plan.ep for plan in plans} == {1}
    assert all(plan.world_size == 21 and plan.global_batch_size == 42 for plan in plans)


# Predictions

AXES = st.fixed_dictionaries(
    {
        "micro_batch_size": st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, unique=True),
        "zero_stage": st.lists(st.sampled_from([0, 1, 2, 3]), min_size=1, unique=True),
        "recompute": st.lists(st.sampled_from(["none", "full"]), min_size=1, unique=True),
        "tp": st.just([1, 2, 4]),
    }
)


def numbers_in(value: object) -> list[str]:
    return re.findall(r"(?i)\b(?:nan|inf|infinity)\b", json.dumps(value, default=str))


@settings(max_examples=12, deadline=None)
@given(
    bounds=AXES, nodes=st.integers(1, 3), objective=st.sampled_from(["tokens_per_s_per_device", "step_time", "cost"])
)
def test_nothing_is_predicted_of_any_space(bounds, nodes, objective):
    tells = ["x", *(f"{{{axis}}}" for axis in (*bounds, "grad_accum_steps"))]
    given = document(
        cluster={"preset": "dgx-h100", "nodes": nodes},
        space=bounds,
        global_batch_size=96,
        objective=objective,
        workload={"kind": "command", "command": tells},
        baseline=None,
        search="physics",
    )
    spec, space = read_spec(given, None)
    quote = quoted(given, spec, space, Basis())
    assert (quote.fit, quote.best, quote.memory_needs) == (None, (), ())
    assert quote.cost.steps is None
    assert quote.cost.first_runs == min(7, space.plans)
    assert quote.limits.time_limit_s == DEFAULT_TIME_LIMIT_S
    assert quote.limits.device_hours is None
    assert [one.path for one in quote.missing] == ["model"]
    why = explain(spec, space, space[0], Basis())
    assert (why.legal, why.prediction, why.best, why.rank, why.differences_s) == (True, None, None, None, {})
    assert not numbers_in(document_of(spec))
    chosen = propose(create_search("physics", seed=1, options={}), task_of(spec, space, training_of(spec)), spec, [], 3)
    assert len(chosen.plans) == min(3, len(space))
    assert all(choice.expectation is None for choice in chosen.choices)


@pytest.mark.parametrize("search", ["physics", "random", "grid", "optuna"])
def test_every_search_goes_through_the_space_and_leaves_what_surely_does_not_fit_for_the_end(search):
    if search == "optuna":
        pytest.importorskip("optuna")
    spec, space = read()
    task, seen = task_of(spec, space, training_of(spec)), list[Observation]()
    for _ in range(len(space)):
        (plan,) = create_search(search, seed=0, options={}).ask(task, seen, 1).plans
        if plan.micro_batch_size >= 8 and plan.zero_stage == 0:
            seen.append(Observation(plan=plan, verdict=Verdict.OOM))
        else:
            step_s = 0.1 / plan.micro_batch_size
            seen.append(Observation(plan=plan, verdict=Verdict.OK, score=1 / step_s, step_time_s=step_s))
    assert {one.plan for one in seen} == {space[at] for at in range(len(space))}
    if search == "physics":
        first = next(at for at, one in enumerate(seen) if one.verdict is Verdict.OOM)
        larger = next(at for at, one in enumerate(seen) if at != first and one.verdict is Verdict.OOM)
        assert larger == len(seen) - 1 or seen[first].plan.micro_batch_size == 16


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_the_search_does_not_depend_on_how_long_a_step_takes(scale):
    """Nothing is known of the program's speed: times of another unit give the same first choices."""
    spec, space = read(global_batch_size=64)
    task = task_of(spec, space, training_of(spec))

    def choices(unit: float) -> list[Plan]:
        search, seen = create_search("physics", seed=3, options={}), list[Observation]()
        for _ in range(6):
            (plan,) = search.ask(task, seen, 1).plans
            step_s = unit * (1.0 + 4.0 / plan.micro_batch_size + 0.1 * plan.zero_stage)
            seen.append(Observation(plan=plan, verdict=Verdict.OK, score=1 / step_s, step_time_s=step_s))
        return [one.plan for one in seen]

    assert choices(scale)[:4] == choices(1.0)[:4]


# What is shown


def test_a_token_is_a_sample_in_every_unit():
    units = {
        name: yardstick_of(read(objective=name)[0]).unit for name in ("tokens_per_s_per_device", "step_time", "cost")
    }
    assert units == {
        "tokens_per_s_per_device": "samples/s/device",
        "step_time": "s",
        "cost": "device-hours/1e9 samples",
    }
    priced = {"preset": "local-cpu", "devices_per_node": 2, "device_hour_price": 2.0}
    assert yardstick_of(read(objective="cost", cluster=priced)[0]).unit == "cost/1e9 samples"


def test_an_estimate_counts_the_space_and_says_why_nothing_is_predicted(tmp_path):
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(document()))
    text = said(tmp_path, "estimate", "spec.yaml")
    assert "10 legal plans" in text
    assert "nothing is predicted:" in text
    assert "learnt from trials alone" in text
    assert re.search(r"cost: .* for 7 trials", text)
    assert "P(fits)" not in text
    assert NEVER.search(text) is None
    why = said(tmp_path, "estimate", "spec.yaml", "--plan", "micro_batch_size=2")
    assert "legal" in why
    assert "no prediction: the model is not named" in why
    assert "model: is not named" in refused(tmp_path, "project", "spec.yaml", "--nodes", "2")


def test_a_whole_campaign_finds_the_best_and_learns_what_does_not_fit(ended):
    _, result, campaign, trials = ended
    assert campaign.state is CampaignState.COMPLETED
    assert "learnt from trials alone" in re.sub(r"\s+", " ", result.out)
    first = first_runs(trials)
    assert {trial.verdict for trial in trials} <= {Verdict.OK, Verdict.OOM}
    # What surely needs more than a plan that ran out is not tried while others are left.
    too_large = [trial.plan.micro_batch_size for trial in first if trial.verdict is Verdict.OOM]
    assert too_large in ([], [8], [16], [16, 8])
    best = min((trial for trial in first if trial.measurement), key=lambda trial: trial.measurement.step_time_s)
    assert (best.plan.micro_batch_size, best.plan.zero_stage) == (16, 1)
    assert all(trial.expectation is None for trial in trials)
    assert {trial.measurement.model_flops_per_token for trial in trials if trial.measurement} == {None}
    assert {trial.measurement.tokens_per_step for trial in trials if trial.measurement} == {32}
    assert "samples/s/device" in result.out
    assert NEVER.search(result.out) is None


def test_every_command_shows_it_without_a_number_of_the_model(ended):
    folder, *_ = ended
    home = ["--home", folder / "home"]
    shown = {
        name: said(folder, *words, *home)
        for name, words in {
            "all": ["show"],
            "one": ["show", "last"],
            "trial": ["show", "last", "--trial", "0"],
            "best": ["best", "last"],
            "analyze": ["analyze", "last"],
            "json": ["best", "last", "--json"],
        }.items()
    }
    assert "samples/s" in shown["one"]
    assert "samples/s" in shown["trial"]
    assert "no times can be predicted: model is not known" in shown["analyze"]
    best = json.loads(shown["json"])["best"][0]
    assert (best["tflops_per_device"], best["mfu"]) == (None, None)
    assert best["objective"]["unit"] == "samples/s/device"
    assert run_meshtune(folder, "report", "last", "-o", "report.html", *home).code == 0
    assert run_meshtune(folder, "export-data", "last", "-o", "trials.csv", *home).code == 0
    shown["report"] = re.sub(
        r"<style.*?</style>|data:[^\"]*|<[^>]+>", " ", (folder / "report.html").read_text(), flags=re.S
    )
    assert "unknown model" in shown["report"]
    assert "samples/s/device" in (folder / "trials.csv").read_text()
    for name, text in shown.items():
        assert NEVER.search(text) is None, (name, NEVER.search(text))


def test_it_is_exported_as_its_own_job_and_not_as_another_programs(ended):
    folder, *_ = ended
    home = ["--home", folder / "home"]
    assert run_meshtune(folder, "export", "last", "--format", "json", "-o", "as-json", *home).code == 0
    setting = json.loads((folder / "as-json" / "setting.json").read_text())
    assert (setting["mfu"], setting["tflops_per_device"]) == (None, None)
    assert run_meshtune(folder, "export", "last", "--format", "job", "-o", "as-job", *home).code == 0
    assert "--batch 16 --passes 1 --zero 1" in (folder / "as-job" / "launch.sh").read_text()
    assert "model: is not named" in refused(folder, "export", "last", "--format", "megatron", "-o", "no", *home)


# Other campaigns


def test_it_teaches_no_other_campaign_and_is_no_answer_to_what_is_best_known(ended):
    _, _, campaign, _ = ended
    other = replace(campaign, id="other")
    named = replace(other, spec=replace(other.spec, model=replace(NO_MODEL, name="one", layers=2)))
    assert related(campaign, [other, named]) == []
    assert related(named, [campaign, replace(named, id="third")])[0].id == "third"
    records = CampaignRecords([campaign, named], lambda id: [])
    assert [one.id for one in records.only(simulated=False).campaigns] == ["other"]


def test_campaigns_side_by_side_count_samples(ended):
    _, _, campaign, trials = ended
    two = [(campaign, trials), (replace(campaign, id="other"), trials)]
    assert {one.speed_unit for one in compare(two).campaigns} == {"samples/s"}
    text = re.sub(r"<style.*?</style>|data:[^\"]*|<[^>]+>", " ", render_report(two), flags=re.S)
    assert "samples/s/device" in text
    assert NEVER.search(text) is None, NEVER.search(text)


def test_an_exact_estimate_without_a_baseline_names_what_it_is_of(tmp_path):
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(document(baseline=None)))
    done = run_meshtune(tmp_path, "estimate", "spec.yaml", "--exact")
    assert done.code == 2
    assert done.err.startswith(
        "the spec names no baseline: of the plan first of the legal ones\nmeshtune: exact memory"
    )


def test_the_chance_of_the_stopping_rule_needs_no_prediction():
    spec, space = read()
    task, seen, chances = task_of(spec, space, training_of(spec)), list[Observation](), []
    for _ in range(len(space)):
        proposal = create_search("physics", seed=0, options={}).ask(task, seen, 1)
        chances.append(proposal.chance_left)
        (plan,) = proposal.plans
        step_s = plan.grad_accum_steps * (0.004 + 0.001 * plan.micro_batch_size) + 0.002 * plan.zero_stage
        seen.append(Observation(plan=plan, verdict=Verdict.OK, score=1 / step_s, step_time_s=step_s))
    assert chances[0] is None
    assert 1 > chances[1] > 0.5 > chances[4] > spec.stop.chance > chances[-1]


def test_a_campaign_notes_the_chance_that_its_search_left(ended):
    _, _, campaign, _ = ended
    assert campaign.search_ended == "the budget of 7 trials is spent"
    assert campaign.chance_left is not None
    assert 0 <= campaign.chance_left < 1
