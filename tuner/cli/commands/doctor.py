"""`meshtune doctor`: what this machine or allocation is, whether tuning works on it, and what would go wrong.

Exit codes: 1 where an error was found, else 0."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from meshtune.runners.devices.facts import Machine
from meshtune.runners.devices.findings import Finding, Level, findings
from meshtune.runners.documents import plain
from meshtune.runners.machine import read_machine
from meshtune.tuner.cli.common import errors, print_found
from meshtune.tuner.cli.render.doctor import doctor_page

if TYPE_CHECKING:
    from meshtune.tuner.service.self_test import SelfTest

# By name: a machine is looked at without what campaigns need.
SELF_TEST = "meshtune.tuner.service.self_test"


def doctor(home: Path, *, skip_self_test: bool, as_json: bool) -> None:
    machine = read_machine(home, os.environ)
    found = findings(machine)
    test: SelfTest | None = None
    if not skip_self_test:
        module = import_module(SELF_TEST)
        test = module.run_self_test(machine, _progress)
        found = sorted([*found, *module.self_test_findings(test)], key=lambda finding: [*Level].index(finding.level))
    print_found(as_document(machine, test, found), doctor_page(machine, test, found), as_json)
    if any(finding.level is Level.ERROR for finding in found):
        raise typer.Exit(1)


def as_document(machine: Machine, test: SelfTest | None, found: list[Finding]) -> dict[str, Any]:
    return {
        "machine": plain(machine),
        "self_test": None if test is None else plain(test),
        "findings": [plain(finding) for finding in found],
    }


def _progress(message: str) -> None:
    if errors.is_terminal:
        errors.print(message)
