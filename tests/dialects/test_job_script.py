"""The head of a batch script as the spec's runner: every directive has its place, and none is lost without a word."""

from __future__ import annotations

from dataclasses import replace

from dialect_cases import cases, stored_for

from meshtune.runners.documents import read_value
from meshtune.runners.programs.dialects.base import Imported, Launch
from meshtune.runners.programs.dialects.job_script import read_job, with_job
from meshtune.runners.schedulers.pbs.runner import PbsOptions
from meshtune.runners.schedulers.slurm.script import SlurmOptions

GIVEN = stored_for(__name__)["given"]
STARTED = Launch(script="p.py", words=(), place="line 1")
SLURM = GIVEN["slurm"]


def test_slurm_s_directives_are_options_of_the_runner_or_lines_of_its_script(stored):
    job = read_job(SLURM)
    assert job is not None
    assert job.runner == stored["runner"]
    assert (job.nodes, job.devices_per_node, job.time_limit_s) == (4, 8, ((24 + 2) * 60 + 30) * 60)
    assert job.questions == []
    read_value(SlurmOptions, {name: value for name, value in job.runner.items() if name != "kind"})


@cases
def test_what_a_directive_leaves_open_is_asked(line, path):
    job = read_job(f"#SBATCH --nodes=2\n#SBATCH {line}\n")
    assert job is not None
    assert [question.path for question in job.questions] == [path]
    assert path.partition(".")[2] not in job.runner


@cases
def test_times_are_read_as_sbatch_reads_them(text, seconds):
    job = read_job(f"#SBATCH -t {text}\n")
    assert job is not None
    assert job.time_limit_s == seconds


@cases
def test_the_devices_of_a_node(lines, devices):
    job = read_job(f"#SBATCH {lines}\n")
    assert job is not None
    assert job.devices_per_node == devices


def test_pbs_s_directives_are_options_of_the_runner(stored):
    script = """#!/bin/bash -l
#PBS -q prod
#PBS -A Catalyst
#PBS -l select=4:ncpus=64:ngpus=4,walltime=03:00:00
#PBS -l filesystems=home:eagle
#PBS -l place=scatter
#PBS -j oe
#PBS -W sandbox=PRIVATE
"""
    job = read_job(script)
    assert job is not None
    assert job.runner == stored["runner"]
    assert (job.nodes, job.devices_per_node, job.time_limit_s) == (4, 4, 10800)
    read_value(PbsOptions, {name: value for name, value in job.runner.items() if name != "kind"})


def test_other_schedulers_are_asked_about_and_none_is_no_job():
    lsf = read_job("#BSUB -nnodes 4\n")
    assert lsf is not None
    assert "LSF" in lsf.questions[0].text
    assert read_job("#!/bin/bash\ntorchrun x.py\n") is None


def test_a_trial_takes_no_longer_than_the_script_s_job():
    imported = Imported(workload={"kind": "megatron"}, trial={"start_s": 300})
    assert with_job(imported, "#SBATCH --time=10\n", STARTED).trial == {"start_s": 300, "time_limit_cap_s": 480}
    assert with_job(imported, "", STARTED).trial == {"start_s": 300}


@cases
def test_a_login_shell_is_kept(head, login):
    job = read_job(f"{head}\n#SBATCH -N 2\n")
    assert job is not None
    assert job.runner.get("login_shell", False) is login


@cases
def test_variables_that_export_sets_are_kept(value, environment, asked):
    job = read_job("#SBATCH -N 2\n", [("srun", ("--export", value))])
    assert job is not None
    assert job.runner.get("environment", {}) == environment
    assert bool(job.questions) is asked


def test_the_setup_goes_where_it_is_run():
    setup = ("module load cuda",)
    start = replace(STARTED, setup=setup)
    assert with_job(Imported(workload={"kind": "deepspeed"}), "#SBATCH -N 2\n", start).runner["setup"] == list(setup)
    own = with_job(Imported(workload={"kind": "megatron", "setup": list(setup)}), "#SBATCH -N 2\n", start)
    assert "setup" not in own.runner
    assert "do not run the script's setup" in with_job(Imported(workload={"kind": "deepspeed"}), "", start).notes[0]
