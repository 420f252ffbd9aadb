"""What the runner makes of answers that no laboratory gives at will: accounting, silence, refusals of the moment.

Programs that say what Slurm 22.05 said stand before the real ones.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from recorded_programs import Recorded

from meshtune.runners.base import Cause, JobSpec, JobState, Refused, RunnerUnavailable
from meshtune.runners.schedulers.batch.launch_wrapper import End, Note, write_note
from meshtune.runners.schedulers.batch.script import CLAIM_FILE, CLAIMED_CODE, REQUEUED_FILE
from meshtune.runners.schedulers.slurm.runner import SlurmRunner
from meshtune.runners.schedulers.slurm.script import SCRIPT_FILE, SlurmOptions

PARTITION = "PartitionName=main Default=YES MaxNodes=UNLIMITED MaxTime=UNLIMITED Nodes=n[0-3] State=UP"
DISABLED = "echo Slurm accounting storage is disabled >&2; exit 1"
FORGOTTEN = "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1"
SILENT = "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"


class Answers:
    """Slurm's commands as the test wants them, and a runner that asks them."""

    def __init__(self, folder: Path, programs: Recorded) -> None:
        self.folder = folder
        self.set, self.calls, self.environment = programs.script, programs.calls, programs.environment
        self.set("scontrol", f"echo '{PARTITION}'")
        self.set("sbatch", "echo 17")
        self.set("squeue", "true")
        self.set("sacct", DISABLED)
        self.set("scancel", "true")
        self.set("sinfo", "true")
        self.runner = self.open()

    def open(self, **options) -> SlurmRunner:
        chosen = SlurmOptions(call_limit_s=5.0, **options)
        return SlurmRunner(self.folder / "root", chosen, nodes=9, devices_per_node=2, clock=lambda: 1000.0)

    def spec(self, name: str = "job", **changes) -> JobSpec:
        fields = {
            "name": name,
            "command": ("true",),
            "directory": self.folder / "work" / name,
            "nodes": 2,
            "time_limit_s": 60.0,
        }
        return JobSpec(**fields | changes)

    def submit(self, **changes) -> str:
        """Of a job whose script has begun."""
        spec = self.spec(**changes)
        id = self.runner.submit(spec)
        (spec.directory / CLAIM_FILE).write_text(id)
        return id

    def status(self, id: str):
        return self.runner.poll([id])[id]


@pytest.fixture
def slurm(tmp_path, recorded) -> Answers:
    return Answers(tmp_path, recorded)


def test_of_several_numbers_that_sbatch_says_the_jobs_own_is_found_by_its_name(slurm):
    slurm.set("sbatch", "echo 2026; echo 17")
    with pytest.raises(RunnerUnavailable):
        slurm.runner.submit(slurm.spec())
    slurm.set("squeue", f"echo '17|{slurm.folder}/work/job'")
    id = slurm.runner.find("job")
    slurm.set("squeue", "true")
    slurm.status(id)
    assert "--jobs=17" in slurm.calls("squeue")[-1]
    assert len(slurm.calls("sbatch")) == 1


def test_all_jobs_are_looked_at_in_one_call_and_ended_ones_not_again(slurm):
    ids = []
    for number in range(3):
        slurm.set("sbatch", f"echo {17 + number}\\;lab")
        ids.append(slurm.submit(name=f"job{number}"))
    assert ids == ["17", "18", "19"]
    (slurm.folder / "work" / "job1" / CLAIM_FILE).unlink()  # of one that waits
    slurm.set(
        "squeue", "printf '17|RUNNING|n[0-1]|1000|N/A|None\\n18|PENDING||N/A|N/A|Priority\\n19|CANCELLED||9|9|x\\n'"
    )
    states = [status.state for status in slurm.runner.poll([*ids, "20"]).values()]
    assert states == [JobState.RUNNING, JobState.QUEUED, JobState.CANCELLED, JobState.LOST]
    (look,) = slurm.calls("squeue")
    assert "--jobs=17,18,19 " in look
    assert slurm.status("19").state is JobState.CANCELLED
    assert slurm.open().poll(["19"])["19"].state is JobState.CANCELLED
    assert len(slurm.calls("squeue")) == 1


def test_a_job_that_the_controller_forgot_is_as_the_accounting_says(slurm):
    id = slurm.submit()
    slurm.set("squeue", FORGOTTEN)
    slurm.set("sacct", "echo '17|NODE_FAIL|n[2-3]|1000|1010|NodeDown'")
    slurm.set("sinfo", "printf 'n2|idle\\nn3|down*\\nn3|down*\\n'")
    status = slurm.status(id)
    assert (status.state, status.cause, status.failed_nodes) == (JobState.LOST, Cause.NODE_FAULT, ("n3",))
    assert (status.started_at, status.finished_at) == (1000.0, 1010.0)
    assert "--nodes=n2,n3" in slurm.calls("sinfo")[0]
    assert "--jobs=17 " in slurm.calls("sacct")[0]


