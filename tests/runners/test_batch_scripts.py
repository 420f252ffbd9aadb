"""The job scripts for Slurm and PBS Pro, whole, for the cases that matter, and what their options refuse."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from places import cluster

from meshtune.runners.base import Cause, JobSpec, JobState, JobStatus, Start
from meshtune.runners.schedulers.batch.base import explained
from meshtune.runners.schedulers.batch.script import (
    SubmitHost,
    read_setup_failure,
    render_launch,
    render_preparation,
    render_setup,
)
from meshtune.runners.schedulers.pbs import runner as pbs
from meshtune.runners.schedulers.slurm import script as slurm
from meshtune.runners.schedulers.slurm.allocation import Allocation, render_step
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.cluster import DeviceKind

GOLDEN = Path(__file__).parent / "golden"
AROUND = SubmitHost(python="/soft/venv/bin/python", environment={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"})
OPTIONS = {slurm: slurm.SlurmOptions, pbs: pbs.PbsOptions}
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
AURORA = {
    "queue": "debug",
    "project": "Aurora_deployment",
    "filesystems": "home:flare",
    "setup": ("module load frameworks",),
    "extra_lines": ("#PBS -l singularity_fakeroot=true",),
    "mpiexec": "mpiexec -n {processes} --ppn {processes_per_node} --envall --cpu-bind depth",
}
GPUS = {"select": "ncpus=32:ngpus=4", "place": "scatter"}
AROUND_RANKS = {
    "setup": ("export SIF=$PWD/image.sif",),
    "teardown": ('rm -rf "/tmp/of-$SIF"', "module purge"),
    "environment": {"NCCL_NET": "AWS Libfabric", "FI_MR_CACHE_MONITOR": "userfaultfd"},
    "prefix": "apptainer exec --nv $SIF",
    "python": "/opt/a b/bin/python3",
}
# Every part of the launch template.
SLURM_TEMPLATE = {
    **AROUND_RANKS,
    "gres": "gpu",
    "cpus_per_device": 7,
    "extra_lines": ("#SBATCH --network=disable_rdzv_get", "#DW jobdw capacity=10GB type=scratch", "#BB_LUA pool=a"),
    "cluster": "gpus",
    "mpi": "pmix",
    "cpu_bind": "map_cpu:49,57,17,25",
    "gpu_bind": "closest",
    "container_image": "nvcr.io#nvidia/pytorch:26.09-py3",
    "container_mounts": ("/scratch:/scratch", "/soft:/soft:ro"),
    "srun_arguments": ("--no-container-mount-home", "--comment=it's $HOME"),
}
PBS_TEMPLATE = {
    **AROUND_RANKS,
    "select": "ncpus=32:mpiprocs={processes_per_node}",
    "extra_lines": ("#DW jobdw capacity=10GB type=scratch",),
    "mpiexec": "mpiexec -n {processes} --map-by ppr:{processes_per_node}:node",
    "binding": "--bind-to core",
}


def spec(folder: str = "/scratch/ada/meshtune/c1/c1-t3-a1", **changes) -> JobSpec:
    fields = {
        "name": "c1-t3-a1",
        "command": ("/soft/venv/bin/python", "-m", "meshtune.runners.trainer", "job.json"),
        "directory": Path(folder),
        "nodes": 2,
        "devices_per_node": 4,
        "time_limit_s": 600.0,
        "env": {"HF_TOKEN": "hush"},
        "avoid": ("gpu009", "gpu007"),
    }
    return JobSpec(**fields | changes)


LUSTRE = "/lus/flare/ada/meshtune/c1/c1-t3-a1"
ALONE = {"nodes": 1, "devices_per_node": 1, "time_limit_s": 7200.5, "avoid": ()}


@pytest.mark.parametrize(
    ("golden", "scheduler", "job", "options"),
    [
        ("site.slurm", slurm, spec(), SITE),
        ("plain.slurm", slurm, spec(**ALONE), {}),
        ("launcher.slurm", slurm, spec('/scratch/100% "a" b/it\'s $1', start=Start.NODE), {"gres": "gpu"}),
        ("own-launching.slurm", slurm, spec(start=Start.JOB), {"gres": "gpu", "cpus_per_device": 2}),
        ("aurora.pbs", pbs, spec(LUSTRE, devices_per_node=12), AURORA),
        ("plain.pbs", pbs, spec(LUSTRE, **ALONE), {}),
        ("launcher.pbs", pbs, spec("/scratch/a b/it's", start=Start.NODE), GPUS),
        ("own-launching.pbs", pbs, spec(LUSTRE, start=Start.JOB), GPUS),
        ("template.slurm", slurm, spec(), SLURM_TEMPLATE),
        ("template.pbs", pbs, spec(LUSTRE), PBS_TEMPLATE),
    ],
)
def test_the_script_is_as_the_golden_file(golden, scheduler, job, options):
    script = scheduler.render(job, OPTIONS[scheduler](**options), AROUND)
    assert script == (GOLDEN / golden).read_text(encoding="utf-8")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_pbs_whose_users_set_no_comment_shows_the_labels_as_variables():
    script = pbs.render(spec(labels={"owner": "ann", "campaign": "c1", "trial": "3"}), OPTIONS[pbs](), AROUND)
    assert "\n#PBS -v MESHTUNE_OWNER=ann,MESHTUNE_CAMPAIGN=c1,MESHTUNE_TRIAL=3\n" in script


@pytest.mark.parametrize("scheduler", OPTIONS)
def test_nothing_of_the_jobs_environment_nor_of_the_services_is_in_the_script(scheduler, monkeypatch):
    """Others may read scripts that are queued; the gang file in the job's directory has it."""
    for name in ("MESHTUNE_TOKEN", "AWS_SECRET_ACCESS_KEY", "SLURM_JWT"):
        monkeypatch.setenv(name, "hush")
    intel = ("ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY")
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", *intel):
        monkeypatch.setenv(name, "of-the-submitter")
    script = scheduler.render_script(spec(), {})
    assert "hush" not in script
    assert "of-the-submitter" not in script
    assert ("#SBATCH --export=NIL\n" in script) == (scheduler is slurm)
    assert not any(line.startswith(("#PBS -V", "#PBS -v")) for line in script.splitlines())


