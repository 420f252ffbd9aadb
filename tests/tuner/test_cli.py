"""The command line as a new user meets it: one clear message for a mistake, and files and words that can be used."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from command_lab import Result, run_meshtune
from specs import tiny

from meshtune.runners.trainer.job import parse_job
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.service.service import Service
from meshtune.tuner.specs.read import read_spec
from meshtune.tuner.store import Store

SPEC = tiny(
    cluster={"preset": "local-cpu", "devices_per_node": 2},
    space={"micro_batch_size": [1, 2, 4]},
    workload={"kind": "torch", "measuring": {"max_warmup_steps": 1, "min_steps": 6, "max_steps": 6}},
    baseline={"tp": 1},
    runner={"kind": "local", "idle_s": 2},
    budget={"trials": 4},
)


def command_line(*arguments: str | Path) -> list[str]:
    """The command in a process of its own, for what drives a campaign."""
    return [sys.executable, "-m", "meshtune.tuner.cli", *map(str, arguments)]


def drive_meshtune(folder: Path, *arguments: str | Path) -> Result:
    done = subprocess.run(command_line(*arguments), capture_output=True, text=True, cwd=folder, timeout=240)
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def meshtune(tmp_path: Path) -> Callable[..., Result]:
    """The command, run in an empty folder."""
    return lambda *arguments: run_meshtune(tmp_path, *arguments)


@pytest.fixture
def spec(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str | None = None, **over: object) -> Path:
        path = tmp_path / "spec.yaml"
        path.write_text(yaml.safe_dump({**SPEC, **over}) if text is None else text)
        return path

    return write


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one campaign that is done; tests only look at it, or add what is their own."""
    folder = tmp_path_factory.mktemp("finished")
    spec = {**SPEC, "runner": {"kind": "local", "idle_s": 10}}  # so that what is measured again finds it warm
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    result = drive_meshtune(folder, "run", "spec.yaml", "--project", "llm")
    (folder / "out").write_text(result.out)
    assert (result.code, result.err) == (0, "")
    return folder


def check_refused(result: Result, *words: str) -> None:
    """One message, on stderr, by exit code 2."""
    assert result.code == 2, result
    assert result.out == ""
    assert "Traceback" not in result.err
    assert result.err.startswith("meshtune: ")
    for word in words:
        assert word in result.err


# The cluster in a file of its own


def test_a_cluster_in_a_file_takes_the_place_of_the_specs(meshtune, spec, tmp_path):
    file = tmp_path / "probed.yaml"
    link = {"latency_s": 1e-4, "bandwidth_bytes_per_s": 1e9}
    device = {"name": "core", "kind": "cpu", "memory_bytes": 10**10, "sustained_flops": {"float32": 5e9}}
    device |= {"peak_flops": {"float32": 5e9}, "memory_bandwidth_bytes_per_s": 1e10}
    section = {"name": "probed", "nodes": 1, "devices_per_node": 4, "device": device, "node_link": link}
    file.write_text(yaml.safe_dump({"cluster": section}))
    assert "tp: 1, 2, 4" in meshtune("spaces", spec(), "--cluster", file).out
    assert "Speeds cannot be predicted" not in meshtune("estimate", spec(), "--cluster", file).out
    check_refused(
        meshtune("run", spec(), "--cluster", tmp_path / "none.yaml"), "none.yaml: is not there", "cluster probe -o"
    )
    file.write_text("nodes: 2")
    check_refused(meshtune("run", spec(), "--cluster", file), "has no section `cluster`")


# Mistakes


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"serach": "random"}, ["serach: is not a known key; did you mean 'search'?"]),
        ({"seed": -1, "name": "", "parallel": 0}, ["3 mistakes", "seed: ", "name: ", "parallel: "]),
        ({"project": "a:read"}, ["project: must be 1 to 64 letters"]),
    ],
)
def test_a_mistake_in_a_spec_is_one_message_and_leaves_nothing_behind(meshtune, spec, tmp_path, over, words):
    result = meshtune("run", spec(**over))
    check_refused(result, "spec.yaml: the spec has", *words)
    assert os.listdir(tmp_path) == ["spec.yaml"]


def test_a_file_that_is_no_yaml_is_refused_with_its_line(meshtune, spec):
    check_refused(
        meshtune("run", spec("model: gpt-micro\n  cluster: x")), "line 2, column 10: is not YAML: mapping values"
    )
    check_refused(meshtune("spaces", spec("")), "a spec is a mapping of keys, not nothing")