@pytest.mark.parametrize("sacct", [DISABLED, "echo '17|RUNNING|n2|1000|Unknown|None'", "true"])
def test_a_job_that_nobody_knows_is_lost(sacct, slurm):
    """Accounting may say RUNNING for ever of a job whose end it missed."""
    id = slurm.submit()
    slurm.set("squeue", FORGOTTEN)
    slurm.set("sacct", sacct)
    status = slurm.status(id)
    assert status.state is JobState.LOST
    assert "does not know this job any more" in status.reason
    slurm.set("sbatch", "echo 18")
    other = slurm.submit(name="other")
    assert slurm.status(other).state is JobState.LOST
    assert len(slurm.calls("sacct")) == (1 if sacct == DISABLED else 2)


@pytest.mark.parametrize(
    ("program", "answer"),
    [
        ("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"),
        ("squeue", "exit 127"),
        ("sacct", "echo 'sacct: error: slurm_persist_conn_open_without_init: Connection refused' >&2; exit 1"),
        ("sinfo", "echo 'slurm_load_partitions: Zero Bytes were transmitted or received' >&2; exit 1"),
    ],
)
def test_silence_says_nothing_about_a_job(program, answer, slurm):
    id = slurm.submit()
    slurm.set("squeue", "echo '17|NODE_FAIL|n2|1000|1010|NodeDown'" if program == "sinfo" else FORGOTTEN)
    slurm.set(program, answer)
    with pytest.raises(RunnerUnavailable, match=f"^{program}: "):
        slurm.status(id)
    slurm.set("squeue", "echo '17|RUNNING|n2|1000|N/A|None'")
    assert slurm.status(id).state is JobState.RUNNING


def test_whatever_sbatch_says_no_with_is_a_refusal(slurm):
    for words in ("MaxJobCount limit reached", "Unspecified error"):  # the second is a site's own job_submit.lua
        slurm.set("sbatch", f"echo 'sbatch: error: Batch job submission failed: {words}' >&2; exit 1")
        with pytest.raises(Refused, match=rf"^job was refused: .*{words}$"):
            slurm.submit()
    assert slurm.runner.find("job") is None
    slurm.set("sbatch", "echo 'Your project has 12 hours left'; echo '17;lab'; echo bye")
    assert slurm.submit() == "17"
    assert slurm.calls("squeue") == []


