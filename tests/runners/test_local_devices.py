"""Jobs of the local runner share no device, a device that somebody else uses comes last and is named, and nobody waits
to know it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from jobs import wait_for
from places import cluster

from meshtune.runners.base import JobState, Refused
from meshtune.runners.devices.visible import Neighbours, visible_devices
from meshtune.runners.outcome import Verdict
from meshtune.runners.processes.gang import PERIOD_S
from meshtune.runners.registry import create_runner, create_workload

VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
SEE = "echo $LOCAL_RANK $CUDA_VISIBLE_DEVICES > seen-$RANK; "
HOLD = SEE + "exec sleep 300"


@pytest.fixture
def give(local, monkeypatch):
    """Opens a runner that gives away the devices of a list, as the service's environment names them."""

    def opened(names: str, **options):
        for variable in VARIABLES:
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
        local.runner = local.open(gives_devices=True, **options)
        return local

    return opened


def seen(lab, name: str, processes: int = 2) -> list[str]:
    return [lab.wait_text(name, f"seen-{rank}") for rank in range(processes)]


def test_jobs_that_run_at_once_get_disjoint_devices_in_order_and_give_them_back(give):
    lab = give("3,GPU-5ab2,6,1")
    for name in ("first", "second"):
        lab.submit(name, HOLD, processes=2)
    lab.submit("third", HOLD, processes=1)
    assert seen(lab, "first") == ["0 3,GPU-5ab2\n", "1 3,GPU-5ab2\n"]
    assert seen(lab, "second") == ["0 6,1\n", "1 6,1\n"]
    assert lab.status("third").state is JobState.QUEUED
    lab.runner.cancel("first")
    assert seen(lab, "third", 1) == ["0 3\n"]
    lab.submit("fourth", f"{SEE} exit 3")
    assert seen(lab, "fourth", 1) == ["0 GPU-5ab2\n"]
    lab.wait("fourth")
    lab.submit("fifth", SEE)
    assert seen(lab, "fifth", 1) == ["0 GPU-5ab2\n"]


@pytest.mark.parametrize(("kind", "second"), [("cuda", "2,3"), ("cpu", "0,1,2,3")])
def test_the_devices_of_a_cluster_of_accelerators_are_shared_out(kind, second, give):
    lab = give("0,1,2,3")
    lab.runner = create_runner("local", lab.folder / "spool", cluster(1, 2, kind), {"slots": 4})
    lab.opened.append(lab.runner)
    for name in ("first", "second"):
        lab.submit(name, HOLD, processes=2)
    seen(lab, "first")
    assert seen(lab, "second") == [f"0 {second}\n", f"1 {second}\n"]


def test_devices_run_out_before_slots_do(give):
    lab = give("0,1", slots=4)
    lab.submit("first", HOLD, processes=2)
    lab.submit("second", SEE)
    seen(lab, "first")
    lab.runner.cancel("first")
    assert seen(lab, "second", 1) == ["0 0\n"]
    first, second = lab.wait("first"), lab.wait("second")
    assert first.finished_at <= second.started_at


def test_the_next_server_has_the_devices_of_a_killed_one(give):
    lab = give("4,5")
    lab.submit("running", HOLD, processes=2)
    lab.submit("queued", HOLD, processes=2)
    seen(lab, "running")
    os.kill(lab.wait_server(), signal.SIGKILL)
    lab = give("4,5")  # a restarted service
    assert lab.wait("running").state is JobState.LOST
    assert seen(lab, "queued") == ["0 4,5\n", "1 4,5\n"]
    assert lab.status("queued").state is JobState.RUNNING


def test_two_services_of_one_home_do_not_give_the_same_device(give):
    lab = give("0,1")
    lab.submit("mine", HOLD, processes=2)
    seen(lab, "mine")
    give("1,2")
    lab.submit("theirs", HOLD)
    assert seen(lab, "theirs", 1) == ["0 2\n"]


def test_a_job_takes_its_devices_from_the_list_of_its_own_environment(give):
    lab = give("0,1,2,3")
    lab.submit("own", HOLD, processes=2, env={"CUDA_VISIBLE_DEVICES": "2,3"})
    lab.submit("other", HOLD, processes=2)
    assert seen(lab, "own")[1] == "1 2,3\n"
    assert seen(lab, "other")[1] == "1 0,1\n"


