"""The job script for PBS Pro, whole, for the cases that matter, and what its options refuse."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from meshtune.runners.base import JobSpec, Start
from meshtune.runners.batch.script import SubmitHost
from meshtune.runners.pbs.script import PbsOptions, render, render_script
from meshtune.search_spaces.checks import InvalidValue

GOLDEN = Path(__file__).parent / "golden"
AROUND = SubmitHost(python="/soft/venv/bin/python", environment={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"})
AURORA = {
    "queue": "debug",
    "project": "Aurora_deployment",
    "filesystems": "home:flare",
    "setup": ("module load frameworks",),
    "extra_lines": ("#PBS -l singularity_fakeroot=true",),
    "mpiexec": "mpiexec -n {processes} --ppn {processes_per_node} --envall --cpu-bind depth",
}
GPUS = {"select": "ncpus=32:ngpus=4", "place": "scatter"}


def spec(**changes) -> JobSpec:
    fields = {
        "name": "c1-t3-a1",
        "command": ("/soft/venv/bin/python", "-m", "meshtune.runners.trainer", "job.json"),
        "directory": Path("/lus/flare/ada/meshtune/c1/c1-t3-a1"),
        "nodes": 2,
        "devices_per_node": 12,
        "time_limit_s": 600.0,
        "env": {"HF_TOKEN": "hush"},
    }
    return JobSpec(**fields | changes)


@pytest.mark.parametrize(
    ("golden", "job", "options"),
    [
        ("aurora.pbs", spec(), AURORA),
        ("plain.pbs", spec(nodes=1, devices_per_node=1, time_limit_s=7200.5), {}),
        ("launcher.pbs", spec(directory=Path("/scratch/a b/it's"), devices_per_node=4, start=Start.NODE), GPUS),
        ("own-launching.pbs", spec(devices_per_node=4, start=Start.JOB), GPUS),
    ],
)
def test_the_script_is_as_the_golden_file(golden, job, options):
    script = render(job, PbsOptions(**options), AROUND)
    assert script == (GOLDEN / golden).read_text(encoding="utf-8")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_nothing_of_the_jobs_environment_is_in_the_script(monkeypatch):
    """Others may read scripts that are queued; the gang file in the job's directory has it."""
    monkeypatch.setenv("MESHTUNE_TOKEN", "hush")
    script = render_script(spec(), {})
    assert "hush" not in script
    assert not any(line.startswith(("#PBS -V", "#PBS -v")) for line in script.splitlines())


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"queue": "two words"}, "queue: must be one word"),
        ({"select": "ncpus=8\n#PBS -V"}, "select: must be one word"),
        ({"setup": ["one\ntwo"]}, "setup: must be single lines"),
        ({"extra_lines": ["-l walltime=1"]}, "extra_lines: must be lines that start with '#PBS -'"),
        ({"extra_lines": ["#PBS -l a=1\n#PBS -V"]}, "extra_lines: must be lines"),
        ({"extra_lines": ["#PBS -V"]}, "extra_lines: must not have -V"),
        ({"extra_lines": ["#PBS -v TOKEN"]}, "extra_lines: must not have -V, -v"),
        ({"extra_lines": ["#PBS -J 1-10"]}, "extra_lines: must not have"),
        ({"extra_lines": ["#PBS -r y"]}, "extra_lines: must not have"),
        ({"mpiexec": "mpiexec -n {ranks}"}, "mpiexec: must start {processes}"),
        ({"mpiexec": "mpiexec -n 4"}, "mpiexec: must start {processes}"),
        ({"mpiexec": "mpiexec -n {"}, "mpiexec: must start {processes}"),
        ({"call_limit_s": 0}, "call_limit_s: must be positive, not 0"),
        ({"partition": "x"}, "partition: is not a known key"),
    ],
)
def test_options_that_cannot_be_are_refused(options, problem):
    with pytest.raises(InvalidValue) as error:
        render_script(spec(), options)
    assert str(error.value).startswith(problem)
