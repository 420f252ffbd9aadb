"""A rank's device, the CPUs beside it that it is bound to, and the one worker of every group of a CPU job."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from meshtune.runners.trainer.environment import torch_build
from meshtune.runners.trainer.parallel.mesh import bind_beside, choose_cpus, choose_device, cpus_beside, device_index
from meshtune.runners.trainer.probe import visible_kind
from meshtune.search_spaces.cluster import DeviceKind

# As torch.cuda.get_device_properties gives them.
PROPERTIES = SimpleNamespace(pci_domain_id=1, pci_bus_id=0xC1, pci_device_id=0)
WHOLE, NODE = frozenset(range(128)), frozenset({*range(32), *range(64, 96)})


def sysfs(folder: Path, cpus: str) -> Path:
    slot = folder / "0001:c1:00.0"
    slot.mkdir()
    (slot / "local_cpulist").write_text(f"{cpus}\n", encoding="ascii")
    return folder


@pytest.mark.parametrize(
    ("cpus", "expected"), [("0-31,64-95", NODE), ("5", {5}), ("0,2-3", {0, 2, 3}), ("", set())], ids=repr
)
def test_the_kernel_tells_which_cpus_lie_beside_a_device(cpus, expected, tmp_path):
    assert cpus_beside(PROPERTIES, sysfs(tmp_path, cpus)) == expected


@pytest.mark.parametrize("properties", [SimpleNamespace(name="an XPU"), PROPERTIES], ids=["no slot", "no such slot"])
def test_nothing_is_known_of_a_device_without_a_place(properties, tmp_path):
    assert cpus_beside(properties, tmp_path) == frozenset()


@pytest.mark.parametrize(
    ("allowed", "beside", "chosen"),
    [
        (WHOLE, NODE, NODE),
        (set(range(80)), NODE, {*range(32), *range(64, 80)}),
        (set(range(8)), NODE, set(range(8))),
        (set(range(40, 48)), NODE, set(range(40, 48))),
        (WHOLE, WHOLE, WHOLE),
        (WHOLE, frozenset(), WHOLE),
        (set(range(100, 128)), {0, 1}, set(range(100, 128))),
    ],
    ids=["whole machine", "most of it", "a share", "a share elsewhere", "one node", "unknown", "none beside"],
)
def test_only_a_rank_that_nobody_bound_is_bound(allowed, beside, chosen):
    assert choose_cpus(allowed, beside) == chosen


def test_binding_holds_for_this_thread_and_those_that_it_starts(tmp_path):
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("one CPU is all there is")
    beside = max(before)

    def bound() -> tuple[set[int], set[int]]:
        bind_beside(PROPERTIES, sysfs(tmp_path, str(beside)))
        with ThreadPoolExecutor(1) as pool:
            return os.sched_getaffinity(0), pool.submit(os.sched_getaffinity, 0).result()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(bound).result() == ({beside}, {beside})
    assert os.sched_getaffinity(0) == before


without_accelerator = pytest.mark.skipif(
    torch.accelerator.current_accelerator() is not None, reason="torch is built for an accelerator"
)


@without_accelerator
@pytest.mark.parametrize("kind", [DeviceKind.CUDA, DeviceKind.XPU])
def test_an_accelerator_that_is_not_there_is_refused_with_what_torch_is(kind):
    told = rf"the job asks for {kind}, but torch {torch.__version__.replace('+', '.')} is built for the CPU alone"
    with pytest.raises(RuntimeError, match=told):
        choose_device(kind, 0)


@without_accelerator
def test_without_an_accelerator_the_devices_are_the_cpu():
    assert visible_kind() is DeviceKind.CPU
    build = torch_build()
    assert (build.kind, build.devices, build.error) == ("cpu", (), "")


@pytest.mark.parametrize(("local_rank", "visible", "index"), [(0, 4, 0), (3, 4, 3), (0, 1, 0), (3, 1, 0)])
def test_a_rank_takes_its_own_device_or_the_one_that_it_is_shown(local_rank, visible, index):
    assert device_index(local_rank, visible) == index


def test_no_rank_shares_a_device_because_there_are_too_few():
    with pytest.raises(RuntimeError, match="local rank 6 has no device of its own: torch sees 6;"):
        device_index(6, 6)


# Before the first step, so after every group has been made.
COUNT_WORKERS = """
import torch
import torch.distributed as dist
import meshtune.runners.trainer.main as trainer_main
measure = trainer_main.measure

def measure_after_a_look(*arguments):
    for group in dist.distributed_c10d._world.pg_map:
        print("workers", group._get_backend(torch.device("cpu")).options._threads)
    return measure(*arguments)

trainer_main.measure = measure_after_a_look
"""


def test_every_group_of_a_cpu_job_has_one_worker(run_job, make_job):
    plan = {"dp": 2, "cp": 2, "context": "ulysses", "zero_stage": 1}
    finished = run_job(make_job(plan=plan), COUNT_WORKERS)
    assert finished.status == 0
    said = [line for line in (finished.directory / "rank-0.log").read_text().splitlines() if "workers" in line]
    assert len(said) >= 3  # all ranks, dp, cp
    assert set(said) == {"workers 1"}
