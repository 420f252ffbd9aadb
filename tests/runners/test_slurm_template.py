"""On a real Slurm, each part of the launch template arrives where it belongs, and the teardown runs whatever came."""

from __future__ import annotations

import pytest
from allocation_jobs import AllocationLaboratory
from jobs import wait_for
from slurm_jobs import SlurmLaboratory

from meshtune.runners.base import JobState

TEARDOWN = ('echo "$LEFT" >> torn-down', "false")
TEMPLATE = {
    "setup": ("export LEFT='of the setup'", "HELD=4"),
    "teardown": TEARDOWN,
    "environment": {"FI_PROVIDER": "cxi 'quoted' $HOME", "OWN": "of the site"},
    "prefix": "env WRAPPED=$HELD",
    "extra_lines": ("#SBATCH --comment=seen-by-sbatch", "#DW jobdw capacity=10GB access_mode=striped type=scratch"),
    "mpi": "none",
    "cpu_bind": "verbose,none",
    "srun_arguments": ("--distribution=cyclic", "--epilog=/bin/true"),
}


@pytest.fixture
def lab(slurm, tmp_path):
    laboratory = SlurmLaboratory(tmp_path, slurm)
    yield laboratory
    laboratory.close()


def test_each_option_arrives_and_the_teardown_runs_after_the_ranks(lab):
    lab.runner = lab.open(partition="main", nodes=2, **TEMPLATE)
    script = (
        '[ ! -e torn-down ] || exit 9; echo "$WRAPPED|$FI_PROVIDER|$OWN|$SLURM_DISTRIBUTION|'
        '$SLURM_CPU_BIND_TYPE|$RANK" > said-$RANK; exit $((3 * RANK))'
    )
    spec = lab.spec("template", script, nodes=2, env={"OWN": "of the workload"})
    id = lab.runner.submit(spec)
    status = lab.wait(id)
    assert (status.state, status.exit_code) == (JobState.FAILED, 3), status
    said = (spec.directory / "said-0").read_text().strip().split("|")
    assert said == ["4", "cxi 'quoted' $HOME", "of the workload", "cyclic", "none", "0"]
    wait_for(lambda: (spec.directory / "torn-down").is_file())
    assert (spec.directory / "torn-down").read_text() == "of the setup\n"
    assert "Comment=seen-by-sbatch" in lab.place.run("scontrol", "show", "job", id)


def test_a_cancelled_job_and_one_whose_setup_fails_are_torn_down_too(lab):
    lab.runner = lab.open(teardown=TEARDOWN)
    long = lab.submit("long", "touch started-$RANK; exec sleep 300")
    lab.wait_file("long", "started-0")
    lab.runner.cancel(long)
    assert lab.wait(long).state is JobState.CANCELLED
    wait_for(lambda: (lab.folder / "work" / "long" / "torn-down").is_file())
    lab.runner = lab.open(setup=("LEFT=half", "module load nosuch"), teardown=TEARDOWN)
    status = lab.wait(lab.submit("unset", "touch ran"))
    assert (status.state, status.reason) == (
        JobState.FAILED,
        "setup line 2 (module load nosuch) returned 127",
    )
    assert (lab.folder / "work" / "unset" / "torn-down").read_text() == "half\n"
    assert not (lab.folder / "work" / "unset" / "ran").exists()


@pytest.mark.long
def test_steps_of_an_allocation_take_the_template_too(slurm, tmp_path):
    lab = AllocationLaboratory(tmp_path, slurm)
    try:
        template = {name: value for name, value in TEMPLATE.items() if name not in ("extra_lines", "teardown")}
        lab.runner = lab.open(nodes=2, teardown=('echo "$LEFT" >> torn-down',), **template)
        script = 'echo "$WRAPPED|$FI_PROVIDER|$SLURM_DISTRIBUTION" > said; exit 3'
        status = lab.wait(lab.submit("step", script, nodes=2))
        assert (status.state, status.exit_code) == (JobState.FAILED, 3), status
        assert lab.wait_text("step", "said") == "4|cxi 'quoted' $HOME|cyclic\n"
        assert lab.wait_text("step", "torn-down") == "of the setup\n"
    finally:
        lab.close()
