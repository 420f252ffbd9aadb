"""Job scripts of the PBS Pro runner that really run, under programs that pretend to be PBS and an MPI launcher.

What holds for every runner is in test_contract.py. Shown is the script, the processes it starts and what the runner
makes of their notes; not shown is PBS.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pbs_jobs import PbsLaboratory

from meshtune.runners.base import JobState, Start

pytestmark = pytest.mark.slow


@pytest.fixture
def pbs(tmp_path: Path) -> Iterator[PbsLaboratory]:
    laboratory = PbsLaboratory(tmp_path)
    yield laboratory
    laboratory.close()


def test_every_process_has_what_the_setup_lines_set_and_a_meeting_of_the_jobs_own(pbs):
    script = 'echo "$FROM_SETUP $NODE_RANK $NNODES $MASTER_ADDR $MASTER_PORT" > said-$RANK'
    id = pbs.wide().submit(pbs.spec("job", script, nodes=2, processes=2))
    assert pbs.wait(id).state is JobState.SUCCEEDED
    said = [(pbs.folder / "work" / "job" / f"said-{rank}").read_text() for rank in range(4)]
    assert said == [f"seen {node} 2 127.0.0.1 20001\n" for node in (0, 0, 1, 1)]


def test_a_script_that_launches_for_itself_is_started_once_without_a_launcher(pbs):
    id = pbs.submit("job", 'echo "$RANK of $WORLD_SIZE" >> said', start=Start.JOB, processes=4)
    assert pbs.wait(id).state is JobState.SUCCEEDED
    assert (pbs.folder / "work" / "job" / "said").read_text() == "0 of 1\n"


def test_each_rank_is_wrapped_and_a_job_that_ends_or_is_deleted_is_torn_down(pbs):
    template = {
        "prefix": "env WRAPPED=$FROM_SETUP",
        "environment": {"FI_PROVIDER": "cxi 'quoted' $HOME"},
        "teardown": ('echo "$FROM_SETUP" > torn-down', "false"),
    }
    pbs.runner = pbs.open(**template)
    status = pbs.wait(pbs.submit("job", 'echo "$WRAPPED $FI_PROVIDER" > said; exit 3'))
    assert (status.state, status.exit_code) == (JobState.FAILED, 3)
    assert (pbs.folder / "work" / "job" / "said").read_text() == "seen cxi 'quoted' $HOME\n"
    long = pbs.long("long")
    pbs.wait_file("long", "ran")
    pbs.runner.cancel(long)
    assert pbs.wait(long).state is JobState.CANCELLED
    for name in ("job", "long"):
        assert pbs.wait_text(name, "torn-down") == "seen\n"
