"""However many threads a service has, they share a few heaps."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from tuner.heaps import HEAPS, share_heaps

# Sixteen threads take memory at once; glibc writes down its heaps.
MANY = """
import ctypes, sys, threading
from tuner.heaps import share_heaps

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


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="no glibc")
@pytest.mark.parametrize("shared", [True, False])
def test_threads_share_a_few_heaps(shared, tmp_path):
    program = MANY if shared else MANY.replace("share_heaps()", "")
    subprocess.run([sys.executable, "-c", program, tmp_path / "heaps.xml"], check=True, timeout=60)
    heaps = (tmp_path / "heaps.xml").read_text().count("<heap ")
    assert (heaps <= HEAPS) is shared


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    share_heaps()