def test_files_that_cannot_be_read_are_named(meshtune, tmp_path):
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    told = "nowhere.yaml: No such file or directory; `meshtune examples` lists specs to begin with"
    check_refused(meshtune("run", "nowhere.yaml"), told)
    check_refused(meshtune("run", "."), ".: Is a directory")
    check_refused(meshtune("run", "binary"), "binary", "is not UTF-8: byte 128")
    assert os.listdir(tmp_path) == ["binary"]


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (["--db", "sqlite:////nowhere/x.db"], ["there is no folder /nowhere"]),
        (["--db", "mysql://x/y"], ["no support for mysql"]),
        (["--db", "nonsense"], ["the database URL cannot be read"]),
        (["--home", "/proc/meshtune"], ["/proc/meshtune", "No such file or directory"]),
        (["--home", "spec.yaml"], ["spec.yaml: File exists"]),
    ],
)
def test_a_place_that_cannot_be_used_is_told_before_anything_runs(meshtune, spec, tmp_path, place, words):
    check_refused(meshtune("run", spec(), *place), *words)
    assert os.listdir(tmp_path) == ["spec.yaml"]


def test_a_read_only_database_is_told_and_gets_no_row(meshtune, spec, tmp_path):
    Store.open(f"sqlite:///{tmp_path}/x.db").close()
    before = (tmp_path / "x.db").read_bytes()
    check_refused(meshtune("run", spec(), "--db", f"sqlite:///file:{tmp_path}/x.db?mode=ro&uri=true"), "is read-only")
    assert (tmp_path / "x.db").read_bytes() == before


@pytest.mark.parametrize("command", [["show"], ["resume", "last"], ["export", "x", "-o", "out"]])
def test_asking_where_nothing_is_creates_nothing(meshtune, tmp_path, command):
    check_refused(meshtune(*command), "--home .meshtune: there is no database yet; `meshtune run SPEC` creates it")
    check_refused(meshtune(*command, "--db", "sqlite:///typo.db"), "--db sqlite:///typo.db: there is no database yet")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("command", [["spaces"], ["run", "--dry-run"]])
def test_predictions_need_no_database(meshtune, spec, tmp_path, command):
    assert meshtune(*command, spec(), "--db", "sqlite:///new.db").code == 0
    assert os.listdir(tmp_path) == ["spec.yaml"]


@pytest.mark.slow
def test_what_a_finished_campaign_does_not_have_or_take_is_refused(finished, tmp_path):
    id = campaign_of(finished).id
    for command in ("show", "resume", "rerun"):
        check_refused(run_meshtune(finished, command, "nobody"), f"there is no campaign nobody; known: {id}")
    check_refused(run_meshtune(finished, "show", f"{id}x"), f"did you mean '{id}'?")
    for command in ("resume", "pause", "cancel"):
        check_refused(run_meshtune(finished, command, "last"), id, "is completed", f"there is nothing to {command}")
    cancel = run_meshtune(finished, "cancel")  # the one command that cannot be undone names its campaign
    assert (cancel.code, "Missing argument" in cancel.err, campaign_of(finished).state) == (2, True, "completed")
    assert campaign_of(finished).state == "completed"
    export = ("export", "last", "-o", tmp_path / "out", "--trial", "9")
    check_refused(run_meshtune(finished, *export), "no measured trial '9'; measured:")
    check_refused(run_meshtune(finished, "rerun", "last", "9"), "no measured trial '9'")
    check_refused(run_meshtune(finished, "show", "last", "--trial", "9"), "has no trial 9; its trials are 0 to ")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ("warp=9", "warp: is not a known key"),
        ("tp=\u00b2", "tp: must be"),
        ("tp=0", "meshtune: tp: must be at least 1, not 0"),
        ("recompute=some", "recompute: must be"),
    ],
)
def test_a_plan_that_cannot_be_is_told_by_field(meshtune, spec, why, words):
    check_refused(meshtune("spaces", spec(), "--why", why), words)


def test_a_command_without_arguments_shows_how_it_is_used(meshtune):
    assert "run" in meshtune().out + meshtune().err
    assert meshtune("run").code == 2
    assert meshtune("--help").code == 0


# What works


