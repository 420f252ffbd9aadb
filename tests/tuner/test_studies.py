"""Studies: read with every mistake told, run end to end by the command, and told with published figures beside ours."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from command_lab import run_meshtune
from simulated_lab import failing

from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.spec import space_of
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.studies.drawings import DRAWINGS
from meshtune.tuner.studies.evidence import Run
from meshtune.tuner.studies.measures import MEASURED, MEASURES, TrialsTo
from meshtune.tuner.studies.read import load_study
from meshtune.tuner.studies.study import Certainty, DrawingKind, shipped

pytestmark = pytest.mark.slow

SPEC = {
    "name": "small",
    "model": "gpt-22b",
    "cluster": {"preset": "frontier", "nodes": 8},
    "global_batch_size": 640,
    "space": {
        "tp": [2, 4, 8],
        "pp": [1, 2, 4],
        "micro_batch_size": [1, 2, 4],
        "zero_stage": [0, 1],
        "recompute": ["full"],
        "sequence_parallel": [False],
    },
    "baseline": {"tp": 4, "pp": 2, "zero_stage": 1, "recompute": "full", "sequence_parallel": False},
    "workload": {"kind": "simulated", "framework": "megatron-deepspeed-flash"},
    "runner": {"kind": "simulated", "noise": 0.0},
    "search": "random",
    "objective": "tflops_per_device",
    "budget": {"trials": 14},
    "stop": {"chance": 0},
    "confirm": 0,
    "trial": {"time_limit_s": 1e6},
}
CHEAP = {"value": 50.0, "source": "a page", "certainty": "memory"}
STUDY = {
    "title": "A small study",
    "paper": {"title": "A paper", "authors": "Some et al.", "year": 2023, "source": "arXiv 1"},
    "shows": "That it runs. And more.",
    "campaigns": {
        "random": {"spec": "spec.yaml", "seeds": [1, 2]},
        "physics": {"spec": "spec.yaml", "change": {"search": {"kind": "physics"}}, "seeds": [1, 2]},
        "half": {"spec": "spec.yaml", "change": {"cluster": {"nodes": 4}, "budget": {"trials": 1}}},
    },
    "rows": [
        {
            "name": "MFU of the baseline",
            "unit": "%",
            "published": {"value": 34.0, "source": "abstract", "certainty": "abstract"},
            "predicted": {"measure": "value", "quantity": "mfu", "campaign": "random"},
            "measured": {"measure": "value", "quantity": "mfu", "campaign": "random"},
        },
        {
            "name": "step of the best",
            "unit": "s",
            "published": {"value": 1.0, "source": "nowhere", "certainty": "memory"},
            "predicted": {"measure": "value", "quantity": "step_time", "campaign": "physics", "plan": "best"},
            "explanation": "One second\nis not what it takes.",
        },
        {
            "name": "strong scaling",
            "unit": "%",
            "predicted": {
                "measure": "ratio",
                "quantity": "tflops_per_device",
                "campaign": "random",
                "over": {"campaign": "half"},
            },
        },
        {"name": "failed", "unit": "%", "measured": {"measure": "failed", "campaign": "random", "part": "all"}},
        {
            "name": "trials of physics",
            "unit": "trials",
            "measured": {"measure": "trials_to", "campaign": "physics", "among": ["random"]},
        },
        {"name": "place of tp", "unit": "", "measured": {"measure": "rank", "campaign": "random", "knob": "tp"}},
    ],
    "draw": [
        {"kind": "best_so_far", "campaigns": ["random", "physics"]},
        {"kind": "failures", "campaigns": ["random", "physics"]},
        {"kind": "shapley", "campaigns": ["random"]},
        {"kind": "worth", "campaigns": ["random"]},
        {"kind": "scaling", "campaigns": ["random", "half"]},
    ],
}


def write(folder: Path, study: dict[str, object], spec: dict[str, object] = SPEC) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "study.yaml").write_text(yaml.safe_dump(study))
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    return folder


def mistakes(folder: Path, study: dict[str, object], spec: dict[str, object] = SPEC) -> list[str]:
    with pytest.raises(InvalidValue) as told:
        load_study(write(folder / "wrong", study, spec), None)
    return [str(problem) for problem in told.value.problems]


def row(**changes: object) -> dict[str, object]:
    return {**STUDY, "rows": [{**STUDY["rows"][0], **changes}]}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The small study, run: its folder, and what the command said."""
    home = tmp_path_factory.mktemp("studies")
    write(home / "small", STUDY)
    return home, run_meshtune(home, "study", "run", "small", "-o", "out")


