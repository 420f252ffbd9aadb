"""A setting in every format: for programs, by hand, for schedulers and in other programs' words."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType

import pytest

from meshtune.runners import registry
from meshtune.runners.dialects.base import CannotExpress
from meshtune.runners.outcome import Verdict, read_result
from meshtune.runners.registry import DIALECTS, SCRIPTS, UnknownBackend
from meshtune.search_spaces.checks import InvalidValue, Problem
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.spec import Backend
from meshtune.tuner.cli.main import main
from meshtune.tuner.results.export import FORMATS, SCRIPT_FILES, NothingToExport, export_files, write_export
from meshtune.tuner.results.ranking import rank


@pytest.fixture
def setting(lab, make):
    """A finished campaign of one plan, with changes to its spec, and that plan's place in its ranking."""

    def build(plan=None, **over):
        campaign = make.campaign(lab.spec(**over), CampaignState.COMPLETED)
        plan = plan or Plan(dp=4, micro_batch_size=2)
        (entry,) = rank(campaign, [make.trial(0, make.measurement(1.0), plan=plan)])
        return campaign, entry

    return build


@pytest.fixture
def dialect(monkeypatch):
    """A dialect that writes what it was given, under the name of one that is registered."""

    def render(model, plan, cluster, extra) -> Mapping[str, str]:
        if plan.zero_stage == 3:
            raise CannotExpress("toy", [Problem("zero_stage", "it has no ZeRO-3")])
        return {"toy.json": json.dumps([model.name, plan.key, cluster.name, dict(extra)])}

    module = ModuleType("toy_dialect")
    module.render = render
    monkeypatch.setitem(sys.modules, "toy_dialect", module)
    monkeypatch.setitem(registry.DIALECTS, "megatron", "toy_dialect")


def test_every_format_of_the_registries_can_be_asked_for():
    assert ("json", "job", *DIALECTS, *SCRIPTS) == FORMATS
    assert set(SCRIPT_FILES) == set(SCRIPTS)


def test_by_default_the_setting_and_the_files_of_its_job_are_written(setting, tmp_path):
    paths = write_export(*setting(), tmp_path / "out")
    assert [path.name for path in paths] == ["setting.json", "plan.json"]
    assert json.loads(paths[0].read_text())["plan_key"] == "tp1 pp1 dp4 mbs2 ga1 zero0"


@pytest.mark.parametrize(("format", "names"), [("json", ["setting.json"]), ("job", ["plan.json"])])
def test_one_of_the_two_can_be_asked_for(setting, tmp_path, format, names):
    assert list(export_files(*setting(), tmp_path, format)) == names


def test_a_dialect_gets_the_plan_and_the_options_of_its_own_workload_only(setting, dialect, tmp_path):
    text = export_files(*setting(), tmp_path, "megatron")["toy.json"]
    assert json.loads(text) == ["gpt-micro", "tp1 pp1 dp4 mbs2 ga1 zero0", "local-cpu", {}]


def test_a_plan_without_words_is_refused_in_the_dialects_own_and_nothing_is_written(setting, dialect, tmp_path):
    campaign, entry = setting(plan=Plan(dp=4, micro_batch_size=2, zero_stage=3))
    with pytest.raises(CannotExpress, match="toy cannot run this plan: zero_stage: it has no ZeRO-3"):
        write_export(campaign, entry, tmp_path / "out", "megatron")
    assert not (tmp_path / "out").exists()


def test_a_format_that_is_none_is_told_with_the_nearest(setting, tmp_path):
    with pytest.raises(UnknownBackend, match=re.escape("no export format is called 'slum'; did you mean 'slurm'?")):
        export_files(*setting(), tmp_path, "slum")


@pytest.mark.parametrize(("runner", "options"), [("slurm", {"partition": "gpu"}), ("fake", {})])
def test_a_script_takes_the_options_of_a_runner_of_its_kind(setting, tmp_path, monkeypatch, runner, options):
    given = {}

    def render(job, options):
        given.update(job=job, options=options)
        return "#!/bin/sh\n"

    module = ModuleType("toy_script")
    module.render = render
    monkeypatch.setitem(sys.modules, "toy_script", module)
    monkeypatch.setitem(registry.SCRIPTS, "slurm", "toy_script:render")
    monkeypatch.setitem(registry.RUNNERS, "slurm", registry.RUNNERS["fake"])
    campaign, entry = setting(runner={"kind": runner, **options})
    texts = export_files(campaign, entry, tmp_path, "slurm")
    assert list(texts) == ["plan.json", "gang.json", "job.sbatch"]
    assert given["options"] == options
    assert (given["job"].directory, given["job"].name) == (tmp_path, "c-t0000-a1")