def test_spaces_count_and_list_and_explain(meshtune, spec, tmp_path):
    counted = meshtune("spaces", spec())
    assert counted.code == 0
    assert "18 legal plans of 48 combinations" in counted.out
    assert "zero-needs-dp" in counted.out
    listed = meshtune("spaces", spec(), "--list").out
    assert len([line for line in listed.splitlines() if line.startswith("tp")]) == 18
    legal = meshtune("spaces", spec(), "--why", "tp=2").out
    assert legal == "tp2 pp1 dp1 mbs1 ga8 zero0: legal\n"
    illegal = meshtune("spaces", spec(), "--why", "tp=2, zero_stage=1").out
    assert "illegal\n  zero-needs-dp: zero_stage(1) with dp(1)" in illegal
    assert os.listdir(tmp_path) == ["spec.yaml"]


def campaign_of(folder: Path):
    with Store.open(Home(folder / ".meshtune").database_url) as store:
        return store.campaigns(limit=1)[0]


@pytest.mark.slow
def test_a_run_without_a_terminal_tells_each_trial_and_the_result_in_whole_lines(finished):
    out = (finished / "out").read_text()
    assert out.count(": ok, step ") == 4
    assert "is completed: the budget of 4 trials is spent" in out
    assert "gain over baseline" in out
    assert "\u2026" not in out
    assert "\x1b" not in out
    assert "Recommended: tp" in out.splitlines()[-2]
    assert out.splitlines()[-1].startswith("measured with: the built-in trainer (torch ")


@pytest.mark.slow
def test_the_picture_of_the_readme_can_be_drawn_from_a_campaign(finished, tmp_path):
    script = Path(__file__).parents[2] / "docs" / "site" / "picture.py"
    home, target = finished / ".meshtune", tmp_path / "demo.svg"
    subprocess.run([sys.executable, script, home, campaign_of(finished).id, target], check=True, timeout=120)
    words = target.read_text().replace("&#160;", " ")
    assert "Recommended: tp" in words
    assert "examples/tiny.yaml" in words
    assert "@font-face" not in words


@pytest.mark.slow
def test_show_tells_all_campaigns_or_one_or_everything_of_one_trial(finished):
    everything = run_meshtune(finished, "show", "--all").out
    id = campaign_of(finished).id
    assert campaign_of(finished).spec.project == "llm"
    assert id in everything
    assert "4 ok" in everything
    one = run_meshtune(finished, "show", id).out
    assert "completed (the budget of 4 trials is spent)" in one
    assert one.count(" ok ") == 4
    assert "baseline" in one
    out = run_meshtune(finished, "show", "last", "--trial", "0").out
    assert f"trial 0 of {campaign_of(finished).id}: tp1 pp1 dp2" in out
    for word in ("chosen by: baseline", "verdict: ok", "95 % interval", "first losses: ", "tensors", "held", "compute"):
        assert word in out


@pytest.mark.slow
def test_the_newest_campaign_is_the_default_and_the_beginning_of_an_id_names_it(finished, tmp_path):
    id = campaign_of(finished).id
    for command in (["show"], ["show", "--trial", "0"], ["best"], ["analyze"], ["export-data"]):
        by_default = run_meshtune(finished, *command)
        assert by_default.code == 0, by_default
        for word in ("last", id, id[:-3]):
            assert run_meshtune(finished, command[0], word, *command[1:]) == by_default
    assert run_meshtune(finished, "report", "-o", tmp_path / "report.html").code == 0
    key = json.loads(run_meshtune(finished, "best", "--json").out)["best"][0]["plan_key"]
    assert run_meshtune(finished, "export", "-o", tmp_path / "out", "--trial", key).code == 0
    assert Plan(**json.loads((tmp_path / "out" / "setting.json").read_text())["plan"]).key == key


def test_the_beginning_of_several_ids_lists_them(meshtune, tmp_path, spec):
    with Store.open(f"sqlite:///{tmp_path}/x.db") as store:
        service = Service(store, Home(tmp_path))
        read, space = read_spec(yaml.safe_load(spec().read_text()), None)
        ids = [service.add(read, space.totals).id for _ in range(3)]
        service.close()
    at = ("--db", f"sqlite:///{tmp_path}/x.db")
    begin = ids[0].rpartition("-")[0]
    check_refused(meshtune("show", begin, *at), f"there is no campaign {begin}; so begin ", *ids)
    for id in ids:
        least = next(id[:size] for size in range(1, len(id)) if sum(one.startswith(id[:size]) for one in ids) == 1)
        assert id in meshtune("show", least, *at).out
    assert ids[-1] in meshtune("show", *at).out
    check_refused(meshtune("show", "--all", ids[0], *at), "--all lists every campaign")
    check_refused(meshtune("show", "--all", "--trial", "1", *at), "--all lists every campaign")
    assert all(id in meshtune("show", "--all", *at).out for id in ids)