# Running


def test_a_study_prints_published_beside_ours_and_explains_what_is_off(done):
    _, said = done
    assert said.code == 0, said.err
    assert "small: A small study (Some et al. 2023, arXiv 1)" in said.out
    assert "simulated: nothing was measured on any device" in said.out
    (line,) = (line for line in said.out.splitlines() if line.lstrip().startswith("MFU of the baseline"))
    assert "34" in line.split()
    assert "abstract or press" in line
    assert "*" not in line
    assert "1 of 2 published figures are within what their rows allow" in said.out
    assert "* step of the best: One second is not what it takes." in said.out


def test_its_numbers_are_those_of_the_campaigns(done):
    home, _ = done
    report = json.loads((home / "out/study.json").read_text())
    found = {one["name"]: one for one in report["findings"]}
    assert report["campaigns"]["physics"] == ["physics-1", "physics-2"]
    mfu = found["MFU of the baseline"]
    assert mfu["compared"] == "predicted"  # a hidden cluster is one of many
    assert mfu["measured"]["runs"] == 2
    assert mfu["measured"]["low"] < mfu["measured"]["high"]  # seeds are hidden clusters, too
    best = json.loads(run_meshtune(home, "best", "random-1", "--home", "out", "--json").out)
    (baseline,) = (one for one in best["best"] if one["trial"] == 0)
    ends = (mfu["measured"]["low"], mfu["measured"]["high"])
    assert any(end == pytest.approx(100 * baseline["objective"]["value"] / 191.5, rel=1e-3) for end in ends)
    assert found["step of the best"]["missed"] is True
    assert 90 < found["strong scaling"]["predicted"]["value"] < 100
    assert 1 <= found["trials of physics"]["measured"]["value"] <= 14
    assert found["place of tp"]["measured"]["value"] in (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)


def test_the_page_has_every_section_and_loads_nothing(done):
    home, _ = done
    page = (home / "out/report.html").read_text()
    for heading in ("What is repeated", "Published beside ours", "What is off, and why", "Strong scaling", "Sources"):
        assert f">{heading}</h2>" in page
    assert page.count("<svg") == 6
    assert "is not what it takes" in page
    assert "from memory, not the paper&#39;s word" in page
    assert "<script" not in page
    assert "src=" not in page


def test_a_study_that_ran_is_told_again_and_one_that_changed_is_refused(done):
    home, first = done
    again = run_meshtune(home, "study", "run", "small", "-o", "out")
    assert again.out == first.out
    write(home / "small", STUDY, {**SPEC, "budget": {"trials": 15}})
    try:
        other = run_meshtune(home, "study", "run", "small", "-o", "out")
    finally:
        write(home / "small", STUDY)
    assert other.code == 2
    assert "there has another spec: name another folder" in other.err


def test_a_study_for_a_real_cluster_has_a_training_code_that_runs_there(tmp_path):
    folder = write(tmp_path / "small", {**STUDY, "rows": STUDY["rows"][3:4], "draw": []})
    loaded = load_study(folder, None, {"runner": {"kind": "slurm"}, "workload": {"kind": "torch", "dtype": "bfloat16"}})
    assert {(one.spec.runner.kind, one.spec.workload.kind) for one in loaded.planned} == {("slurm", "torch")}
    assert load_study(folder, None, {"runner": {"kind": "slurm"}}).planned[0].spec.workload.kind == "torch"


def test_sections_of_a_file_take_the_place_of_the_specs(tmp_path):
    write(tmp_path / "small", {**STUDY, "rows": STUDY["rows"][3:4], "draw": []})
    (tmp_path / "mine.yaml").write_text("budget: {trials: 2}\nrunner: {kind: simulated, seed: 3}\n")
    said = run_meshtune(tmp_path, "study", "run", "small", "-o", "out", "--with", "mine.yaml", "--json")
    assert said.code == 0, said.err
    shown = run_meshtune(tmp_path, "show", "--all", "--home", "out").out
    assert "half" in shown
    (failed,) = json.loads(said.out)["findings"]
    assert failed["measured"]["runs"] == 2


