"""On a real Slurm that shares out memory too: a job asks for its devices' share of a node, and steps of one allocation
run side by side, each on devices of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from jobs import wait_for
from places import cluster
from slurm_jobs import SlurmLaboratory
from slurm_lab import SlurmLab, why_not

from meshtune.runners.base import JobState
from meshtune.runners.schedulers.slurm.allocation import AllocationRunner, read_allocation
from meshtune.runners.schedulers.slurm.runner import SlurmRunner
from meshtune.runners.schedulers.slurm.script import SlurmOptions

pytestmark = pytest.mark.slurm

MEET = "echo $CUDA_VISIBLE_DEVICES > devices; touch ../here-$NAME; until [ -e ../here-$OTHER ]; do sleep 0.05; done"


@pytest.fixture(scope="module")
def sharing() -> Iterator[SlurmLab]:
    """One node of 4 CPUs, 2 devices and 2000 MiB."""
    if why_not() is not None:
        pytest.skip(why_not() or "")
    with SlurmLab(nodes=1, shares_memory=True) as lab, pytest.MonkeyPatch.context() as patch:
        for name, value in lab.environment.items():
            patch.setenv(name, value)
        yield lab


@pytest.fixture
def lab(sharing, tmp_path):
    laboratory = SlurmLaboratory(tmp_path, sharing)
    yield laboratory
    laboratory.close()


def pair(lab, runner) -> list[str]:
    """The devices of two jobs of one device each, of which each waits for the other to run."""
    ids = [
        runner.submit(lab.spec(name, MEET, env={"NAME": name, "OTHER": other}, time_limit_s=20.0))
        for name, other in (("a", "b"), ("b", "a"))
    ]
    states: dict[str, JobState] = {}

    def ended() -> bool:
        states.update({id: status.state for id, status in runner.poll(ids).items()})
        return all(state.final for state in states.values())

    wait_for(ended)
    assert set(states.values()) == {JobState.SUCCEEDED}, runner.poll(ids)
    return [(lab.folder / "work" / name / "devices").read_text().strip() for name in ("a", "b")]


def test_two_jobs_share_a_node_by_their_devices(lab):
    runner = SlurmRunner(lab.folder / "own", SlurmOptions(gres="gpu"), nodes=1, devices_per_node=2)
    assert sorted(pair(lab, runner)) == ["0", "1"]
    script = (lab.folder / "work" / "a" / "slurm.sh").read_text()
    assert "#SBATCH --cpus-per-task=2\n" in script
    assert "#SBATCH --mem=950M\n" in script


@pytest.mark.long
def test_what_the_sites_options_say_of_memory_is_left_to_them(lab):
    for options in ({"memory_mib_per_device": 0}, {"extra_lines": ("#SBATCH --mem=300M",)}):
        runner = SlurmRunner(lab.folder / "own", SlurmOptions(gres="gpu", **options), nodes=1, devices_per_node=2)
        name = f"job-{'-'.join(options)}"
        id = runner.submit(lab.spec(name, "true"))
        script = (lab.folder / "work" / name / "slurm.sh").read_text()
        assert [line for line in script.splitlines() if "--mem" in line] == list(options.get("extra_lines", ()))
        wait_for(lambda runner=runner, id=id: runner.poll([id])[id].state is JobState.SUCCEEDED)


@pytest.mark.parametrize(
    ("wanted", "cpus"),
    [
        (("--ntasks-per-node=2", "--cpus-per-task=2", "--mem-per-cpu=200"), 2),
        pytest.param(("--mem=500",), 1, marks=pytest.mark.long),
    ],
)
def test_steps_of_one_allocation_run_side_by_side_each_on_its_own_devices(wanted, cpus, lab):
    size = ("--nodes=1", *wanted, "--gres=gpu:2", "--time=10")
    folder = lab.folder / "allocation"
    folder.mkdir()
    saved = f"--wrap=env > {folder}/env.new; mv {folder}/env.new {folder}/env; sleep 600"
    lab.place.run("sbatch", "--parsable", *size, "--output=/dev/null", saved)
    wait_for((folder / "env").exists)
    environment = dict(line.split("=", 1) for line in (folder / "env").read_text().splitlines() if "=" in line)
    runner = AllocationRunner(
        lab.folder / "steps", SlurmOptions(gres="gpu"), read_allocation(environment, cluster(1, 2, "cuda"), None)
    )
    try:
        assert sorted(pair(lab, runner)) == ["0", "1"]
        script = (lab.folder / "work" / "a" / "step.sh").read_text().replace("exec srun", "echo srun")
        told = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout
        assert f"--cpus-per-task={cpus} " in told
    finally:
        server = runner._local._server
        if server is not None:
            server.terminate()
            server.wait(lab.limit_s)
        runner.close()
