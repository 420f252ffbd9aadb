"""On a real Slurm with accounting (slurmdbd): the ends that sacct tells of jobs that the controller has forgotten, and
limits of a QOS."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from jobs import wait_for
from slurm_accounting_lab import AccountedSlurmLab, why_no_accounting
from slurm_jobs import SlurmLaboratory
from slurm_lab import why_not

from meshtune.runners.base import Cause, JobState, Refused
from meshtune.runners.schedulers.batch.records import Records
from meshtune.runners.schedulers.batch.script import CLAIM_FILE

pytestmark = [pytest.mark.slurm, pytest.mark.long]  # its daemons take some 9 s to start

FOREVER = "touch started; exec sleep 300"


@pytest.fixture(scope="module")
def accounted() -> Iterator[AccountedSlurmLab]:
    if reason := why_not() or why_no_accounting():
        pytest.skip(reason)
    with AccountedSlurmLab(nodes=2, min_job_age_s=2) as lab, pytest.MonkeyPatch.context() as patch:
        for name, value in lab.environment.items():
            patch.setenv(name, value)
        yield lab


@pytest.fixture
def lab(accounted, tmp_path):
    laboratory = SlurmLaboratory(tmp_path, accounted)
    yield laboratory
    laboratory.close()


def test_the_end_of_a_forgotten_job_is_as_sacct_says_where_its_ranks_left_no_word(lab):
    scripts = {"well": "true", "badly": "exit 3", "cancelled": FOREVER, "no-setup": "true"}
    without = lab.open(setup=("false",))
    ids = {
        name: (without if name == "no-setup" else lab.runner).submit(lab.spec(name, script))
        for name, script in scripts.items()
    }
    lab.wait_file("cancelled", "started")
    lab.place.run("scancel", ids["cancelled"])
    wait_for(lambda: not lab.place.jobs())
    for note in lab.folder.glob("work/*/rank-*.json"):
        note.unlink()
    statuses = {name: lab.runner.poll([id])[id] for name, id in ids.items()}
    assert {name: (status.state, status.nodes, status.cause) for name, status in statuses.items()} == {
        "well": (JobState.SUCCEEDED, ("n0",), None),
        "badly": (JobState.FAILED, ("n0",), None),
        "cancelled": (JobState.CANCELLED, ("n0",), None),
        "no-setup": (JobState.FAILED, ("n0",), Cause.USER_BUG),
    }
    assert statuses["cancelled"].reason == "cancelled from outside"


def test_a_job_whose_answer_never_came_is_found_in_the_accounting(lab):
    id = lab.submit("job", "true")
    wait_for(lambda: not lab.place.jobs())
    records = Records(lab.folder / "records")
    records.save(replace(records.get("job"), id=None))
    (lab.folder / "work" / "job" / CLAIM_FILE).unlink()
    assert lab.open().find("job") == id


def test_a_limit_of_a_qos_refuses_and_says_which(lab):
    lab.place.account("add", "qos", "small", "set", "Flags=DenyOnLimit", "MaxTRESPerJob=node=1")
    lab.place.account("modify", "user", "root", "set", "qos+=small")
    runner = lab.open(partition="main", nodes=2, qos="small")
    wait_for(lambda: "small" in lab.place.run("scontrol", "show", "assoc_mgr", "flags=qos"))
    with pytest.raises(Refused, match=r"QOSMaxNodePerJobLimit.*Job violates accounting/QOS policy"):
        runner.submit(lab.spec("wide", "true", nodes=2))
    assert runner.find("wide") is None
    assert lab.wait(runner.submit(lab.spec("narrow", "true"))).state is JobState.SUCCEEDED


def test_a_cluster_that_is_named_is_asked_by_every_command(lab):
    """Slurm heads its answers with `CLUSTER: lab`, and sbatch appends the name to the number."""
    lab.runner = lab.open(partition="main", nodes=2, cluster="lab")
    first, second = lab.submit("first", FOREVER, nodes=2, avoid=("n1",)), lab.submit("second", "true")
    wait_for(lambda: lab.status(second).state is JobState.QUEUED or lab.status(second).state.final)
    lab.wait_file("first", "started")
    lab.runner.cancel(first)
    assert lab.wait(first).state is JobState.CANCELLED
    assert lab.wait(second).state is JobState.SUCCEEDED
    assert "#SBATCH --clusters=lab\n" in (lab.folder / "work" / "first" / "slurm.sh").read_text()
    with pytest.raises(Refused, match="No cluster 'elsewhere' known"):
        lab.open(partition="main", cluster="elsewhere").submit(lab.spec("lost", "true"))


def test_the_accounting_keeps_whose_a_job_was_and_its_wckey(lab):
    runner = lab.open(wckey="tuning")
    id = runner.submit(lab.spec("labelled", "true", labels={"owner": "ann", "campaign": "demo-1a2b3c", "trial": "7"}))
    assert lab.wait(id).state is JobState.SUCCEEDED
    told = ("sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={id}", "--format=Comment,WCKey")
    wait_for(lambda: lab.place.run(*told).strip() == "owner=ann,campaign=demo-1a2b3c,trial=7|tuning")
