"""Other Pythons of this machine."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def interpreter(version: str) -> str:
    """A Python of that version; skips the test where there is none."""
    for candidate in (f"python{version}", *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))):
        found = shutil.which(candidate)
        asked = [found, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        if found and subprocess.run(asked, capture_output=True, text=True, timeout=60).stdout.strip() == version:
            return found
    pytest.skip(f"there is no Python {version} on this machine")