def test_more_devices_than_are_visible_are_refused(give):
    lab = give("0,1,-1,2")
    told = r"^big needs 3 devices, but 2 of this machine are visible \(CUDA_VISIBLE_DEVICES\)$"
    with pytest.raises(Refused, match=told):
        lab.submit("big", "true", processes=3)
    assert lab.runner.find("big") is None


def test_a_job_of_processors_sees_what_it_saw(local, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    for name in ("first", "second"):
        local.submit(name, HOLD, processes=2)
    assert seen(local, "first") == seen(local, "second") == ["0 7\n", "1 7\n"]


@pytest.fixture
def nvidia_smi(recorded) -> Path:
    """The list of compute processes that a program of that name gives, in the CSV format of NVIDIA's. What the file
    `before` beside it says is done before it answers; then a line is added to `asked`."""
    folder = recorded.folder
    processes, before = folder / "processes", folder / "before"
    processes.touch()
    before.touch()
    recorded.script(
        "nvidia-smi",
        f"case $1 in *compute-apps*) . {before}; cat {processes}; echo >> {folder}/asked;; "
        "*index,uuid) printf '0, GPU-aa00\\n1, GPU-bb11\\n2, GPU-cc22\\n';; *) exit 6;; esac",
    )
    return processes


def looks(nvidia_smi: Path) -> int:
    """How many have been answered."""
    asked = nvidia_smi.with_name("asked")
    return len(asked.read_text()) if asked.exists() else 0


def test_devices_that_others_were_seen_to_use_come_last(nvidia_smi, give):
    lab = give("0,GPU-bb,2")
    nvidia_smi.write_text("GPU-aa00, 17, /usr/bin/python3\nGPU-bb11, [N/A], [Not Found]\n")
    names = (f"try-{number}" for number in range(100))
    # The first starts before the answer is there.
    wait_for(lambda: seen(lab, lab.submit(next(names), SEE), 1) == ["0 2\n"])
    lab.submit("first", HOLD)
    assert seen(lab, "first", 1) == ["0 2\n"]
    lab.submit("second", HOLD)
    assert seen(lab, "second", 1) == ["0 0\n"]
    lab.runner.cancel("second")
    lab.wait("second")


def test_a_measurement_beside_another_process_says_so(nvidia_smi, give, tmp_path):
    lab = give("0,1")
    # It answers when the job's own processes are there too, one of which has left its session.
    nvidia_smi.with_name("before").write_text(f"while [ ! -e {tmp_path}/told ]; do sleep 0.02; done\n")
    helper = "setsid sleep 300 & echo $! $$ > own-$RANK; "
    wait = "while [ ! -e go ]; do sleep 0.02; done; "
    result = '{"version": 1, "verdict": "ok", "measurement": {"step_times_s": [1], "tokens_per_step": 8, "devices": 2}}'
    lab.submit("job", f"{SEE}{helper}{wait}", processes=2, files={"result.json": result})
    seen(lab, "job")
    folder = lab.folder / "work" / "job"
    own = "".join(
        f"GPU-aa00, {pid}, python\n" for rank in (0, 1) for pid in lab.wait_text("job", f"own-{rank}").split()
    )
    nvidia_smi.write_text(f"{own}GPU-bb11, 4242, /opt/a, b\nGPU-bb11, 5, nvidia-cuda-mps-server\nGPU-cc22, 6, other\n")
    (tmp_path / "told").touch()
    wait_for(lambda: looks(nvidia_smi) == 1)
    time.sleep(10 * PERIOD_S)  # the server's turns, in which it reads the answer
    (folder / "go").touch()
    status = lab.wait("job")
    assert status.state is JobState.SUCCEEDED
    assert status.warning == "devices used by other processes too: 1 by /opt/a, b (4242)"
    outcome = create_workload("torch", {}).read(folder, status)
    assert (outcome.verdict, outcome.reason) == (Verdict.OK, status.warning)
    nvidia_smi.write_text("GPU-aa00, 17, python\n")
    assert lab.wait(lab.submit("alone", "sleep 0.5", env={"CUDA_VISIBLE_DEVICES": "1"})).warning == ""
    beside = lab.wait(lab.submit("beside", "sleep 0.5; exit 1", processes=2))
    assert beside.warning == "devices used by other processes too: 0 by python (17)"
    assert looks(nvidia_smi) == 3


def test_no_job_waits_for_a_slow_nvidia_smi(nvidia_smi, give):
    """From submission to the end of short jobs, one after the other on a warm server."""
    lab = give("0,1")
    lab.wait(lab.submit("warm", "true"))
    wait_for(lambda: looks(nvidia_smi) == 1)

    def took_s(name: str) -> float:
        began = time.monotonic()
        for number in range(3):
            lab.wait(lab.submit(f"{name}-{number}", "true"))
        return time.monotonic() - began

    quick_s = took_s("quick")
    nvidia_smi.with_name("before").write_text("sleep 3\n")
    slow_s = took_s("slow")
    assert slow_s < quick_s + 1.0, f"{slow_s:.2f} s beside {quick_s:.2f} s"


def test_a_nvidia_smi_that_hangs_is_ended_and_asked_again(nvidia_smi):
    neighbours, marked = Neighbours(), nvidia_smi.with_name("before")
    marked.write_text("exec sleep 300\n")
    neighbours.look(0.0)
    assert not neighbours.poll(1.0, lambda _: False)
    neighbours.look(2.0)
    assert neighbours.began_at == 0.0
    wait_for(lambda: neighbours.poll(10.0, lambda _: False))
    assert neighbours.on("0") == {}
    marked.write_text("")
    nvidia_smi.write_text("GPU-aa00, 17, python\nGPU-aa00, 18, python\n")
    neighbours.look(20.0)
    wait_for(lambda: neighbours.poll(20.0, lambda pid: pid == 18))
    assert (neighbours.on("0"), neighbours.on("GPU-aa"), neighbours.on("1")) == ({"17": "python"}, {"17": "python"}, {})


def test_where_there_is_no_nvidia_smi_nobody_is_seen(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    neighbours = Neighbours()
    neighbours.look(0.0)
    wait_for(lambda: neighbours.poll(0.0, lambda _: False))
    assert neighbours.on("0") == {}


def machine(root: Path, *paths: str) -> Path:
    for path in paths:
        (root / path).mkdir(parents=True)
    return root


NVIDIA = ("proc/driver/nvidia/gpus/0000:01:00.0", "proc/driver/nvidia/gpus/0000:41:00.0")


@pytest.mark.parametrize(
    ("drivers", "environment", "variable", "names"),
    [
        ((), {}, "CUDA_VISIBLE_DEVICES", "0,1,2,3"),
        (NVIDIA, {}, "CUDA_VISIBLE_DEVICES", "0,1"),
        (NVIDIA, {"CUDA_VISIBLE_DEVICES": "GPU-aa, MIG-bb,x,1"}, "CUDA_VISIBLE_DEVICES", "GPU-aa,MIG-bb"),
        ((), {"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES", ""),
        ((), {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, "CUDA_VISIBLE_DEVICES", ""),
        (("dev/kfd",), {}, "HIP_VISIBLE_DEVICES", "0,1,2,3"),
        (("dev/kfd",), {"ROCR_VISIBLE_DEVICES": "4,5"}, "ROCR_VISIBLE_DEVICES", "4,5"),
        # HIP counts the devices that ROCr leaves it.
        (("dev/kfd",), {"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "1,0"}, "HIP_VISIBLE_DEVICES", "1,0"),
        (("dev/kfd",), {"ROCR_VISIBLE_DEVICES": "4,5", "CUDA_VISIBLE_DEVICES": "1"}, "CUDA_VISIBLE_DEVICES", "1"),
        (("sys/module/i915",), {}, "ZE_AFFINITY_MASK", "0,1,2,3"),
        # Slurm without a detected kind of GPU sets one for each vendor.
        (("sys/module/xe",), {"CUDA_VISIBLE_DEVICES": "1", "ZE_AFFINITY_MASK": "0.0,1"}, "ZE_AFFINITY_MASK", "0.0,1"),
        (("sys/module/i915", *NVIDIA), {}, "CUDA_VISIBLE_DEVICES", "0,1"),
        (("sys/module/i915",), {"CUDA_VISIBLE_DEVICES": "1"}, "CUDA_VISIBLE_DEVICES", "1"),
    ],
)
def test_the_devices_are_those_that_the_environment_leaves_to_the_vendors_library(
    drivers, environment, variable, names, tmp_path
):
    found = visible_devices(environment, 4, machine(tmp_path, *drivers))
    assert (found.variable, ",".join(found.names)) == (variable, names)
