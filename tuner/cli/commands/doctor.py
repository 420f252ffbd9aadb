"""`meshtune doctor`: what this machine or allocation is, whether tuning works on it, and what would go wrong.

Exit codes: 1 where an error was found, else 0."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from meshtune.runners.documents import plain
from meshtune.runners.machine.facts import Machine
from meshtune.runners.machine.findings import Finding, Level, findings
from meshtune.runners.machine.read import read_machine
from meshtune.tuner.cli.common import DEFAULT_HOME, HomeOption, JsonOption, errors, print_found
from meshtune.tuner.cli.render.doctor import doctor_page
from meshtune.tuner.service.self_test import SelfTest, run_self_test, self_test_findings


def doctor(
    skip_self_test: Annotated[
        bool, typer.Option("--skip-self-test", help="Only look: run no campaign, which takes up to a minute.")
    ] = False,
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Show what this machine or allocation is, test the tuner on it, and list what would go wrong."""
    machine = read_machine(home, os.environ)
    found = findings(machine)
    test = None if skip_self_test else run_self_test(machine, _progress)
    if test is not None:
        found = sorted([*found, *self_test_findings(test)], key=lambda finding: [*Level].index(finding.level))
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
