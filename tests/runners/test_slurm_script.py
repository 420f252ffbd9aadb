"""The job script for Slurm, whole, for the cases that matter, and what its options refuse."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from meshtune.runners.base import JobSpec, Start
from meshtune.runners.batch.script import SubmitHost
from meshtune.runners.slurm.script import SlurmOptions, options_for, render, render_script
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind, DeviceSpec

GOLDEN = Path(__file__).parent / "golden"
AROUND = SubmitHost(python="/soft/venv/bin/python", environment={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"})
SITE = {
    "partition": "gpu,gpu-long",
    "account": "physics",
    "qos": "high",
    "constraint": "a100&ib",
    "reservation": "maintenance_3",
    "gres": "gpu:a100",
    "exclude": ("gpu007",),
    "cpus_per_device": 8,
    "extra_lines": ("#SBATCH --exclusive", "#SBATCH --mem=0"),
    "setup": ("module load cuda/12.4", "export NCCL_SOCKET_IFNAME=hsn0"),
}


def spec(**changes) -> JobSpec:
    fields = {
        "name": "c1-t3-a1",
        "command": ("/soft/venv/bin/python", "-m", "meshtune.runners.trainer", "job.json"),
        "directory": Path("/scratch/ada/meshtune/c1/c1-t3-a1"),
        "nodes": 2,
        "devices_per_node": 4,
        "time_limit_s": 600.0,
        "env": {"HF_TOKEN": "hush"},
        "avoid": ("gpu009", "gpu007"),
    }
    return JobSpec(**fields | changes)


@pytest.mark.parametrize(
    ("golden", "job", "options"),
    [
        ("site.slurm", spec(), SITE),
        ("plain.slurm", spec(nodes=1, devices_per_node=1, time_limit_s=7200.5, avoid=()), {}),
        ("launcher.slurm", spec(directory=Path('/scratch/100% "a" b/it\'s $1'), start=Start.NODE), {"gres": "gpu"}),
        ("own-launching.slurm", spec(start=Start.JOB), {"gres": "gpu", "cpus_per_device": 2}),
    ],
)
def test_the_script_is_as_the_golden_file(golden, job, options):
    script = render(job, SlurmOptions(**options), AROUND)
    assert script == (GOLDEN / golden).read_text(encoding="utf-8")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_nothing_of_the_jobs_environment_nor_of_the_services_is_in_the_script(monkeypatch):
    """`scontrol write batch_script` shows it to others; the gang file in the job's directory has it."""
    for name in ("MESHTUNE_TOKEN", "AWS_SECRET_ACCESS_KEY", "SLURM_JWT"):
        monkeypatch.setenv(name, "hush")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "of-the-submitter")
    script = render_script(spec(), {})
    assert "hush" not in script
    assert "of-the-submitter" not in script
    assert "#SBATCH --export=NIL\n" in script


@pytest.mark.parametrize(("kind", "gres"), [(DeviceKind.CPU, ""), (DeviceKind.CUDA, "gpu")])
def test_devices_are_asked_for_where_the_cluster_has_some(kind, gres):
    device = DeviceSpec(name="d", kind=kind, memory_bytes=2**30, peak_flops={"float32": 1e12})
    cluster = ClusterSpec(name="c", nodes=1, devices_per_node=2, device=device)
    assert options_for(cluster, {}).gres == gres
    assert options_for(cluster, {"gres": "gpu:h100"}).gres == "gpu:h100"
    assert options_for(cluster, {"gres": ""}).gres == ""


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"partition": "two words"}, "partition: must be one word of Slurm's, not 'two words'"),
        ({"account": "a\n#SBATCH --uid=0"}, "account: must be one word"),
        ({"gres": "gpu;rm"}, "gres: must be as 'gpu' or 'gpu:h100', not 'gpu;rm'"),
        ({"exclude": ["n1", "n 2"]}, "exclude: must be one word of Slurm's, not 'n 2'"),
        ({"setup": ["one\ntwo"]}, "setup: must be single lines"),
        ({"extra_lines": ["--mem=0"]}, "extra_lines: must be lines that start with '#SBATCH -', not '--mem=0'"),
        ({"cpus_per_device": 0}, "cpus_per_device: must be at least 1, not 0"),
        ({"call_limit_s": 0}, "call_limit_s: must be positive, not 0"),
        ({"mode": "steps"}, "mode: "),
        ({"partitoin": "gpu"}, "partitoin: is not a known key; did you mean 'partition'"),
    ],
)
def test_options_that_cannot_be_are_told(options, problem):
    with pytest.raises(InvalidValue) as caught:
        render_script(spec(), options)
    assert problem in str(caught.value)