@pytest.mark.parametrize(("kind", "gres"), [(DeviceKind.CPU, ""), (DeviceKind.CUDA, "gpu"), (DeviceKind.XPU, "gpu")])
def test_devices_are_asked_for_where_the_cluster_has_some(kind, gres):
    place = cluster(1, 2, kind)
    assert slurm.options_for(place, {}).gres == gres
    assert [slurm.options_for(place, {"gres": own}).gres for own in ("gpu:h100", "")] == ["gpu:h100", ""]


@pytest.mark.parametrize(
    ("scheduler", "options", "problem"),
    [
        (slurm, {"partition": "two words"}, "partition: must be one word of Slurm's, not 'two words'"),
        (slurm, {"account": "a\n#SBATCH --uid=0"}, "account: must be one word"),
        (slurm, {"gres": "gpu;rm"}, "gres: must be as 'gpu' or 'gpu:h100', not 'gpu;rm'"),
        (slurm, {"exclude": ["n1", "n 2"]}, "exclude: must be one word of Slurm's, not 'n 2'"),
        (slurm, {"setup": ["one\ntwo"]}, "setup: must be single lines"),
        (
            slurm,
            {"extra_lines": ["--mem=0"]},
            "extra_lines: must be lines that start with '#SBATCH -', '#BB' or '#DW', not",
        ),
        (slurm, {"extra_lines": ["#DW jobdw\nrm"]}, "extra_lines: must be lines"),
        (slurm, {"teardown": ["one\ntwo"]}, "teardown: must be single lines"),
        (slurm, {"prefix": "one\ntwo"}, "prefix: must be single lines"),
        (slurm, {"python": "python3"}, "python: must be an absolute path, not 'python3'"),
        (slurm, {"environment": {"A B": "1"}}, "environment: 'A B' is no name of a variable"),
        (slurm, {"gpu_bind": "closest; rm"}, "gpu_bind: must be one word"),
        (slurm, {"cluster": "a b"}, "cluster: must be one word"),
        (slurm, {"srun_arguments": ["--gpu-bind", "closest"]}, "srun_arguments: must each be an option with its value"),
        (slurm, {"container_mounts": ["/a:/a"]}, "container_mounts: needs container_image"),
        (slurm, {"container_image": "x.sqsh", "mode": "allocation"}, "container_image: needs mode: job; else"),
        (slurm, {"cpus_per_device": 0}, "cpus_per_device: must be at least 1, not 0"),
        (slurm, {"call_limit_s": 0}, "call_limit_s: must be positive, not 0"),
        (slurm, {"mode": "steps"}, "mode: "),
        (slurm, {"partitoin": "gpu"}, "partitoin: is not a known key; did you mean 'partition'"),
        (pbs, {"queue": "two words"}, "queue: must be one word"),
        (pbs, {"select": "ncpus=8\n#PBS -V"}, "select: must be one word"),
        (pbs, {"select": "ncpus={cpus}"}, "select: may hold {processes_per_node} alone, not 'ncpus={cpus}'"),
        (pbs, {"setup": ["one\ntwo"]}, "setup: must be single lines"),
        (pbs, {"extra_lines": ["-l walltime=1"]}, "extra_lines: must be lines that start with '#PBS -'"),
        (pbs, {"extra_lines": ["#PBS -l a=1\n#PBS -V"]}, "extra_lines: must be lines"),
        (pbs, {"extra_lines": ["#PBS -V"]}, "extra_lines: must not have -V"),
        (pbs, {"extra_lines": ["#PBS -v TOKEN"]}, "extra_lines: must not have -V, -v"),
        (pbs, {"extra_lines": ["#PBS -J 1-10"]}, "extra_lines: must not have"),
        (pbs, {"extra_lines": ["#PBS -r y"]}, "extra_lines: must not have"),
        (pbs, {"mpiexec": "mpiexec -n {ranks}"}, "mpiexec: must start {processes}"),
        (pbs, {"mpiexec": "mpiexec -n 4"}, "mpiexec: must start {processes}"),
        (pbs, {"mpiexec": "mpiexec -n {"}, "mpiexec: must start {processes}"),
        (pbs, {"call_limit_s": 0}, "call_limit_s: must be positive, not 0"),
        (pbs, {"partition": "x"}, "partition: is not a known key"),
    ],
)
def test_options_that_cannot_be_are_told(scheduler, options, problem):
    with pytest.raises(InvalidValue) as caught:
        scheduler.render_script(spec(), options)
    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize(
    ("setup", "told"),
    [
        (["true", "export A=$UNSET", "ls /nowhere 2>/dev/null || true", "if false; then", "false", "fi"], ""),
        (["export A=1", "module load nosuch"], "setup line 2 (module load nosuch) returned 127"),
        (["source nowhere.sh"], "setup line 1 (source nowhere.sh) returned 1"),
        (["false | true"], "setup line 1 (false | true) returned 1"),
        (["module load nosuch; export A=1"], "setup line 1 (module load nosuch; export A=1) returned 127"),
        (["for file in /nowhere; do", "cat $file", "done"], "setup line 2 (cat $file) returned 1"),
        (["cd /tmp", "exit 3"], "the setup ended the script with status 3"),
        # A script that is sourced may fail inside, and may use what is not set.
        (["source ./rough.sh"], ""),
        (["source ./rough.sh", "false"], "setup line 2 (false) returned 1"),
        (["seq 100000 | head -n 1 >/dev/null"], ""),
        (["set -eu", "echo $UNSET"], "the setup ended the script with status 1"),
        (["echo \"ModuleCmd_Load.c(213):ERROR:105: no 'nosuch'\" >&2"],
         "setup: ModuleCmd_Load.c(213):ERROR:105: no 'nosuch'"),
    ],
)  # fmt: skip
def test_a_setup_line_that_fails_ends_the_job_and_is_named(setup, told, tmp_path):
    (tmp_path / "rough.sh").write_text("false\nls $UNSET_TOO/nowhere 2>/dev/null\nROUGH=1\n")
    script = tmp_path / "it's.sh"
    options = "echo $- $(set -o | md5sum)\n"
    quoted = '"' + str(script) + '"'
    script.write_text(f"#!/bin/bash\n{options}{render_setup(quoted, setup)}{options}cat nowhere.txt\ntouch ran\n")
    with (tmp_path / "log").open("w") as log:
        done = subprocess.run(
            ["bash", script], cwd=tmp_path, stdout=subprocess.PIPE, stderr=log, text=True, check=False
        )
    assert read_setup_failure(tmp_path) == told, (tmp_path / "log").read_text()
    assert (done.returncode, (tmp_path / "ran").exists()) == ((1, False) if told else (0, True))
    if told:
        assert told.removeprefix("setup: ") in (tmp_path / "log").read_text()
    else:
        assert len(set(done.stdout.splitlines())) == 1


