"""`meshtune serve --run-as USER`: what a spec runs has that user's rights, and none of the service's."""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_lab import run_meshtune
from jobs import LIMIT_S, processes_where, wait_for
from places import cluster
from service_lab import ServiceLab
from specs import tiny

from meshtune.runners.base import JobSpec, JobState
from meshtune.runners.processes.job_user import RUN_AS, job_user
from meshtune.runners.registry import create_runner
from meshtune.runners.schedulers.local.runner import LocalRunner
from meshtune.search_spaces.checks import InvalidValue

USER = "nobody"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run jobs as another user")
# What a job tries, and then the steps that make it a measurement. Each line is `NAME allowed` or `NAME refused`.
ATTEMPTS = """
home=$1 service=$2 earlier=$3
try() {
    name=$1; shift
    if timeout 5 "$@" >/dev/null 2>&1; then echo "$name allowed"; else echo "$name refused"; fi
}
try own-folder ls "$PWD"
try own-job-file cat "$PWD/$(ls | head -n 1)"
try database cat "$home/meshtune.db"
try database-writing sh -c ": >> $home/meshtune.db"
try home ls "$home"
try home-writing touch "$home/limits.yaml"
try campaigns ls "$home/campaigns"
try spool ls "$home/local"
try neighbours ls "$PWD/.."
try earlier-job ls "$earlier"
try environment cat "/proc/$service/environ"
try memory head -c 1 "/proc/$service/mem"
try working-folder ls "/proc/$service/cwd/."
try signal kill -TERM "$service"
try signal-to-server kill -KILL "$PPID"
try become-root setpriv --reuid 0 true
try private-file cat "/root/.profile"
echo "user $(id -u) $(id -g) $(id -G) $HOME $USER"
grep -E '^(NoNewPrivs|CapEff|CapPrm|CapBnd)' /proc/self/status | tr '\\t\\n' '  '; echo
env | sed 's/=.*//' | sort | tr '\\n' ' '; echo
for step in 1 2 3 4 5 6; do echo "step $step 10.0 ms"; done
"""
ALLOWED = {"own-folder", "own-job-file"}


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that other users may pass through, which those of pytest are not; its processes are ended."""
    folder = Path(tempfile.mkdtemp(prefix="run-as-"))
    folder.chmod(0o711)
    yield folder
    marked = str(folder).encode()
    for pid in processes_where(lambda each: marked in (each / "cmdline").read_bytes()):
        os.kill(pid, 15)
    wait_for(lambda: not processes_where(lambda each: marked in (each / "cmdline").read_bytes()), LIMIT_S)
    shutil.rmtree(folder)


def document(script: Path, *arguments: str) -> dict[str, object]:
    command = ["sh", str(script), *arguments, "{micro_batch_size}", "{grad_accum_steps}"]
    log = {"step": r"step (\d+)", "step_time_ms": r"([\d.]+) ms"}
    return tiny(
        global_batch_size=4,
        space={"micro_batch_size": [1, 2]},
        workload={"kind": "command", "command": command, "steps": 6, "warmup_steps": 2, "log": log},
        search="grid",
        runner={"kind": "local", "idle_s": 1},
        budget={"trials": 2},
    )


@pytest.mark.slow
def test_a_hostile_job_reaches_nothing_of_the_service_and_its_campaign_completes(place):
    script = place / "attempts.sh"
    script.write_text(ATTEMPTS)
    lab = ServiceLab(place)
    (lab.home / "meshtune.db").chmod(0o644)  # as an earlier service left it
    earlier = lab.home / "campaigns" / "earlier" / "earlier-t0000-a1"
    earlier.mkdir(parents=True)
    lab.start("--run-as", USER)
    try:
        assert lab.process is not None
        spec = document(script, str(lab.home), str(lab.process.pid), str(earlier))
        made = lab.call("POST", "/v1/campaigns", spec)
        lab.wait_state(made["id"], "completed", "failed", limit_s=LIMIT_S)
        assert lab.process.poll() is None
        trials = lab.call("GET", f"/v1/campaigns/{made['id']}/trials")["trials"]
    finally:
        lab.__exit__()
    assert [trial["verdict"] for trial in trials] == ["ok", "ok"]
    user = pwd.getpwnam(USER)
    for log in (lab.home / "campaigns" / made["id"]).glob("*/rank-0.log"):
        text = log.read_text()
        told = dict(line.split() for line in text.splitlines() if line.endswith(("allowed", "refused")))
        assert len(told) == ATTEMPTS.count("\ntry ")
        assert {name for name, answer in told.items() if answer == "allowed"} == ALLOWED
        assert f"user {user.pw_uid} {user.pw_gid} {user.pw_gid} {user.pw_dir} {USER}\n" in text
        assert "CapPrm: 0000000000000000 CapEff: 0000000000000000 CapBnd: 0000000000000000 NoNewPrivs: 1" in text
        assert "MESHTUNE_JOB" in text
        assert "MESHTUNE_RUN_AS" not in text
        assert "MESHTUNE_HOME" not in text
        # When a job is over its folder is the service's, which the next job cannot read.
        assert (log.parent.stat().st_uid, log.parent.stat().st_mode & 0o777) == (0, 0o700)
        assert log.stat().st_uid == user.pw_uid


@pytest.mark.slow
def test_a_home_that_is_not_there_yet_is_made_and_its_first_job_runs(place):
    script = place / "steps.sh"
    script.write_text("for step in 1 2 3 4 5 6; do echo step $step 10.0 ms; done")
    lab = ServiceLab(place)
    lab.home = place / "srv" / "meshtune" / "home"
    umask = os.umask(0o022)
    try:
        lab.start("--run-as", USER)
        lab.token = lab.new_token("lab", "read", "launch", "command")
        lab.completed(document(script))
    finally:
        os.umask(umask)
        lab.__exit__()
    assert [lab.home.stat().st_mode & 0o777, (lab.home / "campaigns").stat().st_mode & 0o777] == [0o710, 0o710]


def test_what_a_job_puts_in_the_way_of_its_log_is_not_written_to_with_our_rights(place):
    ours = place / "ours"
    ours.write_text("kept")
    runner = LocalRunner(place / "local", slots=1, idle_s=1, user=job_user(USER))
    directory = place / "work" / "job"
    directory.mkdir(parents=True)
    (directory / "rank-0.log").symlink_to(ours)
    runner.submit(JobSpec(name="job", command=("echo", "spoiled"), directory=directory, time_limit_s=10))
    wait_for(lambda: runner.poll(["job"])["job"].state.final)
    assert runner.poll(["job"])["job"].state is JobState.FAILED
    assert (ours.read_text(), ours.stat().st_uid) == ("kept", 0)
    assert not list((place / "work").glob("*/spoiled"))
    runner.close()


@pytest.mark.parametrize(
    ("name", "told"), [("no-such-user", "there is no user 'no-such-user'"), ("root", "root is root, whose jobs")]
)
def test_a_user_that_cannot_be_used_is_refused(name, told, monkeypatch, tmp_path):
    with pytest.raises(InvalidValue, match=f"{RUN_AS}: {told}"):
        job_user(name)
    monkeypatch.setenv(RUN_AS, "")
    done = run_meshtune(tmp_path, "serve", "--run-as", name, "--home", tmp_path / "home")
    assert (done.code, told in done.err) == (2, True)


def test_a_home_that_jobs_cannot_reach_is_refused(monkeypatch, tmp_path):
    tmp_path.chmod(0o700)
    monkeypatch.setenv(RUN_AS, "")
    umask = os.umask(0o022)
    try:
        done = run_meshtune(tmp_path, "serve", "--run-as", USER, "--home", tmp_path / "home")
    finally:
        os.umask(umask)
    assert done.code == 2
    assert "nobody cannot pass through /" in done.err


def test_runners_whose_jobs_would_be_the_services_are_refused(monkeypatch, tmp_path):
    monkeypatch.setenv(RUN_AS, USER)
    create_runner("local", tmp_path, cluster(), {}).close()
    for kind in ("ray", "slurm", "pbs"):
        with pytest.raises(InvalidValue, match=f"{kind} would run jobs as the service's user"):
            create_runner(kind, tmp_path, cluster(), {})
