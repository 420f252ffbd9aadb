"""The version of a GPU's driver, as its file in /proc has it."""

from __future__ import annotations

import pytest

from meshtune.runners.trainer.report import driver_version

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
