"""The plug-in against answers of flux-core 0.88 (`flux batch`, `jobs --json`, `cancel`), and
one job under a Flux that is pretended. The contract suite runs under a real one too: see docs/how-to/flux.md."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flux_lab import PLUGIN, PretendedFluxLaboratory
from meshtune_flux import FLUX
from meshtune_flux.runner import FluxRunner, create
from meshtune_flux.script import FluxOptions, render, render_script
from meshtune_flux.vocabulary import RESULTS, STATES, expand_hosts, plain_id, read_jobs, read_status, status_of
from recorded_programs import Recorded

from meshtune.runners.base import Cause, JobSpec, JobState, JobStatus, Refused, RunnerUnavailable, Start
from meshtune.runners.documents import read_value
from meshtune.runners.schedulers.batch.launch_wrapper import End, Note
from meshtune.runners.schedulers.batch.script import SubmitHost
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind, DeviceSpec

HOST = SubmitHost(python="/env/bin/python", environment={"PATH": "/usr/bin"})
# Of flux-core 0.88: a job that ended well, less what is not read.
JOB = {
    "t_run": 1795489719.04,
    "t_cleanup": 1795489725.06,
    "t_inactive": 1795489730.35,
    "duration": 6.0,
    "nnodes": 2,
    "name": "c1-t3-a1",
    "ranks": "[0-1]",
    "nodelist": "node[1-2]",
    "success": True,
    "result": "COMPLETED",
    "waitstatus": 0,
    "id": 1486712995840,
    "t_submit": 1795489719.01,
    "state": "INACTIVE",
    "urgency": 16,
    "status": "COMPLETED",
    "returncode": 0,
    "dependencies": [],
    "jobid": "fg46jiMu",
    "annotations": {"sched": {"resource_summary": "rank[0-1]/core[0-3]"}},
    "exception": {"occurred": False},
}


def ended(result: str, code: int | None, kind: str = "", note: str = "") -> dict[str, Any]:
    raised = {"occurred": True, "severity": 0, "type": kind, "note": note} if kind else {"occurred": False}
    job = {**JOB, "result": result, "status": result, "success": False, "exception": raised, "returncode": code}
    return {key: value for key, value in job.items() if value is not None}


def spec_of(directory: Path, **changes: Any) -> JobSpec:
    fields: dict[str, Any] = {"nodes": 2, "devices_per_node": 4, "time_limit_s": 600.0, "command": ("train",)}
    return JobSpec(**{"name": "c1-t3-a1", "directory": directory, **fields, **changes})


def test_a_script_asks_for_whole_nodes_keeps_away_from_bad_ones_and_starts_a_rank_for_each_device():
    options = FluxOptions(queue="batch", bank="team", requires="a100|h100", setup=("module load rocm",))
    spec = spec_of(Path("/scratch/two words"), avoid=("node7", "node8"))
    head, _, body = render(spec, options, HOST).partition("cd ")
    assert head == (
        "#!/bin/bash -l\n"
        "#flux: --job-name=c1-t3-a1\n"
        "#flux: --nodes=2\n"
        "#flux: --exclusive\n"
        "#flux: --time-limit=720s\n"
        "#flux: --env=-*\n"
        "#flux: --env=PATH\n"
        "#flux: --env=HOME\n"
        "#flux: '--cwd=/scratch/two words'\n"
        "#flux: '--output=/scratch/two words/flux.log'\n"
        "#flux: --queue=batch\n"
        "#flux: --bank=team\n"
        "#flux: '--requires=(a100|h100) and not host:node7,node8'\n"
    )
    assert body.startswith("'/scratch/two words' || exit 1\n")
    assert "module load rocm\n" in body
    assert "exec flux run --nodes=2 --exclusive --tasks-per-node=4 " in body
    assert "--tasks-per-node=1 " in render(spec_of(Path("/w"), start=Start.NODE), options, HOST)
    assert "flux run" not in render(spec_of(Path("/w"), start=Start.JOB), options, HOST)


def test_on_shared_nodes_a_job_asks_for_a_slot_for_each_device():
    text = render_script(spec_of(Path("/w")), {"cores_per_device": 8, "gpus_per_device": 1})
    assert "#flux: --nslots=8\n#flux: --cores-per-slot=8\n#flux: --gpus-per-slot=1\n" in text
    assert "#flux: --exclusive" not in text


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"queue": "two words"}, "queue"),
        ({"requires": "a\nb"}, "requires"),
        ({"cores_per_device": 0}, "cores_per_device"),
        ({"gpus_per_device": 1}, "gpus_per_device"),
        ({"extra_lines": ["#SBATCH -x"]}, "extra_lines"),
    ],
)
def test_options_that_make_no_script_are_refused_by_name(options, path):
    with pytest.raises(InvalidValue) as raised:
        read_value(FluxOptions, options)
    assert [problem.path for problem in raised.value.problems] == [path]


def test_every_state_and_result_of_rfc_21_has_its_word():
    assert set(STATES) == {"DEPEND", "PRIORITY", "SCHED", "RUN", "CLEANUP"}
    assert set(RESULTS) == {"COMPLETED", "FAILED", "CANCELED", "TIMEOUT"}
    for state, status in STATES.items():
        waiting = read_status({**JOB, "state": state})
        assert waiting.state is status.state
        assert not waiting.state.final
    assert read_status({**JOB, "state": "NEWER"}).state is JobState.QUEUED
    held = {"jobid": "f1", "state": "SCHED", "urgency": 0}
    assert read_status(held) == JobStatus(state=JobState.QUEUED, reason="held: its urgency is 0")
    waits = {**held, "urgency": 16, "annotations": {"sched": {"reason_pending": "no idle nodes"}}}
    assert read_status(waits).reason == "no idle nodes"
    done = read_status(JOB)
    assert (done.state, done.exit_code, done.nodes) == (JobState.SUCCEEDED, 0, ("node1", "node2"))
    assert (done.started_at, done.finished_at) == (1795489719.04, 1795489725.06)


# As flux-core 0.88 said them, but for the prolog's, which has the form of its source.
LOST_NODE = "node failure on node2 (shell rank 1)"
ENDS = [
    (ended("CANCELED", 129, "cancel"), JobState.CANCELLED, "cancelled from outside", None),
    (ended("CANCELED", -128, "cancel"), JobState.CANCELLED, "cancelled from outside", None),
    (
        ended("TIMEOUT", 137, "timeout", "resource allocation expired"),
        *(JobState.TIMED_OUT, "Flux ended it: resource allocation expired", Cause.TIME_LIMIT),
    ),
    (
        ended("FAILED", 1, "alloc", "unsatisfiable request: need 3 exclusive node(s), only 2 eligible"),
        JobState.LOST,
        "Flux ended it: alloc: unsatisfiable request: need 3 exclusive node(s), only 2 eligible",
        None,
    ),
    (
        {
            **ended("FAILED", 1),
            "exception": {"occurred": True, "severity": 2, "type": "node-failure", "note": LOST_NODE},
        },
        *(JobState.LOST, f"Flux ended it: node-failure: {LOST_NODE}", Cause.NODE_FAULT),
    ),
    (
        ended("FAILED", None, "prolog", "prolog exited 1"),
        *(JobState.LOST, "Flux ended it: prolog: prolog exited 1", Cause.NODE_FAULT),
    ),
    (ended("FAILED", 127), JobState.FAILED, "the job script exited with code 127", None),
    (ended("FAILED", None), JobState.LOST, "Flux does not say how it ended", Cause.NODE_FAULT),
]


@pytest.mark.parametrize(("job", "state", "reason", "cause"), ENDS)
def test_what_ended_a_job_is_told_where_its_processes_left_no_word(tmp_path, job, state, reason, cause):
    status = status_of(spec_of(tmp_path), read_status(job), [], cancel_asked=False)
    assert (status.state, status.reason, status.cause) == (state, reason, cause)
    assert status.failed_nodes == (("node2",) if LOST_NODE in reason else ())


def test_the_notes_of_the_processes_beat_fluxs_word_on_a_job_that_nobody_ended(tmp_path):
    spec = spec_of(tmp_path, nodes=1, devices_per_node=1)
    bad = [Note(rank=0, host="node1", started_at=1.0, finished_at=2.0, end=End.ITSELF, exit_code=7)]
    failed = status_of(spec, read_status(ended("FAILED", 1)), bad, cancel_asked=False)
    assert (failed.state, failed.exit_code, failed.nodes) == (JobState.FAILED, 7, ("node1", "node2"))
    cancelled = status_of(spec, read_status(ended("CANCELED", 1, "cancel")), bad, cancel_asked=True)
    assert (cancelled.state, cancelled.reason) == (JobState.CANCELLED, "cancelled")
    assert status_of(spec, None, bad, cancel_asked=False).exit_code == 7
    lost = ended("FAILED", 1, "node-failure", LOST_NODE)
    assert status_of(spec, read_status(lost), bad, cancel_asked=False).state is JobState.LOST
    assert status_of(spec, None, [], cancel_asked=False).state is JobState.LOST


def test_lists_of_hosts_and_ids_are_read_in_all_their_forms():
    assert expand_hosts("gpu[01-03,7],login1") == ["gpu01", "gpu02", "gpu03", "gpu7", "login1"]
    assert expand_hosts("r[1-2]n[8-9]") == ["r1n8", "r1n9", "r2n8", "r2n9"]
    assert expand_hosts("") == []
    assert plain_id("ƒFv7jumh") == plain_id("fFv7jumh") == "fFv7jumh"
    assert list(read_jobs(json.dumps({**JOB, "jobid": "ƒg46jiMu"}))) == ["fg46jiMu"]
    assert list(read_jobs(json.dumps({"jobs": [JOB]}))) == ["fg46jiMu"]


@pytest.fixture
def shim(tmp_path, monkeypatch) -> Recorded:
    """A `flux` that answers to each of its words as `flux-WORD` does."""
    programs = Recorded(tmp_path / "bin", monkeypatch)
    programs.script("flux", 'exec "$here-$1" "$@"')
    programs.answer("flux-batch", "fg46jiMu\n")
    return programs


@pytest.fixture
def runner(tmp_path, shim) -> FluxRunner:
    return FluxRunner(tmp_path / "root", FluxOptions(), nodes=2, devices_per_node=4)


@pytest.mark.parametrize(
    "complaint",
    [
        "flux-batch: ERROR: 'nope' is not a valid queue",
        "flux-batch: ERROR: host constraint contains invalid hosts: host 'nodez' not found",
        "flux batch: error: unrecognized arguments: --wrongopt",
    ],
)
def test_what_flux_does_not_take_is_refused_and_leaves_no_record(runner, shim, tmp_path, complaint):
    shim.answer("flux-batch", "", f"usage: flux batch [OPTIONS...]\n{complaint}\n", 1)
    with pytest.raises(Refused, match="c1-t3-a1 was refused: "):
        runner.submit(spec_of(tmp_path / "job"))
    shim.answer("flux-jobs", json.dumps({"jobs": []}))
    assert runner.find("c1-t3-a1") is None


def test_a_flux_that_is_not_there_may_be_tried_again(runner, shim, tmp_path):
    silent = "flux-batch: ERROR: Unable to connect to Flux: broker socket /run/flux/local was not found\n"
    shim.answer("flux-batch", "", silent, 1)
    with pytest.raises(RunnerUnavailable, match=r"may not have been sent: .*Unable to connect"):
        runner.submit(spec_of(tmp_path / "job"))
    shim.answer("flux-jobs", json.dumps({"jobs": []}))
    shim.answer("flux-batch", "ƒg46jiMu\n")
    id = runner.submit(spec_of(tmp_path / "job"))
    assert id == "fg46jiMu"
    shim.answer("flux-jobs", "", silent.replace("batch", "jobs"), 1)
    with pytest.raises(RunnerUnavailable, match=r"flux jobs: .*Unable to connect"):
        runner.poll([id])
    shim.answer("flux-jobs", "", "JobID fg46jiMu unknown\n", 1)
    assert runner.poll([id])[id].state is JobState.LOST


def test_a_node_to_avoid_that_flux_does_not_know_is_not_named_again(runner, shim, tmp_path):
    once = 'if grep -q "not host:gone" "$2"; then echo "host constraint contains invalid hosts" >&2; exit 1; fi'
    shim.script("flux", f"{once}\necho fg46jiMu")
    assert runner.submit(spec_of(tmp_path / "job", avoid=("gone",))) == "fg46jiMu"


def test_a_job_whose_id_never_came_back_is_found_by_its_name(runner, shim, tmp_path):
    shim.answer("flux-batch", "", "")
    later = {**JOB, "jobid": "fhhh", "t_submit": JOB["t_submit"] + 1}
    shim.answer("flux-jobs", json.dumps({"jobs": [later, JOB]}))
    assert runner.submit(spec_of(tmp_path / "job")) == "fg46jiMu"
    assert shim.calls("flux")[-1] == "jobs -a --json --name=c1-t3-a1"


def test_a_cancelled_job_that_has_ended_is_no_trouble(runner, shim, tmp_path):
    id = runner.submit(spec_of(tmp_path / "job"))
    shim.answer("flux-cancel", "", "flux-cancel: ERROR: fg46jiMu: job is inactive\n", 1)
    runner.cancel(id)
    assert shim.calls("flux")[-1] == "cancel fg46jiMu"
    shim.answer("flux-cancel", "", "flux-cancel: ERROR: fg46jiMu: Operation not permitted\n", 1)
    with pytest.raises(RunnerUnavailable, match="not permitted"):
        runner.cancel(id)


def test_the_package_names_what_is_there():
    cluster = ClusterSpec(
        name="c", nodes=1, devices_per_node=2, device=DeviceSpec(name="cpu", kind=DeviceKind.CPU, memory_bytes=2**30)
    )
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["meshtune.runners"] == {"flux": "meshtune_flux:FLUX"}
    assert (FLUX.runner, FLUX.script) == ("meshtune_flux.runner:create", "meshtune_flux.script:render_script")
    assert FLUX.harmless < set(FluxOptions.__dataclass_fields__)
    create(Path("/nowhere"), cluster, {"queue": "batch"}).close()


@pytest.fixture
def flux_lab(tmp_path: Path) -> Iterator[PretendedFluxLaboratory]:
    laboratory = PretendedFluxLaboratory(tmp_path)
    yield laboratory
    laboratory.close()


@pytest.mark.slow
def test_every_process_has_what_the_setup_lines_set_and_knows_its_rank(flux_lab):
    runner = flux_lab.open(nodes=2, requires="", setup=("export FROM_SETUP=seen",))
    script = 'echo "$FROM_SETUP $RANK $LOCAL_RANK $NODE_RANK $NNODES $MASTER_PORT" > said-$RANK'
    id = runner.submit(flux_lab.spec("job", script, nodes=2, processes=2))
    assert flux_lab.wait(id).state is JobState.SUCCEEDED
    said = [(flux_lab.folder / "work" / "job" / f"said-{rank}").read_text() for rank in range(4)]
    assert said == [f"seen {rank} {rank % 2} {rank // 2} 2 20001\n" for rank in range(4)]


def test_the_script_is_one_for_bash(tmp_path):
    script = tmp_path / "flux.sh"
    script.write_text(render_script(spec_of(tmp_path), {"setup": ["module load x"]}))
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