@pytest.mark.parametrize(
    ("options", "files"),
    [
        ({"setup": ["module use {folder}", "module load greeting"]}, {}),
        ({"setup": ["cd /tmp && ml use {folder}", "ml greeting"]}, {}),
        ({"teardown": ["module --version"]}, {"launch.sh": "#!/bin/bash\nset -e\nmodule use {folder}; ml greeting\n"}),
    ],
)
def test_modules_are_found_without_a_login_shell(modules, options, files, tmp_path):
    """With the environment of a job that is sent from a service: what a login would have set is not there."""
    options = {name: [line.format(folder=modules) for line in lines] for name, lines in options.items()}
    job = spec(str(tmp_path), files={name: text.format(folder=modules) for name, text in files.items()})
    for name, text in job.files.items():
        (tmp_path / name).write_text(text + 'GREETING_OF_RANK=$GREETING; echo "$GREETING"\n')
    ranks = "bash launch.sh" if files else "env"
    done = in_job(tmp_path, job, slurm.SlurmOptions(**options), AROUND, ranks)
    assert "hello" in done.stdout, done.stderr


def test_modules_of_whoever_submits_are_found_where_no_file_of_the_node_names_them(modules, tmp_path, monkeypatch):
    monkeypatch.setenv("MODULEPATH", str(modules))
    monkeypatch.setenv("LMOD_PKG", "/usr/share/lmod/lmod")
    monkeypatch.setenv("MODULESHOME", "/usr/share/modules")
    options = slurm.SlurmOptions(setup=("module load greeting",))
    done = in_job(tmp_path, spec(str(tmp_path)), options, slurm.submit_host(), "env")
    assert "GREETING=hello\n" in done.stdout, done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may hide a folder")