# Mistakes


@pytest.mark.parametrize(
    ("study", "spec", "told"),
    [
        ({**STUDY, "papers": 1}, SPEC, "study.yaml.papers: is not a known key; did you mean 'paper'?"),
        ({**STUDY, "rows": []}, SPEC, "study.yaml.rows: must hold at least one"),
        (
            {**STUDY, "campaigns": {**STUDY["campaigns"], "x": {"spec": "nix.yaml"}}},
            SPEC,
            "study.yaml.campaigns.x.spec: nix.yaml: No such file or directory",
        ),
        (STUDY, {**SPEC, "budgett": 1}, "spec.yaml: budgett: is not a known key; did you mean 'budget'?"),
        (
            row(predicted={"measure": "valu", "campaign": "random"}),
            SPEC,
            "study.yaml.rows.0.predicted.measure: no measure is called 'valu'; did you mean 'value'?",
        ),
        (
            row(predicted={"measure": "value", "quantity": "mfu", "campaign": "randm"}),
            SPEC,
            "study.yaml.rows.0.predicted.campaign: no campaign is called 'randm'; did you mean 'random'?",
        ),
        (row(unit="s"), SPEC, "study.yaml.rows.0.predicted.measure: is in '%', and the row's unit is 's'"),
        (
            row(predicted={"measure": "failed", "campaign": "random"}),
            SPEC,
            "study.yaml.rows.0.predicted.measure: is of trials alone: there is no prediction of it",
        ),
        (
            row(published={**CHEAP, "certainty": "sure"}),
            SPEC,
            "study.yaml.rows.0.published.certainty: must be 'verified', 'abstract', 'secondary', 'computed' or",
        ),
        (
            {**STUDY, "campaigns": {**STUDY["campaigns"], "x": {"spec": "spec.yaml", "change": {"parallel": 0}}}},
            SPEC,
            "spec.yaml: parallel: must be at least 1, not 0 (as changed by campaigns.x)",
        ),
        (
            row(measured={"measure": "value", "quantity": "mfu", "campaign": "random", "plan": {"tp": 3}}),
            SPEC,
            "study.yaml.rows.0.measured.plan: tp3",
        ),
        (
            {**STUDY, "draw": [{"kind": "failures", "campaigns": ["randm"]}]},
            SPEC,
            "study.yaml.draw.0.campaigns: no campaign is called 'randm'; did you mean 'random'?",
        ),
    ],
)
def test_a_mistake_is_told_with_its_file_and_path(tmp_path, study, spec, told):
    found = mistakes(tmp_path, study, spec)
    assert any(message.startswith(told) for message in found), found


def test_all_mistakes_are_told_at_once(tmp_path):
    wrong = row(predicted={"measure": "nix"}, measured={"measure": "value", "quantity": "mfu", "campaign": "nix"})
    found = mistakes(tmp_path, wrong, {**SPEC, "budgett": 1})
    assert [one.partition(": ")[0] for one in found] == [
        "study.yaml.rows.0.predicted.measure",
        "study.yaml.rows.0.measured.campaign",
        "spec.yaml",  # once, though three campaigns are of it
    ]


def test_a_study_that_is_not_there_gets_the_nearest(tmp_path):
    said = run_meshtune(tmp_path, "study", "run", "frontier-22")
    assert said.code == 2
    assert "there is no study 'frontier-22'" in said.err
    assert "did you mean 'frontier-22b'?" in said.err
    assert not list(tmp_path.iterdir())


def test_every_kind_of_drawing_is_drawn_and_every_measure_and_certainty_is_in_the_reference():
    assert set(DRAWINGS) == set(DrawingKind)
    reference = (Path(__file__).parents[2] / "docs/reference/study.md").read_text()
    for name in (*MEASURES, *DrawingKind, *Certainty):
        assert f"`{name}`" in reference, name


# What comes with meshtune


def test_every_shipped_study_is_listed(tmp_path):
    listed = run_meshtune(tmp_path, "study", "list")
    assert listed.code == 0
    assert {"frontier-22b", "frontier-175b", "frontier-1t"} <= set(shipped())
    assert all(name in listed.out for name in shipped())


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_study_is_right_and_says_what_it_assumes(name):
    loaded = load_study(shipped()[name], None)
    assert loaded.planned
    assert loaded.study.assumptions
    assert all(one.spec.runner.kind == "simulated" for one in loaded.planned)


