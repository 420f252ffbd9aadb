"""A rank is bound to the CPUs beside its device, by files such as the kernel's, and on this machine's own CPUs."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from meshtune.runners.trainer.parallel.mesh import bind_beside, choose_cpus, cpus_beside

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