def test_modules_are_found_where_no_profile_names_them(modules, tmp_path):
    (tmp_path / "empty").mkdir()
    options = slurm.SlurmOptions(setup=(f"module use {modules}", "module load greeting"))
    hiding = ("unshare", "--mount", "sh", "-c", f'mount --bind {tmp_path}/empty /etc/profile.d && exec "$@"', "sh")
    done = in_job(tmp_path, spec(str(tmp_path)), options, AROUND, "env", around=hiding)
    assert "GREETING=hello\n" in done.stdout, done.stderr


@pytest.mark.parametrize("line", ["module load nosuch/1.2", "ml nosuch/1.2"])
def test_a_module_that_is_not_there_is_the_reason_of_the_failure(modules, line, tmp_path):
    options = slurm.SlurmOptions(setup=(f"module use {modules}", line))
    done = in_job(tmp_path, spec(str(tmp_path)), options, AROUND, "env")
    assert done.returncode == 1
    failed = explained(JobStatus(state=JobState.FAILED, reason="exit code 1"), tmp_path, "slurm.log")
    assert (failed.cause, failed.reason) == (Cause.USER_BUG, f"setup line 2 ({line}) returned 1")


def test_a_shell_that_has_modules_and_a_job_without_them_look_for_no_file(tmp_path):
    own = slurm.SlurmOptions(setup=("module load greeting",))
    done = in_job(tmp_path, spec(str(tmp_path)), own, AROUND, "env", first="module() { export GREETING=own; }\n")
    assert "GREETING=own\n" in done.stdout
    for options in ({"setup": ["export A='remodule me'", "mlflow x"]}, {"setup": ["module x"], "login_shell": True}):
        assert "profile.d" not in slurm.render_script(spec(), options)


