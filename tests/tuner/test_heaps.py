"""However many threads a service has, they share a few heaps; what is free in them is given back."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys

import pytest

from meshtune.tuner.service.heaps import HEAPS, share_heaps, trimmed_heaps

# Sixteen threads take memory at once; glibc writes down its heaps.
MANY = """
import ctypes, sys, threading
from meshtune.tuner.service.heaps import share_heaps

share_heaps()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
libc.malloc_info.argtypes, libc.fclose.argtypes = [ctypes.c_int, ctypes.c_void_p], [ctypes.c_void_p]
together = threading.Barrier(16)
threads = [threading.Thread(target=lambda: (together.wait(), libc.malloc(1000), together.wait())) for _ in range(16)]
[each.start() for each in threads]
[each.join() for each in threads]
file = libc.fopen(sys.argv[1].encode(), b"w")
libc.malloc_info(0, file)
libc.fclose(file)
"""

# Four million bytes are taken at once; glibc writes down what is the system's own.
LARGE = MANY[: MANY.index("together =")] + "libc.malloc(4_000_000)\n" + MANY[MANY.index("file =") :]

# 64 MB are freed below a block that stays; told is the share that the process still has, after so many seconds at most.
FREED = """
import ctypes, sys, time
from meshtune.tuner.service.heaps import trimmed_heaps

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

every_s, limit_s = map(float, sys.argv[1:])
with trimmed_heaps(every_s):
    before = resident()
    blocks = [libc.malloc(64_000) for _ in range(1000)]
    for block in blocks:
        ctypes.memset(block, 1, 64_000)
    held = resident() - before
    for block in blocks[:-1]:
        libc.free(block)
    deadline = time.monotonic() + limit_s
    while resident() - before > 0.2 * held and time.monotonic() < deadline:
        time.sleep(0.05)
    print((resident() - before) / held)
"""
glibc = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="no glibc")


@glibc
@pytest.mark.parametrize("shared", [True, False])
def test_threads_share_a_few_heaps(shared, tmp_path):
    program = MANY if shared else MANY.replace("share_heaps()", "")
    subprocess.run([sys.executable, "-c", program, tmp_path / "heaps.xml"], check=True, timeout=60)
    heaps = (tmp_path / "heaps.xml").read_text().count("<heap ")
    assert (heaps <= HEAPS) is shared


@glibc
@pytest.mark.parametrize("shared", [True, False])
def test_large_blocks_come_from_the_heaps_from_the_start_on(shared, tmp_path):
    program = LARGE if shared else LARGE.replace("share_heaps()", "")
    subprocess.run([sys.executable, "-c", program, tmp_path / "heaps.xml"], check=True, timeout=60)
    (own,) = re.findall('<total type="mmap" count="[0-9]+" size="([0-9]+)"/>', (tmp_path / "heaps.xml").read_text())
    assert (int(own) < 4_000_000) is shared


@glibc
@pytest.mark.parametrize(("every_s", "limit_s", "given_back"), [("0.05", "30", True), ("600", "0.3", False)])
def test_what_is_free_goes_back_to_the_system_though_something_lies_above_it(every_s, limit_s, given_back):
    command = [sys.executable, "-c", FREED, every_s, limit_s]
    done = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True)
    assert (float(done.stdout) < 0.5) is given_back


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    share_heaps()
    with trimmed_heaps(0.0):
        pass