@pytest.mark.parametrize("answer", [SILENT, "echo 'Submitted, I hope'"])
def test_a_submission_without_an_answer_is_looked_for_before_it_is_sent_again(answer, slurm):
    slurm.set("sbatch", answer)
    slurm.set("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    for _ in range(2):
        with pytest.raises(RunnerUnavailable):
            slurm.submit()
    slurm.set("squeue", "true")
    with pytest.raises(RunnerUnavailable, match=r"^job may not have been sent: .*(Socket timed out|I hope)"):
        slurm.submit()
    assert len(slurm.calls("sbatch")) == 2
    work = slurm.spec().directory
    slurm.set("squeue", f"printf '3|/another/folder\\n21|{work}\\n20|{work}\\n'")
    assert slurm.open().find("job") == "20"
    assert slurm.submit() == "20"
    assert len(slurm.calls("sbatch")) == 2
    assert "--name=job " in slurm.calls("squeue")[-1]


@pytest.mark.parametrize("known_by", ["the job itself", "the accounting"])
def test_a_job_without_an_answer_that_the_controller_has_forgotten_is_found_all_the_same(known_by, slurm):
    slurm.set("sbatch", SILENT)
    with pytest.raises(RunnerUnavailable):
        slurm.submit()
    if known_by == "the accounting":
        slurm.runner = slurm.open()
        slurm.set("sacct", f"echo '29|{slurm.spec().directory}'")
        assert slurm.submit() == "29"
        assert "--starttime=1969-12-31T" in slurm.calls("sacct")[-1]
    else:
        (slurm.spec().directory / CLAIM_FILE).write_text("23\n")
        slurm.set("squeue", "exit 1")
        assert slurm.runner.find("job") == "23"


def test_of_two_copies_the_one_that_ran_is_watched_and_both_are_cancelled(slurm):
    id = slurm.submit()
    (slurm.spec().directory / CLAIM_FILE).write_text("16\n")
    slurm.set("squeue", "printf '16|RUNNING|n0|1000|N/A|None\\n17|FAILED|n0|1000|1001|NonZeroExitCode\\n'")
    assert slurm.status(id).state is JobState.RUNNING
    slurm.runner.cancel(id)
    assert slurm.calls("scancel") == ["17 16"]


def test_a_cancellation_that_was_not_heard_is_told(slurm):
    id = slurm.submit()
    slurm.set("scancel", "echo 'scancel: error: Kill job error on job id 17: Access/permission denied' >&2; exit 1")
    with pytest.raises(RunnerUnavailable, match=r"^17 cannot be cancelled: .*permission denied$"):
        slurm.runner.cancel(id)
    slurm.set("scancel", "echo 'scancel: error: Kill job error on job id 17: Invalid job id specified' >&2; exit 1")
    slurm.runner.cancel(id)


def test_what_no_partition_can_hold_is_never_sent(slurm):
    """sbatch would take it, and let it wait for ever."""
    small = "PartitionName=small Default=NO MaxNodes=UNLIMITED MaxTime=00:10:00 Nodes=n0 State=UP"
    slurm.set("scontrol", f"printf '{PARTITION}\\n{small}\\n'")
    with pytest.raises(Refused, match=r"^job needs 5 nodes, but partition main has 4$"):
        slurm.submit(nodes=5)
    slurm.runner = slurm.open(partition="small")
    with pytest.raises(Refused, match=r"^job needs 2 nodes, but partition small has 1$"):
        slurm.submit(nodes=2)
    with pytest.raises(Refused, match=r"^job needs 12 min, but partition small allows 10$"):
        slurm.submit(nodes=1, time_limit_s=600.0)
    assert slurm.calls("sbatch") == []
    assert not slurm.spec().directory.exists()
    slurm.runner = slurm.open(partition="main,small")
    assert slurm.submit(nodes=4, time_limit_s=600.0) == "17"


def test_commands_see_none_of_our_secrets_nor_of_the_users_habits(slurm, monkeypatch):
    for name in ("MESHTUNE_TOKEN", "AWS_SECRET_ACCESS_KEY", "SQUEUE_PARTITION", "SBATCH_EXPORT", "SLURM_JOB_ID"):
        monkeypatch.setenv(name, "hush")
    monkeypatch.setenv("SLURM_CONF", "/etc/where.conf")
    slurm.status(slurm.submit())
    for program in ("sbatch", "squeue"):
        seen = slurm.environment(program)
        assert "hush" not in seen
        assert "SLURM_CONF=/etc/where.conf\n" in seen
    assert "SLURM_TIME_FORMAT" not in slurm.environment("sbatch")
    assert "--export=ALL" in slurm.calls("sbatch")[0]


def test_a_job_that_was_started_once_more_is_lost_by_its_requeue(slurm):
    """Looked at late: its second run has found its folder claimed, and ended at once."""
    id = slurm.submit()
    folder = slurm.spec().directory
    (folder / CLAIM_FILE).write_text("17\n")
    (folder / REQUEUED_FILE).touch()
    note = Note(rank=0, host="n0", started_at=1000.0, finished_at=1030.0, elapsed_s=30.0, end=End.TOLD)
    write_note(folder, note)
    slurm.set("squeue", "echo '17|FAILED|n0|1100|1101|NonZeroExitCode'")
    status = slurm.status(id)
    assert (status.state, status.cause, status.elapsed_s) == (JobState.LOST, Cause.PREEMPTION, 30.0)
    assert status.reason == "requeued from outside after it had started"
    assert slurm.calls("scancel") == []


def test_a_job_that_starts_while_it_is_shown_as_waiting_runs_and_one_that_waits_again_is_lost(slurm):
    id = slurm.runner.submit(slurm.spec())
    claim = slurm.spec().directory / CLAIM_FILE
    slurm.set("squeue", f"echo 17 > {claim}; echo '17|PENDING||N/A|N/A|Priority'")
    assert slurm.status(id).state is JobState.QUEUED
    assert slurm.calls("scancel") == []
    assert (slurm.status(id).state, slurm.status(id).cause) == (JobState.LOST, Cause.PREEMPTION)
    assert len(slurm.calls("scancel")) == 1


def test_a_job_whose_other_copy_starts_first_during_the_look_is_followed_there(slurm):
    """Of a request that Slurm got after we had given up on it."""
    id = slurm.runner.submit(slurm.spec())
    claim = slurm.spec().directory / CLAIM_FILE
    slurm.set("squeue", f"echo 16 > {claim}; echo '17|FAILED|n2|1000|1001|NonZeroExitCode'")
    assert slurm.status(id).state is JobState.QUEUED
    slurm.set("squeue", "echo '16|RUNNING|n[0-1]|1000|N/A|None'")
    assert slurm.status(id).state is JobState.RUNNING
    assert "--jobs=16 " in slurm.calls("squeue")[-1]


def test_a_job_that_ends_during_the_look_ended_as_its_ranks_say(slurm):
    id = slurm.submit()
    folder = slurm.spec().directory
    write_note(folder, Note(rank=0, host="n0", started_at=1000.0))
    late = Note(rank=0, host="n0", started_at=1000.0, finished_at=1060.0, end=End.TIME_LIMIT)
    write_note(slurm.folder, late)
    told = f"mv {slurm.folder}/rank-0.json {folder}"
    slurm.set("squeue", f"{told}; echo '17|FAILED|n[0-1]|1000|1061|NonZeroExitCode'")
    assert slurm.status(id).state is JobState.TIMED_OUT


def test_a_job_that_is_refused_since_an_earlier_request_for_it_was_taken_is_there(slurm):
    slurm.set("sbatch", SILENT)
    with pytest.raises(RunnerUnavailable):
        slurm.runner.submit(slurm.spec())
    folder = slurm.spec().directory
    taken = f"echo 'echo \"17|{folder}\"' > {slurm.folder}/queue"
    words = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
    slurm.set("squeue", f"[ ! -e {slurm.folder}/queue ] || sh {slurm.folder}/queue")
    slurm.set("sbatch", f'{taken}; echo "sbatch: error: Batch job submission failed: {words}" >&2; exit 1')
    assert slurm.runner.submit(slurm.spec()) == "17"
    assert len(slurm.calls("sbatch")) == 2


def test_no_copy_of_a_job_starts_that_was_cancelled_before_one_had(slurm):
    """Slurm took the request that had no answer all the same, after we had looked for it."""
    slurm.set("sbatch", SILENT)
    with pytest.raises(RunnerUnavailable):
        slurm.runner.submit(slurm.spec())
    slurm.set("sbatch", "echo 18")
    id = slurm.runner.submit(slurm.spec())
    slurm.runner.cancel(id)
    folder = slurm.spec().directory
    environment = {**os.environ, "SLURM_JOB_ID": "17"}
    copy = subprocess.run(["bash", folder / SCRIPT_FILE], cwd=folder, env=environment, capture_output=True, check=False)
    assert copy.returncode == CLAIMED_CODE
    assert slurm.calls("scancel") == ["18"]
    for words in ("PENDING||N/A|N/A|Priority", "RUNNING|n[0-1]|1000|N/A|None"):
        slurm.set("squeue", f"echo '18|{words}'")
        assert slurm.status(id).state is JobState.QUEUED
    slurm.set("squeue", "echo '18|FAILED|n[0-1]|1000|1001|NonZeroExitCode'")
    assert (slurm.status(id).state, slurm.status(id).reason) == (JobState.CANCELLED, "cancelled")


def test_a_limit_of_the_moment_is_a_refusal(slurm):
    words = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
    slurm.set("sbatch", f'echo "sbatch: error: Batch job submission failed: {words}" >&2; exit 1')
    with pytest.raises(Refused, match=r"^job was refused: .*accounting/QOS policy"):
        slurm.submit()
    assert slurm.runner.find("job") is None


@pytest.mark.parametrize(("gres", "memory"), [("gpu", ["#SBATCH --mem=190M"]), ("", [])])
def test_ranks_get_their_share_of_a_node_also_where_slurm_names_no_devices(gres, memory, slurm):
    """Devices may be asked for by a line of the site's own, such as `--gpus-per-node`."""
    slurm.runner = slurm.open(gres=gres, extra_lines=("#SBATCH --gpus-per-node=2",))
    slurm.runner.accelerated = True
    slurm.set("scontrol", f"echo '{PARTITION}'; echo 'SelectTypeParameters = CR_CORE_MEMORY'")
    slurm.set("sinfo", "printf 'n0|idle|128|1000||(null)\\nn1|idle|96|200||(null)\\n'")
    slurm.submit(devices_per_node=2)
    lines = (slurm.spec().directory / "slurm.sh").read_text().splitlines()
    assert "#SBATCH --cpus-per-task=48" in lines
    assert [line for line in lines if "--mem" in line] == memory
    slurm.submit(name="other", devices_per_node=1)
    assert len(slurm.calls("sinfo")) == 1