def in_job(
    folder: Path,
    job: JobSpec,
    options: slurm.SlurmOptions,
    host: SubmitHost,
    ranks: str,
    first: str = "",
    around: Sequence[str] = (),
):
    script = folder / "slurm_script"  # as Slurm calls it on the node
    body = render_preparation(str(script), options, host, job) + render_launch(ranks, options)
    script.write_text(f"#!/bin/bash\n{first}{body}")
    script.chmod(0o700)
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
    return subprocess.run([*around, script], cwd=folder, env=bare, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("scheduler", OPTIONS)
def test_a_login_shell_is_the_runner_s_option(scheduler):
    for chosen, line in ((True, "#!/bin/bash -l\n"), (False, "#!/bin/bash\n")):
        assert scheduler.render_script(spec(), {"login_shell": chosen}).startswith(line)


@pytest.mark.parametrize(
    ("setup", "launcher", "told", "code"),
    [
        ((), "exit 0", "ranks torn-down:it's", 0),
        ((), "exit 3", "ranks torn-down:it's", 3),
        ((), "kill -TERM $PPID; sleep 0.2; exit 143", "ranks torn-down:it's", 143),
        (("false",), "exit 0", "torn-down:", 1),
        (("exit 4",), "exit 0", "torn-down:", 1),
    ],
)
def test_the_teardown_runs_after_the_ranks_or_a_failed_setup_whatever_came(setup, launcher, told, code, tmp_path):
    """It sees the setup's variables, fails without a consequence, and a script that is told to end runs it too."""
    teardown = ("cd /nowhere", "exit 9 | false", 'echo "torn-down:$LEFT" >> "$FOLDER/said"', "exit 8")
    options = slurm.SlurmOptions(setup=(*setup, "LEFT=it\\'s"), teardown=teardown)
    ranks = f"bash -c 'echo ranks >> said; {launcher}'"
    script = tmp_path / "slurm.sh"
    script.write_text(
        f"#!/bin/bash\nFOLDER={tmp_path}\n"
        + render_preparation(str(script), options, AROUND)
        + render_launch(ranks, options)
    )
    done = subprocess.run(["bash", script], cwd=tmp_path, capture_output=True, check=False)
    assert ((tmp_path / "said").read_text().split(), done.returncode) == (told.split(), code), done.stderr


@pytest.mark.parametrize(("scheduler", "options"), [(slurm, SLURM_TEMPLATE), (pbs, PBS_TEMPLATE)])
def test_a_script_that_launches_by_itself_is_started_without_the_prefix(scheduler, options):
    assert "apptainer" in scheduler.render_script(spec(), options)
    assert "apptainer" not in scheduler.render_script(spec(start=Start.JOB), options)


def test_a_step_of_an_allocation_takes_the_template_too():
    template = {name: value for name, value in SLURM_TEMPLATE.items() if not name.startswith("container_")}
    allocation = Allocation(id="7", nodes=2, devices_per_node=4, cpus_per_node=32)
    step = render_step(spec(), slurm.SlurmOptions(**template), allocation, "allocation=7 cpus_on_node=16\n")
    subprocess.run(["bash", "-n"], input=step, text=True, check=True)
    assert "--mpi=pmix --cpu-bind=map_cpu:49,57,17,25 --gpu-bind=closest --no-container-mount-home" in step
    assert "-m meshtune.runners.schedulers.batch.launch_wrapper apptainer exec --nv $SIF\n" in step
    assert step.endswith("launched=$?\njob_teardown\nexit $launched\n")


def test_one_process_for_a_node_is_bound_to_nothing():
    """torchrun's ranks would all share the cores of the first."""
    for scheduler, options, binding in ((slurm, SLURM_TEMPLATE, "--cpu-bind"), (pbs, PBS_TEMPLATE, "--bind-to core")):
        assert binding in scheduler.render_script(spec(), options)
        assert binding not in scheduler.render_script(spec(start=Start.NODE), options)
    assert "--mpi=pmix" in slurm.render_script(spec(start=Start.NODE), SLURM_TEMPLATE)
    assert "select=2:ncpus=32:mpiprocs=1\n" in pbs.render_script(spec(start=Start.NODE), PBS_TEMPLATE)
