"""Every word of Slurm's has its meaning here, what its commands print is read as it was printed, and what became of a
job follows from Slurm's word, its ranks' notes and its nodes, each where it knows best.

The lines are those of Slurm 22.05.8 (squeue, sinfo, scontrol) and of sacct's manual page.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshtune.runners.base import Cause, JobSpec, JobState, JobStatus, Start
from meshtune.runners.command import Answer
from meshtune.runners.schedulers.batch.launch_wrapper import End, Note
from meshtune.runners.schedulers.slurm.nodes import (
    DeviceShare,
    Partition,
    expand_hosts,
    parse_bad_nodes,
    parse_nodes,
    parse_partitions,
    room_for,
    share_per_device,
)
from meshtune.runners.schedulers.slurm.vocabulary import (
    SILENCES,
    meaning_of,
    parse_jobs,
    read_failed_nodes,
    status_of,
    suspects,
)


# The words of job_state_string (src/common/slurm_protocol_defs.c, 22.05), and those that
# slurm.schedmd.com/job_state_codes.html has besides.
@pytest.mark.parametrize(
    ("state", "cause", "words"),
    [
        (JobState.QUEUED, None, "PENDING CONFIGURING REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT"),
        (JobState.QUEUED, None, "EXPEDITING POWER_UP_NODE"),
        (JobState.RUNNING, None, "RUNNING COMPLETING RESIZING SIGNALING STAGE_OUT STOPPED SUSPENDED UPDATE_DB"),
        (JobState.RUNNING, None, "HIBERNATING"),  # an unknown word is no end
        (JobState.LOST, Cause.NODE_FAULT, "NODE_FAIL BOOT_FAIL LAUNCH_FAILED RECONFIG_FAIL"),
        (JobState.LOST, Cause.PREEMPTION, "PREEMPTED"),
        (JobState.LOST, None, "REVOKED"),
        (JobState.SUCCEEDED, None, "COMPLETED"),
        (JobState.FAILED, None, "FAILED"),
        (JobState.FAILED, Cause.OOM, "OUT_OF_MEMORY"),
        (JobState.TIMED_OUT, None, "TIMEOUT"),
        (JobState.CANCELLED, None, "CANCELLED DEADLINE"),
    ],
)
def test_every_word_has_its_meaning(state, cause, words):
    for word in words.split():
        meaning = meaning_of(word)
        assert (meaning.state, meaning.cause) == (state, cause), word
        assert meaning.reason or state not in (JobState.FAILED, JobState.TIMED_OUT, JobState.LOST), word


@pytest.mark.parametrize("reason", ["JobLaunchFailure", "NodeDown", "SystemFailure", "FrontEndDown"])
def test_a_failure_of_a_node_is_not_one_of_the_job(reason):
    assert meaning_of("FAILED", reason).state is JobState.LOST
    assert meaning_of("FAILED", "NonZeroExitCode").state is JobState.FAILED
    assert meaning_of("COMPLETED", reason).state is JobState.SUCCEEDED


def test_jobs_are_read_as_squeue_shows_them():
    text = (
        "7|COMPLETING|n3|1795306457|NONE|None\n"
        "8|PENDING||N/A|N/A|Nodes required for job are DOWN, DRAINED or reserved\n"
        "9|PENDING||1795306999|1795310000|a|reason with bars\n"
        "4|FAILED|n[0-1],m7|1795306451|1795306452|NonZeroExitCode\n"
        "slurm_load_jobs error: Zero Bytes were transmitted or received\n"
        "12_3|RUNNING|n1|1|2|None\n"
        "\n"
    )
    seen = parse_jobs(text)
    assert list(seen) == ["7", "8", "9", "4"]
    assert seen["7"] == JobStatus(state=JobState.RUNNING, nodes=("n3",), started_at=1795306457.0)
    assert seen["8"] == JobStatus(
        state=JobState.QUEUED,
        reason="waits in Slurm's queue: Nodes required for job are DOWN, DRAINED or reserved",
    )
    assert seen["9"].reason == "waits in Slurm's queue: a|reason with bars"
    assert (seen["4"].nodes, seen["4"].finished_at) == (("n0", "n1", "m7"), 1795306452.0)


def test_jobs_are_read_as_sacct_shows_them():
    text = (
        "31|CANCELLED by 1000|None assigned|Unknown|1795306452|None\n32|NODE_FAIL|n1|1795306451|1795306452|NodeDown\n"
    )
    seen = parse_jobs(text)
    assert (seen["31"].state, seen["31"].nodes, seen["31"].started_at) == (JobState.CANCELLED, (), None)
    assert (seen["32"].state, seen["32"].reason) == (JobState.LOST, "a node failed")


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ()),
        ("(null)", ()),
        ("None assigned", ()),
        ("n0", ("n0",)),
        ("n0,login", ("n0", "login")),
        ("n[0-2,7]", ("n0", "n1", "n2", "n7")),
        ("nid[000998-001001]", ("nid000998", "nid000999", "nid001000", "nid001001")),
        ("a[1-2]b[08-09]-ib,c", ("a1b08-ib", "a1b09-ib", "a2b08-ib", "a2b09-ib", "c")),
        ("x[3],y-1.example.org", ("x3", "y-1.example.org")),
    ],
)
def test_lists_of_hosts_are_read(text, hosts):
    assert expand_hosts(text) == hosts


def test_nodes_that_are_down_or_silent_are_bad_and_each_is_named_once():
    text = (
        "n0|idle\nn1|mixed*\nn1|mixed*\nn2|down\nn3|down*\nn4|draining\nn5|drained\nn6|allocated\nn7|failing\nn8|error\n"
        "n9|completing\nna|completing*\nnb|unknown\nnc|reserved\nnd|powering_down\nne|rebooted^\nnf|maint\nng|planned\n"
    )
    assert parse_bad_nodes(text) == ("n1", "n2", "n3", "n4", "n5", "n7", "n8", "na", "nb", "nd", "ne")


PARTITIONS = """\
PartitionName=main AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A DefaultTime=NONE \
MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 LLN=NO Nodes=n[0-3] State=UP TotalCPUs=16 TotalNodes=4
PartitionName=short AllowGroups=ALL Default=NO MaxNodes=2 MaxTime=1-00:30:00 Nodes=n[0-3] State=UP TotalNodes=4
PartitionName=empty Default=NO MaxNodes=1 MaxTime=UNLIMITED Nodes=(null) State=UP TotalNodes=0
"""


def test_partitions_are_read_and_say_what_they_can_never_run():
    main, short, empty = parse_partitions(PARTITIONS)
    nodes = ("n0", "n1", "n2", "n3")
    assert main == Partition(name="main", nodes=nodes, max_nodes=None, max_minutes=None)
    assert (short.max_nodes, short.max_minutes, empty.nodes) == (2, 1470, ())
    assert main.refusal(4, 10**6) is None
    assert main.refusal(5, 1) == "5 nodes, but partition main has 4"
    assert short.refusal(2, 1470) is None
    assert short.refusal(3, 1) == "3 nodes, but partition short allows 2 in one job"
    assert short.refusal(1, 1471) == "1471 min, but partition short allows 1470"
    assert room_for([main, short], nodes, 2, ("n0", "n1"))
    assert not room_for([main, short], nodes, 3, ("n0", "n1", "n0", "elsewhere"))
    assert not room_for([main, short], nodes[:3], 2, ("n0", "n1"))  # one of those left does not run


# As sbatch said it, or as slurm_strerror has it (src/common/slurm_errno.c).
@pytest.mark.parametrize(
    ("complaint", "silent"),
    [
        ("sbatch: error: invalid partition specified: nope sbatch: error: Batch job submission failed: Invalid "
         "partition name specified", False),
        ("sbatch: error: Batch job submission failed: MaxJobCount limit reached", False),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)", True),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", True),
        ("slurm_load_jobs error: Zero Bytes were transmitted or received", True),
    ],
)  # fmt: skip
def test_refusals_are_told_from_silence(complaint, silent):
    assert Answer(1, "", complaint).says(SILENCES) is silent


def test_the_nodes_that_srun_says_failed_are_read_from_its_own_words_alone(tmp_path):
    (tmp_path / "log").write_text(
        "srun: error: Task launch for StepId=2.2 failed on node n1: Communication connection failure\n"
        "srun: error: Application launch failed: Communication connection failure\n"
        "srun: error: Node failure on n[3-4]\n"
        "rank 0 says: srun: error: Node failure on n7\n"
    )
    assert read_failed_nodes(tmp_path / "log") == ("n1", "n3", "n4")
    assert read_failed_nodes(tmp_path / "none") == ()


@pytest.mark.parametrize(
    ("said", "gres", "share"),
    [
        ("a|idle|128|512000||gpu:h100:8(S:0-1),nic:4\nb|idle|96+|512000||gpu:h100:8\n", "gpu", DeviceShare(12, 64000)),
        ("a|idle|128|9||gpu:h100:8(S:0-1)\nb|idle|64|9||gpu:a100:4(S:0),gpu:mig:2\n", "gpu:a100", DeviceShare(16, 2)),
        ("a|idle|128|16||gpu:h100:8\nb|idle|64|16||gpu:a100:4,gpu:v100:4\n", "gpu", DeviceShare(8, 2)),
        ("a|idle|4|2000||gpu:2\nb|idle|256|1||(null)\n", "gpu", DeviceShare(2, 1000)),
        ("a|idle|2|2000||gpu:8\n", "gpu", DeviceShare(1, 250)),
        # Slurm does not know the devices: as many as the cluster is said to have.
        ("a|idle|128|800||(null)\n", "gpu", DeviceShare(32, 200)),
        ("a|idle|128|800||gpu:h100:8\n", "gpu:a100", DeviceShare(32, 200)),
        ("", "gpu", None),
    ],
)
def test_a_devices_share_is_that_of_the_least_node_that_has_some(said, gres, share):
    assert share_per_device(parse_nodes(said), gres, 4) == share


def test_nodes_that_start_jobs_are_told_from_those_that_do_not():
    running = ["idle", "mixed", "allocated", "completing", "planned", "idle~", "idle#", "powering_up"]
    reserved = ["maint", "reserved", "idle$"]
    others = ["down*", "drained", "draining*", "failing", "fail", "idle*", "mixed^", "reboot", "inval", "future"]
    states = [*others, *running, *reserved]
    nodes = parse_nodes("".join(f"n{number}|{state}|1|1|f|(null)\n" for number, state in enumerate(states)))
    assert [node.state for node in nodes if node.starts_jobs(reserved=False)] == running
    assert [node.state for node in nodes if node.starts_jobs(reserved=True)] == [*running, *reserved]


@pytest.mark.parametrize(
    ("constraint", "fits"),
    [("", True), ("ib", True), ("a100&ib", True), ("a100&h100", False), ("a100|h100", True), ("h100", False),
     ("[rack1|rack2]", True), ("h100*2", True)],
)  # fmt: skip
def test_a_node_fits_a_constraint_by_its_features(constraint, fits):
    (node,) = parse_nodes("n0|idle|1|1|a100,ib|(null)\n")
    assert node.fits(constraint) is fits


SPEC = JobSpec(name="job", command=("true",), directory=Path("/d"), nodes=2, devices_per_node=2, time_limit_s=60.0)
NODES = ("n0", "n1")
LOST, FAILED, SUCCEEDED = JobState.LOST, JobState.FAILED, JobState.SUCCEEDED
FORGOTTEN = "Slurm does not know this job any more, and its processes did not say how they ended"
KILLED_LAUNCHER = "its launcher ended, while its nodes answer and its ranks had started"


def note(rank: int, end: End | None = None, code: int | None = None, at: float = 110.5) -> Note:
    finished_at = None if end is None else at
    return Note(rank=rank, host=NODES[rank // 2], started_at=100.5, finished_at=finished_at, end=end, exit_code=code)


WELL = [note(rank, End.ITSELF, 0) for rank in range(4)]
BADLY = [note(0, End.TOLD), note(1, End.TOLD), note(2, End.ITSELF, 7, 109.0), note(3, End.TOLD)]
LATE = [note(rank, End.TIME_LIMIT) for rank in range(4)]
TOLD = [note(rank, End.TOLD) for rank in range(4)]
KILLED = [note(0, End.ITSELF, -9), *TOLD[1:]]
HALF_LATE = [*LATE[:2], note(2), note(3)]
HALF = [note(0, End.TOLD), note(1, End.TOLD), note(2), note(3)]


def seen_as(word: str, *, nodes=NODES, started_at=100, finished_at=111, reason="None") -> JobStatus:
    """A job as squeue shows it."""
    return parse_jobs(f"5|{word}|{','.join(nodes)}|{started_at}|{finished_at}|{reason}")["5"]


def status(word: str | None, notes=(), *, cancel_asked=False, bad_nodes=(), spec=SPEC, **changes):
    seen = None if word is None else seen_as(word, **changes)
    return status_of(spec, seen, list(notes), cancel_asked=cancel_asked, bad_nodes=bad_nodes)


PER_NODE = replace(SPEC, start=Start.NODE, devices_per_node=8)
NOTE_OF_A_NODE = [Note(rank=0, host="n0", started_at=1.0, finished_at=2.0, end=End.TOLD)]


@pytest.mark.parametrize(
    ("word", "notes", "changes", "expected"),
    [
        # A waiting job has no nodes yet and says why it waits.
        (
            "PENDING",
            [],
            {"nodes": (), "started_at": 1000000000, "reason": "Resources"},
            {"state": JobState.QUEUED, "reason": "waits in Slurm's queue: Resources", "started_at": None, "nodes": ()},
        ),
        ("PENDING", [], {"nodes": ()}, {"reason": "waits in Slurm's queue"}),
        ("CONFIGURING", [], {}, {"reason": "its nodes are being prepared"}),
        # One that has its nodes runs from its ranks' start.
        (
            "RUNNING",
            [note(0)],
            {"finished_at": 999},
            {"state": JobState.RUNNING, "started_at": 100.5, "finished_at": None, "nodes": NODES},
        ),
        ("COMPLETING", [], {}, {"state": JobState.RUNNING, "started_at": 100.0}),
        ("SUSPENDED", [], {}, {"state": JobState.RUNNING}),
        # The notes say how a job ended that came to its own end.
        ("COMPLETED", WELL, {}, {"state": SUCCEEDED, "exit_code": 0, "started_at": 100.5, "finished_at": 110.5}),
        (
            "FAILED",
            BADLY,
            {"reason": "NonZeroExitCode"},
            {"state": FAILED, "exit_code": 7, "reason": "rank 2 exited with code 7", "cause": None, "failed_nodes": ()},
        ),
        ("FAILED", LATE, {}, {"state": JobState.TIMED_OUT, "reason": "ran longer than its time limit of 60 s"}),
        ("FAILED", WELL, {}, {"state": SUCCEEDED}),  # srun may fail at its own end
        # Without a word of its ranks it is as Slurm says.
        ("COMPLETED", [], {}, {"state": SUCCEEDED, "exit_code": 0}),
        (
            "FAILED",
            [],
            {"reason": "NonZeroExitCode"},
            {"state": FAILED, "reason": "the job script failed; see slurm.log (NonZeroExitCode)"},
        ),
        ("OUT_OF_MEMORY", [], {}, {"state": FAILED, "cause": Cause.OOM}),
        (
            "OUT_OF_MEMORY",
            KILLED,
            {},
            {
                "state": FAILED,
                "exit_code": -9,
                "cause": Cause.OOM,
                "reason": "rank 0 was killed by SIGKILL; out of host memory, by Slurm's word",
            },
        ),
        # What Slurm ended is as it says, whatever the ranks saw.
        ("TIMEOUT", HALF, {}, {"state": JobState.TIMED_OUT}),
        ("TIMEOUT", TOLD, {}, {"state": JobState.TIMED_OUT}),
        ("CANCELLED", BADLY, {}, {"state": JobState.CANCELLED, "reason": "cancelled from outside"}),
        ("CANCELLED", HALF, {"cancel_asked": True}, {"reason": "cancelled", "started_at": 100.5}),
        ("CANCELLED", [], {"nodes": ()}, {"started_at": None}),
        # By Slurm, as a node's prolog failed, or by people.
        (
            "CANCELLED",
            [],
            {"bad_nodes": ("n1",)},
            {"state": LOST, "failed_nodes": ("n1",), "reason": "a node failed: n1"},
        ),
        ("CANCELLED", HALF, {"bad_nodes": ("n1",)}, {"state": JobState.CANCELLED}),
        ("CANCELLED", [], {"bad_nodes": ("n1",), "cancel_asked": True}, {"state": JobState.CANCELLED}),
        (
            "PREEMPTED",
            HALF,
            {"bad_nodes": ("n1",)},
            {"state": LOST, "cause": Cause.PREEMPTION, "failed_nodes": (), "reason": "preempted by another job"},
        ),
        ("PREEMPTED", BADLY, {}, {"state": LOST}),
        ("NODE_FAIL", BADLY, {}, {"state": LOST}),
        # Ranks that all were told to end were displaced.
        ("FAILED", TOLD, {"reason": "NonZeroExitCode"}, {"state": LOST, "cause": Cause.PREEMPTION, "failed_nodes": ()}),
        ("FAILED", TOLD[:3], {}, {"state": FAILED}),
        # A lost node is named where it is down, or else where it was not heard of.
        (
            "NODE_FAIL",
            HALF,
            {"bad_nodes": ("n1", "n9")},
            {"state": LOST, "cause": Cause.NODE_FAULT, "failed_nodes": ("n1",), "reason": "a node failed: n1"},
        ),
        ("NODE_FAIL", HALF, {}, {"failed_nodes": ("n1",)}),
        ("NODE_FAIL", [], {}, {"failed_nodes": ()}),
        ("NODE_FAIL", [note(rank) for rank in range(4)], {}, {"failed_nodes": ()}),
        ("NODE_FAIL", [], {"nodes": ("n3",)}, {"failed_nodes": ("n3",)}),
        ("NODE_FAIL", NOTE_OF_A_NODE, {"spec": PER_NODE}, {"failed_nodes": ("n1",)}),
        ("FAILED", [], {"reason": "JobLaunchFailure"}, {"failed_nodes": ("n0",)}),
        # Slurm says so too of a launcher that was killed: no node is to blame while all answer.
        (
            "FAILED",
            HALF,
            {"reason": "JobLaunchFailure"},
            {"state": LOST, "cause": None, "failed_nodes": (), "reason": KILLED_LAUNCHER},
        ),
        (
            "FAILED",
            HALF,
            {"reason": "JobLaunchFailure", "bad_nodes": ("n1",)},
            {"state": LOST, "cause": Cause.NODE_FAULT, "failed_nodes": ("n1",)},
        ),
        ("FAILED", HALF, {"bad_nodes": ("n1",)}, {"state": LOST, "cause": Cause.NODE_FAULT, "failed_nodes": ("n1",)}),
        ("FAILED", HALF, {}, {"state": FAILED}),
        # Two ranks waited for peers on a dead node until their time was up.
        ("TIMEOUT", HALF_LATE, {"bad_nodes": ("n1",)}, {"state": LOST, "failed_nodes": ("n1",)}),
        ("FAILED", HALF_LATE, {"bad_nodes": ("n0",)}, {"state": JobState.TIMED_OUT}),
        ("FAILED", LATE, {"bad_nodes": ("n1",)}, {"state": JobState.TIMED_OUT}),
        # A bad node of another job says nothing of this one.
        ("FAILED", [], {"bad_nodes": ("n9",)}, {"state": FAILED, "cause": None}),
        ("TIMEOUT", HALF, {"bad_nodes": ("n9",)}, {"state": JobState.TIMED_OUT}),
        # A forgotten job is as its ranks said, or lost.
        (None, WELL, {}, {"state": SUCCEEDED, "finished_at": 110.5, "nodes": NODES}),
        (None, BADLY, {}, {"exit_code": 7}),
        (None, HALF, {}, {"state": LOST, "reason": FORGOTTEN, "cause": None}),
        (None, [], {}, {"state": LOST}),
    ],
)
def test_a_job_is_as_slurm_its_ranks_and_its_nodes_say(word, notes, changes, expected):
    found = status(word, notes, **changes)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("word", "notes", "nodes"),
    [
        ("NODE_FAIL", HALF, NODES),
        ("FAILED", HALF, ("n1",)),
        ("FAILED", [], NODES),
        ("FAILED", BADLY, ()),
        ("COMPLETED", [], ()),
        ("CANCELLED", HALF, ()),
        ("TIMEOUT", HALF_LATE, ("n1",)),
        ("FAILED", LATE, ()),
        ("CANCELLED", [], NODES),
        ("PREEMPTED", HALF, ()),
    ],
)
def test_nodes_are_suspected_where_no_rank_explains_the_failure(word, notes, nodes):
    assert suspects(SPEC, seen_as(word), notes) == nodes