def test_where_no_campaign_is_the_newest_is_refused_and_recommend_points_to_estimate(meshtune, tmp_path):
    asked = ("recommend", "--model", "gpt-micro", "--cluster", "local-cpu", "--nodes", "1")
    estimate = "`meshtune estimate SPEC` predicts the best plan"
    check_refused(meshtune(*asked), "there is no database yet", estimate)
    Store.open(f"sqlite:///{tmp_path}/x.db").close()
    at = ("--db", f"sqlite:///{tmp_path}/x.db")
    for command in ("show", "best", "analyze", "resume"):
        check_refused(meshtune(command, *at), "there is no campaign yet; start one with `meshtune run SPEC`")
    assert meshtune("show", "--all", *at).code == 0
    check_refused(meshtune(*asked, *at), "there is no campaign yet", estimate)


@pytest.mark.slow
def test_best_for_people_and_for_programs_say_the_same(finished):
    document = json.loads(run_meshtune(finished, "best", "last", "--json", "--top", "2").out)
    assert document["campaign"] == campaign_of(finished).id
    assert [entry["rank"] for entry in document["best"]] == [1, 2]
    assert set(document["recommendation"]) == {"reason", "better_than_baseline", "setting"}
    shown = run_meshtune(finished, "best", "last").out
    for entry in document["best"]:
        assert entry["plan_key"].split()[-1] in shown
    assert document["recommendation"]["reason"] in shown
    assert "compute " in shown[shown.index("time of the b") :]


@pytest.mark.slow
def test_an_exported_setting_can_be_read_and_run_by_hand(finished, tmp_path):
    result = run_meshtune(finished, "export", "last", "-o", tmp_path / "out", "--trial", "best")
    assert result.out.splitlines() == [f"wrote {tmp_path}/out/setting.json", f"wrote {tmp_path}/out/job.json"]
    setting = json.loads((tmp_path / "out" / "setting.json").read_text())
    job = parse_job((tmp_path / "out" / "job.json").read_text())
    assert job.plan == Plan(**setting["plan"])
    assert (job.model.hidden, job.plan.global_batch_size) == (32, 8)
    taken = run_meshtune(finished, "export", "last", "-o", tmp_path / "out" / "job.json")
    check_refused(taken, "job.json: File exists")


@pytest.mark.slow
def test_rerun_measures_again_and_stores_nothing(finished):
    result = drive_meshtune(finished, "rerun", "last")
    assert result.out.count("recorded") == 2
    assert result.out.splitlines()[-1] in ("the order holds", "the order does not hold")
    assert result.code == (0 if result.out.endswith("the order holds\n") else 1)
    with Store.open(Home(finished / ".meshtune").database_url) as store:
        assert len(store.trials(campaign_of(finished).id)) == 4
    same = drive_meshtune(finished, "rerun", "last", "0", "0")
    assert same.out.count("recorded") == 1


@pytest.mark.long
def test_revalidate_measures_two_plans_again_and_stores_nothing(finished):
    done = drive_meshtune(finished, "revalidate", "last", "--json")
    found = json.loads(done.out)
    assert (done.code, done.err) == (0 if found["stands"] else 1, "")
    assert found["finding"] in ("stands", "slower", "overtaken")
    for plan in (found["optimum"], found["rival"]):
        assert plan["verdict"] == "ok"
        assert plan["tokens_per_s_per_device"]["now"] > 0
        assert plan["software_changes"] == {}
    assert found["optimum"]["plan_key"] != found["rival"]["plan_key"]
    with Store.open(Home(finished / ".meshtune").database_url) as store:
        assert len(store.trials(found["campaign"])) == 4


