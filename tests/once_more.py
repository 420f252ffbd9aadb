"""All tests, as `make test` runs them: two with real processes may fail beside others, if they pass alone afterwards.

    python tests/once_more.py [arguments of pytest]

They measure, kill and wait on a machine that other tests share. What fails is shown in full, runs again in a process
with the machine to itself, and is named at the end. A third failure, a test without real processes, and one that fails
again fail the run. Exit status: pytest's.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

REAL = "slow or browser or postgres or ray or slurm"
MOST = 2
FAILED, NOTHING_COLLECTED = 1, 5


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="meshtune-tests-") as cache:
        code = _pytest(*arguments, "-o", f"cache_dir={cache}")
        file = Path(cache, "v", "cache", "lastfailed")
        failed = _tests(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else []
    if code != FAILED or not 0 < len(failed) <= MOST:
        return code
    if _pytest("--collect-only", "-qq", "-m", f"not ({REAL})", *failed, quiet=True) != NOTHING_COLLECTED:
        return code
    _say("Failed beside other tests, now once more without them", failed)
    again = _pytest("-p", "no:cacheprovider", *failed)
    _say("Passed alone" if again == 0 else "Failed again", failed)
    return again


def _tests(failed: dict[str, bool]) -> list[str]:
    """Their names, without the group that pytest-xdist adds."""
    return [re.sub(r"@\w+$", "", name) for name in failed]


def _say(words: str, tests: list[str]) -> None:
    sys.stdout.write(f"\n{words}: {', '.join(tests)}\n")
    sys.stdout.flush()


def _pytest(*arguments: str, quiet: bool = False) -> int:
    output = subprocess.DEVNULL if quiet else None
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], stdout=output, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