@pytest.mark.parametrize(
    ("kind", "zero_stage"), [("megatron", 1), ("deepspeed", 2), ("torchtitan", 2), ("accelerate", 2)]
)
def test_every_dialect_writes_a_plan_that_its_program_can_run(setting, tmp_path, kind, zero_stage):
    texts = export_files(*setting(plan=Plan(dp=4, micro_batch_size=2, zero_stage=zero_stage)), tmp_path, kind)
    assert texts
    assert all(text.strip() for text in texts.values())


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("slurm", {"partition": "gpu", "account": "me"}, ["#SBATCH --partition=gpu", "#SBATCH --account=me"]),
        ("pbs", {"queue": "debug"}, ["#PBS -q debug"]),
        ("jobset", {"image": "example.org/x", "queue": "tuning"}, ["kind: JobSet", "image: example.org/x", "tuning"]),
        ("trainjob", {"image": "example.org/x"}, ["kind: TrainJob", "image: example.org/x"]),
    ],
)
def test_every_scheduler_gets_a_script_with_the_options_that_were_named(setting, tmp_path, kind, options, words):
    texts = export_files(*setting(), tmp_path, kind, options)
    assert {"plan.json", SCRIPT_FILES[kind]} <= set(texts)
    assert ("gang.json" in texts) == (kind in ("slurm", "pbs"))
    for word in words:
        assert word in texts[SCRIPT_FILES[kind]]


def test_an_option_that_is_none_is_told(setting, tmp_path):
    with pytest.raises(InvalidValue, match="partitoin: is not a known key; did you mean 'partition'"):
        export_files(*setting(), tmp_path, "slurm", {"partitoin": "gpu"})


def test_a_script_for_slurm_asks_for_devices_where_they_are_gpus(setting, tmp_path):
    gpus = {
        "name": "toy",
        "devices_per_node": 4,
        "nodes": 1,
        "device": {"name": "x", "kind": "cuda", "memory_bytes": 1},
    }
    asked = export_files(*setting(cluster=gpus), tmp_path, "slurm")["job.sbatch"]
    assert "#SBATCH --gres=gpu:4" in asked
    assert "--gres" not in export_files(*setting(), tmp_path, "slurm")["job.sbatch"]
    other = export_files(*setting(cluster=gpus), tmp_path, "slurm", {"gres": "gpu:h100"})["job.sbatch"]
    assert "#SBATCH --gres=gpu:h100:4" in other


def test_a_simulated_job_has_no_script(setting, tmp_path):
    campaign, entry = setting()
    simulated = replace(campaign, spec=replace(campaign.spec, runner=Backend(kind="simulated")))
    with pytest.raises(NothingToExport, match="has no job that a scheduler could run"):
        export_files(simulated, entry, tmp_path, "slurm")


@pytest.fixture
def export(lab, url, tmp_path, monkeypatch, capsys):
    """The command on a campaign of one plan: its exit code, and what it says. It writes to `out`."""
    id = lab.create(budget={"trials": 1}, space={"tp": [1], "pp": [1], "zero_stage": [1], "micro_batch_size": [1]})
    lab.run(id)

    def run(*arguments):
        place = ["--home", str(lab.home.root), "--db", url]
        monkeypatch.setattr(sys, "argv", ["meshtune", "export", id, "-o", str(tmp_path / "out"), *place, *arguments])
        code = 0
        try:
            main()
        except SystemExit as left:
            code = int(left.code or 0)
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


@pytest.mark.parametrize("url", ["file"], indirect=True)
def test_the_command_writes_a_format_with_its_options(export, dialect, tmp_path):
    done = export("--format", "megatron", "--option", "a=1", "--option", "b=[x, y]")
    assert done == (0, f"wrote {tmp_path}/out/toy.json\n", "")
    assert json.loads((tmp_path / "out" / "toy.json").read_text())[-1] == {"a": 1, "b": ["x", "y"]}


@pytest.mark.parametrize("url", ["file"], indirect=True)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--format", "slum"], "no export format is called 'slum'; did you mean 'slurm'?"),
        (["--format", "jobset"], "image: is missing"),
        (["--format", "slurm", "--option", "partition"], "--option partition: must be name=value"),
        (["--format", "slurm", "--option", "a={"], "--option a={: line 1"),
        (["--format", "torchtitan"], "cannot run this plan: plan: zero_stage(1) with pp(1)"),
    ],
)
def test_a_mistake_of_the_command_is_one_message_and_writes_nothing(export, tmp_path, arguments, words):
    code, out, err = export(*arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.slurm
def test_an_exported_script_runs_its_job_on_a_real_slurm(slurm, setting, tmp_path):
    tiny = {"layers": 2, "hidden": 32, "heads": 2, "ffn": 64, "vocab": 128, "seq_len": 16}
    few = {"kind": "torch", "measuring": {"max_warmup_steps": 1, "min_steps": 6, "max_steps": 6}}
    cluster = {"preset": "local-cpu", "devices_per_node": 2}
    campaign, entry = setting(plan=Plan(dp=2), model=tiny, workload=few, cluster=cluster, global_batch_size=2)
    write_export(campaign, entry, tmp_path / "out", "slurm")
    subprocess.run(["sbatch", tmp_path / "out" / "job.sbatch"], check=True, timeout=30, stdout=subprocess.DEVNULL)
    give_up = time.monotonic() + 90
    while not (tmp_path / "out" / "result.json").exists():
        assert time.monotonic() < give_up, list((tmp_path / "out").iterdir())
        time.sleep(0.1)
    assert read_result(tmp_path / "out").verdict is Verdict.OK
