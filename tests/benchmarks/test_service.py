"""The benchmark of the service runs, small, and prints every table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "service.py"


@pytest.mark.timeout(900)  # it starts eight services, which takes ten minutes beside twenty busy processes
def test_the_quick_benchmark_prints_every_table() -> None:
    asked = [sys.executable, BENCHMARK, "--quick", "--databases", "sqlite"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for word in ("CPU ms", "best, again ms", "longest <= s", "active campaigns", "events", "trials that ended"):
        assert f"| {word} |" in done.stdout, done.stdout
    assert "growth since minute" in done.stdout