@pytest.mark.slow
def test_pausing_resuming_and_cancelling_by_command(meshtune, spec, tmp_path):
    many = {"global_batch_size": 32, "space": {"micro_batch_size": [1, 2, 4, 8, 16]}}  # more than it comes to
    command = command_line("run", spec(budget={"trials": 30}, **many), "--home", "h")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        for line in process.stdout:
            if line.startswith("trial 1"):
                break
        busy = meshtune("resume", "last", "--home", "h")
        check_refused(busy, f"{process.pid} is working on campaign tiny-")
        paused = meshtune("pause", "last", "--home", "h")
        assert (paused.code, "is paused; `meshtune resume tiny-" in paused.out) == (0, True)
        rest = process.communicate(timeout=240)[0]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 3
    assert "is paused: paused" in rest
    check_refused(meshtune("pause", "last", "--home", "h"), "is paused and cannot become paused")
    cancelled = meshtune("cancel", "last", "--home", "h")
    assert (cancelled.code, cancelled.out.endswith(" is cancelled\n")) == (0, True)
    check_refused(meshtune("resume", "last", "--home", "h"), "is cancelled", "there is nothing to resume")


@pytest.mark.parametrize("plan", ["tp2 pp1 dp1 mbs2 ga4 zero0", "tp=2,mbs=2,zero=0", "tp2,micro_batch_size=2"])
def test_a_plan_is_asked_as_it_is_printed_and_by_short_names(meshtune, spec, plan):
    shown = meshtune("spaces", spec(), "--why", plan)
    assert (shown.code, shown.out) == (0, "tp2 pp1 dp1 mbs2 ga4 zero0: legal\n")
    why = meshtune("estimate", spec(), "--why", plan)
    assert why.out.startswith("tp2 pp1 dp1 mbs2 ga4 zero0"), why
    assert meshtune("estimate", spec(), "--plan", plan) == why


@pytest.mark.slow
def test_an_exact_estimate_without_a_baseline_is_of_the_plan_predicted_best(meshtune, spec):
    file = spec(workload={"kind": "torch"}, space={"tp": 1, "mbs": 2}, baseline=None)
    best = json.loads(meshtune("estimate", file, "--json").out)["best"][0]["plan"]
    exact = meshtune("estimate", file, "--exact", "--json")
    assert (exact.code, json.loads(exact.out)["plan"]) == (0, best)
    assert exact.err.startswith("the spec names no baseline: of the plan predicted best\n")


@pytest.mark.slow
def test_an_exact_estimate_names_the_peak_of_every_kind_of_stage_and_says_how_far_it_is(meshtune, spec, monkeypatch):
    exact = ("estimate", spec(workload={"kind": "torch"}), "--exact", "--plan", "pp=2,micro_batch_size=2")
    monkeypatch.setattr("meshtune.tuner.cli.commands.predictions.TELL_EVERY_S", 300.0)
    check_refused(meshtune(*exact, "--rank", "2"), "below 2 ranks, not 2")
    monkeypatch.setattr("meshtune.tuner.cli.commands.predictions.TELL_EVERY_S", 0.2)
    result = meshtune(*exact, "--json")
    assert result.code == 0, result.err
    document = json.loads(result.out)
    assert [(peak["stage"], peak["rank"]) for peak in document["peaks"]] == [(0, 0), (1, 1)]
    assert all(0 < peak["lasting_bytes"] < peak["peak_bytes"] < document["memory_bytes"] for peak in document["peaks"])
    told = result.err.splitlines()
    assert told[0].endswith(": PyTorch is loaded, and one layer timed")
    assert re.fullmatch(r"[\d.]+ (ms|s|min .*) of about .*", told[-1])
    assert sum(line.startswith("this takes about") for line in told) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGKILL, -9, marks=pytest.mark.long)]
)
def test_an_exact_estimate_says_how_long_it_takes_and_leaves_nothing_behind_when_it_is_stopped(
    tmp_path, spec, sent, code
):
    file = spec(workload={"kind": "torch"}, model={"preset": "gpt-micro", "layers": 60})
    words = ["estimate", str(file), "--exact", "--plan", "tp=1,micro_batch_size=1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "meshtune.tuner.cli", *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    try:
        while (told := process.stderr.readline()).endswith("one layer timed\n"):
            pass  # on a busy machine, every 10 s
        assert re.fullmatch(r"this takes about [\d.]+ (s|min \d+ s|h .*), judged by one layer; Ctrl-C ends it\n", told)
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(sent)
        assert process.wait(10) == code
        assert "Traceback" not in process.stderr.read()
        deadline = time.monotonic() + 10
        while Path(f"/proc/{child}").exists() and Path(f"/proc/{child}/cmdline").read_bytes():
            assert time.monotonic() < deadline, "its process goes on"
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