@pytest.mark.parametrize("code", [{}, {"workload": {"kind": "megatron"}}])
@pytest.mark.parametrize("name", ["frontier-22b", "frontier-175b", "frontier-1t"])
def test_a_study_of_frontier_can_run_under_slurm(name, code):
    loaded = load_study(shipped()[name], None, {"runner": {"kind": "slurm"}, **code})
    kinds = {(one.spec.runner.kind, one.spec.workload.kind) for one in loaded.planned}
    assert kinds == {("slurm", "megatron" if code else "torch")}


@pytest.mark.long
@pytest.mark.parametrize("name", shipped())
def test_a_shipped_study_runs_and_every_miss_is_explained(tmp_path, name):
    said = run_meshtune(tmp_path, "study", "run", name, "-o", "out", "--json")
    assert said.code == 0, said.err
    report = json.loads(said.out)
    assert [one["name"] for one in report["findings"] if one["missed"] and one["explanation"] == "not explained"] == []


def test_a_study_of_a_simulated_spec_runs_on_real_devices_and_its_measurements_are_compared(tmp_path):
    cluster = {
        "preset": "local-cpu",
        "devices_per_node": 2,
        "node_link": {"latency_s": 1e-6, "bandwidth_bytes_per_s": 1e10},
        "device": {"peak_flops": {"float32": 1e12}, "memory_bandwidth_bytes_per_s": 1e11},
    }
    spec = {
        "name": "real",
        "model": {"preset": "gpt-micro", "layers": 2, "seq_len": 32},
        "cluster": cluster,
        "global_batch_size": 4,
        "space": {"tp": [1], "pp": [1], "micro_batch_size": [1], "zero_stage": [0]},
        "baseline": {"tp": 1, "pp": 1, "micro_batch_size": 1, "zero_stage": 0},
        "workload": {"kind": "simulated", "framework": "trainer"},
        "runner": {"kind": "simulated"},
        "search": "grid",
        "budget": {"trials": 1},
        "confirm": 0,
    }
    step = {"measure": "value", "quantity": "step_time", "campaign": "one"}
    published = {"value": 100.0, "source": "nowhere", "certainty": "memory"}
    rows = [{"name": "step", "unit": "s", "published": published, "predicted": step, "measured": step}]
    write(tmp_path / "real", {**STUDY, "campaigns": {"one": {"spec": "spec.yaml"}}, "rows": rows, "draw": []}, spec)
    simulated = run_meshtune(tmp_path, "study", "run", "real", "-o", "simulated", "--json")
    real = run_meshtune(tmp_path, "study", "run", "real", "-o", "real-out", "--runner", "local", "--json")
    assert (simulated.code, real.code) == (0, 0), simulated.err + real.err
    reports = [json.loads(said.out) for said in (simulated, real)]
    assert [report["simulated"] for report in reports] == [True, False]
    assert [report["findings"][0]["compared"] for report in reports] == ["predicted", "measured"]
    assert 0 < reports[1]["findings"][0]["measured"]["value"] < 60


def test_the_best_of_a_run_counts_every_trial_of_a_plan():
    """The plan of the fastest trial ran once more, slower, after another came near that: which counts."""
    campaign, trials = failing()
    like = next(trial for trial in trials if trial.measurement)

    def measured(number: int, step_s: float, plan: Plan) -> Trial:
        measurement = replace(like.measurement, step_times_s=(step_s,) * 5)
        attempt = replace(like.last, outcome=replace(like.last.outcome, measurement=measurement))
        return replace(like, number=number, plan=plan, attempts=(attempt,))

    other = replace(like.plan, micro_batch_size=like.plan.micro_batch_size * 2)
    took = [(1.3, other), (1.0, like.plan), (1.25, like.plan)]
    made = tuple(measured(number, *each) for number, each in enumerate(took))
    run = Run(seed=None, campaign=campaign, space=space_of(campaign.spec), trials=made)
    assert TrialsTo(campaign="a").number(run, MEASURED, "trials", {"a": [run]}) == 2
