"""The hardware of a job: what its nodes record beside its ranks, how that is read, which kinds are alike, and the
version of a GPU's driver."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from jobs import alive

from meshtune.runners.base import JobState
from meshtune.runners.devices.record import leave_record, processor
from meshtune.runners.hardware import (
    MAX_KINDS,
    MAX_RECORD_BYTES,
    HardwareKind,
    HardwareRecord,
    kinds_text,
    parse_nvidia_csv,
    parse_rocm_json,
    read_hardware,
    record_name,
    same_hardware,
)
from meshtune.runners.outcome import ResultMalformed, parse_result
from meshtune.runners.trainer.report import driver_version
from meshtune.search_spaces.checks import InvalidValue

# As nvidia-smi 550 and 535 print them.
H100S = """\
0, GPU-4c1d7a0e-0000-0000-0000-000000000000, NVIDIA H100 80GB HBM3, 81559 MiB, 1980 MHz, 550.54.15
1, GPU-77e2f3aa-0000-0000-0000-000000000001, NVIDIA H100 80GB HBM3, 81559 MiB, 1980 MHz, 550.54.15
"""
A100S = H100S.replace("H100 80GB HBM3, 81559 MiB, 1980", "A100-SXM4-80GB, 81920 MiB, 1410")
MIXED = H100S.splitlines()[0] + "\n" + A100S.splitlines()[1] + "\n"
ROCM = {
    "card0": {"Card Series": "AMD Instinct MI300X", "VRAM Total Memory (B)": "206141652992"},
    "system": {"Driver version": "6.7.0"},
}
H100 = HardwareKind(
    device="NVIDIA H100 80GB HBM3", memory_bytes=81559 << 20, clock_mhz=1980, driver="550.54.15", nodes=("n0",)
)
A100 = HardwareKind(
    device="NVIDIA A100-SXM4-80GB", memory_bytes=81920 << 20, clock_mhz=1410, driver="550.54.15", nodes=("n0",)
)


def leave(folder: Path, number: int, host: str = "n0", **said) -> None:
    record = HardwareRecord(**{"host": host, "nvidia": H100S, **said})
    (folder / record_name(number)).write_text(json.dumps(asdict(record)))


def test_the_kinds_of_a_job_have_the_nodes_that_recorded_them(tmp_path):
    for number, (host, said) in enumerate([("n0", H100S), ("n1", A100S), ("n2", H100S)]):
        leave(tmp_path, number, host, nvidia=said)
    found = read_hardware(tmp_path, 3, accelerators=True, nodes=("n0", "n1", "n2"))
    assert found == (replace(H100, nodes=("n0", "n2")), replace(A100, nodes=("n1",)))
    assert read_hardware(tmp_path, 1, accelerators=True) == (H100,)
    assert kinds_text(found) == "NVIDIA H100 80GB HBM3 and NVIDIA A100-SXM4-80GB"


def test_a_node_is_named_as_its_runner_names_it(tmp_path):
    leave(tmp_path, 0, "gpu-a.site")
    leave(tmp_path, 1, "gpu-b.site")
    (kind,) = read_hardware(tmp_path, 3, accelerators=True, nodes=("10.0.0.7", "10.0.0.9"))
    assert kind.nodes == ("10.0.0.7", "10.0.0.9")
    (kind,) = read_hardware(tmp_path, 3, accelerators=True)
    assert kind.nodes == ("gpu-a.site", "gpu-b.site")


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, (H100, A100)),
        ("0", (H100,)),
        ("1", (A100,)),
        (" 1, 0", (A100, H100)),
        ("GPU-77e2f3aa", (A100,)),
        # A container's own numbering, which says nothing of the host's.
        ("5", (H100, A100)),
        ("", ()),
        ("-1", ()),
        ("MIG-8f1c-0000", ()),
    ],
)
def test_only_the_devices_that_the_job_was_given_count(tmp_path, visible, found):
    leave(tmp_path, 0, nvidia=MIXED, visible=visible)
    assert read_hardware(tmp_path, 3, accelerators=True) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "not JSON",
        '{"host": 7}',
        '{"host": "n0", "nvidia": "No devices were found\\n"}',
        '{"host": "n0", "nvidia": "0, GPU-1, ' + "x" * 500 + ', 1 MiB, 1 MHz, 5\\n"}',
        '{"host": "n0", "nvidia": "' + "y" * MAX_RECORD_BYTES + '"}',
        '{"host": "n0", "cpu": {"device": "z", "memory_bytes": -5}}',
    ],
)
def test_what_a_record_says_wrongly_is_unknown_and_no_error(tmp_path, text):
    (tmp_path / record_name(0)).write_text(text)
    (tmp_path / record_name(1)).symlink_to("/dev/zero")
    assert read_hardware(tmp_path, 3, accelerators=True) == ()
    assert read_hardware(tmp_path / "gone", 3, accelerators=True) == ()


def test_numbers_that_a_driver_does_not_tell_are_unknown():
    (kind, *_) = parse_nvidia_csv("0, GPU-1, NVIDIA GB10, [N/A], [N/A], 580.95\n").values()
    assert kind == HardwareKind(device="NVIDIA GB10", driver="580.95")


def test_rocm_names_its_cards():
    kind = HardwareKind(device="AMD Instinct MI300X", memory_bytes=206141652992, driver="6.7.0")
    assert parse_rocm_json(json.dumps(ROCM)) == {"0": kind}
    for other in ("", "[]", '{"card0": 3}', '{"card0": {}}', "WARNING: no AMD GPUs\n"):
        assert parse_rocm_json(other) == {}


def test_a_driver_makes_no_kind_unlike_and_device_memory_and_clock_do():
    assert same_hardware((H100,), (replace(H100, driver="535", nodes=("n9",)),))
    assert same_hardware((H100,), (replace(H100, memory_bytes=H100.memory_bytes - (200 << 20)),))
    assert same_hardware((H100,), (replace(H100, clock_mhz=None, memory_bytes=None),))
    slower, smaller = replace(H100, clock_mhz=1755), replace(H100, memory_bytes=64 << 30)
    for other in (A100, slower, smaller):
        assert not same_hardware((H100,), (other,))
    assert kinds_text((slower,), beside=(H100,)) == "NVIDIA H100 80GB HBM3 (80 GiB, 1755 MHz)"


def test_a_mix_is_like_the_same_mix_only_and_the_unknown_like_anything():
    assert same_hardware((H100, A100), (A100, H100))
    assert not same_hardware((H100, A100), (H100,))
    assert not same_hardware((H100,), (H100, A100))
    assert same_hardware((), (H100,))
    assert same_hardware((A100,), ())


def test_processors_are_read_from_the_kernels_files(tmp_path):
    for name, text in {
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: AMD EPYC 9654 96-Core Processor\n",
        "proc/meminfo": "MemTotal:       792000000 kB\nMemFree: 1 kB\n",
        "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "3707812\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = processor(tmp_path)
    assert (found.device, found.memory_bytes, found.clock_mhz) == (
        *("AMD EPYC 9654 96-Core Processor", 792000000 * 1024, 3707),
    )
    assert found.driver == os.uname().release
    empty = processor(tmp_path / "nothing")
    assert (empty.device, empty.memory_bytes, empty.clock_mhz) == (os.uname().machine, None, None)


@pytest.mark.parametrize("script", ["exit 9", "echo broken; exit 1", "kill -9 $$", "printf '\\377\\000x'"])
def test_a_tool_that_fails_leaves_the_device_unknown_and_the_processor_known(tmp_path, recorded, script):
    recorded.script("nvidia-smi", script)
    leave_record(tmp_path, {"NODE_RANK": "0"})
    assert read_hardware(tmp_path, 3, accelerators=True) == ()
    assert read_hardware(tmp_path, 3, accelerators=False)[0].device == processor().device


def test_a_job_leaves_the_record_of_its_devices_whoever_runs_it(lab, recorded):
    recorded.answer("nvidia-smi", MIXED)
    env = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "1"}
    id = lab.submit("recorded", "sleep 0.5", processes=2, env=env)
    ended = lab.wait(id)
    assert ended.state is JobState.SUCCEEDED
    folder = lab.folder / "work" / "recorded"
    assert [path.name for path in folder.glob("hardware-*")] == [record_name(0)]
    (kind,) = read_hardware(folder, 3, accelerators=True, nodes=ended.nodes)
    assert (kind.device, kind.driver) == (A100.device, "550.54.15")
    assert kind.nodes == (ended.nodes or (os.uname().nodename,))
    assert read_hardware(folder, 3, accelerators=False)[0].device == processor().device


def test_a_tool_that_hangs_keeps_no_job_and_dies_with_it(local, recorded, tmp_path):
    recorded.script("nvidia-smi", f"echo $$ > {tmp_path}/tool; exec sleep 600")
    env = {"PATH": os.environ["PATH"]}
    ended = local.wait(local.submit("hanging", f"while ! test -s {tmp_path}/tool; do sleep 0.05; done", env=env))
    assert ended.state is JobState.SUCCEEDED
    assert ended.elapsed_s < 20
    assert read_hardware(tmp_path / "work" / "hanging", 3, accelerators=True) == ()
    assert not alive(int((tmp_path / "tool").read_text()))


def result(**hardware) -> str:
    measurement = {"step_times_s": [1.0], "tokens_per_step": 8, "devices": 2, **hardware}
    return json.dumps({"version": 1, "verdict": "ok", "measurement": measurement})


def test_a_result_may_state_its_hardware():
    found = parse_result(result(hardware=[{"device": "TPU v5p", "nodes": ["t1", "t2"]}])).measurement
    assert found.hardware == (HardwareKind(device="TPU v5p", nodes=("t1", "t2")),)
    assert parse_result(result()).measurement.hardware == ()


@pytest.mark.parametrize(
    ("hardware", "place"),
    [
        ([{}], "measurement.hardware.0.device: is missing"),
        ([{"device": "x" * 201}], "measurement.hardware.0.device: must have at most 200 characters, not 201"),
        ([{"device": "x", "clock_mhz": 0}], "measurement.hardware.0.clock_mhz: must be at least 1, not 0"),
        ([{"device": "x"}] * (MAX_KINDS + 1), "measurement.hardware: must name at most 64 kinds, not 65"),
    ],
)
def test_a_result_that_states_it_wrongly_is_malformed(hardware, place):
    with pytest.raises((ResultMalformed, InvalidValue), match=place):
        parse_result(result(hardware=hardware))


NVIDIA = """\
NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024
GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)
"""
NVIDIA_OPEN = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build  (dvs-builder@U16)  Tue Mar  5 2024
"""


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (NVIDIA, "535.183.01"),
        (NVIDIA_OPEN, "550.54.15"),
        ("6.10.5\n", "6.10.5"),
        ("no number\n1.2.3\n", None),
        ("", None),
    ],
)
def test_a_driver_tells_its_version_in_the_first_line(tmp_path, text, version):
    (tmp_path / "version").write_text(text)
    assert driver_version(tmp_path / "version") == version
