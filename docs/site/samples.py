"""The sample outputs of the pages, which nobody types.

A block ```console has commands behind `$ `, and below each what it prints: they are run, in the order of the page, in a
folder with a copy of examples/ and the files of docs/site/samples/PAGE, with a home of their own. A block below the
comment `<!-- run: NAME -->` has lines of a run that a test makes for its own sake, and gives to `compared`. Both are
compared as they stand; runs, and commands below `<!-- measured -->`, without what is measured.

`make docs-samples` writes both anew, by MESHTUNE_SAMPLES=write and the tests that compare them otherwise."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = Path(__file__).parent / "samples"
PAGES = [
    ROOT / "README.md",
    *(page for kind in ("tutorial", "how-to", "reference") for page in (ROOT / "docs" / kind).glob("*.md")),
]
CONSOLE = re.compile(r"(?ms)^(<!-- measured -->\n\n|)```console\n(.*?)^```$")
RUN = "(?ms)^(<!-- run: {name} -->\n\n```text\n)(.*?)(^```$)"
# Columns of the commands' terminal: those of the pages' lines.
WIDTH = "110"
# What another run of the same command has otherwise: the end of an id, a time of day, a folder.
CHANGING = re.compile(r"(?<=-)[0-9a-f]{6}\b|\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?|/tmp/[\w./-]+")
# Lines that only some outcomes have: whether a plan is worth a second run.
SOMETIMES = re.compile(r"second run, |trial \S+ second run |Fastest confirmed: ")
# What a measurement has otherwise. First the parts whose words depend on the numbers too.
MEASURED = (
    (re.compile(r"^(?:stands: |slower by |the runner-up is better now|(?:not )?confirmed: ).*"), "FINDING"),
    (re.compile(r"\bmeasured (?:twice|\d+ times)"), "MEASURED"),
    (re.compile(r", (?:the baseline|[+-]\S+ % \(.*?\) against the baseline)"), ", GAIN"),
    (re.compile(r"(?<=/s/device: ).*"), "REASON"),
    (re.compile(r"^    torchrun .*"), "LINE"),
    (re.compile(r"^    changed: .*"), "CHANGE"),
    (re.compile(r"(?<=^Your launch line, ).*(?= faster:)"), "GAIN"),
    (re.compile(r" \(expected [^)]*\)"), ""),
    (re.compile(r"\btp\d+(?: [a-z]+\d+)+(?: recompute-\w+)?(?: interleaved)?"), "PLAN"),
    (re.compile(r"[+-]?\d[\d,.]*"), "N"),
    (re.compile(r"\bN (?:ms|s|min N s)\b"), "TIME"),
)


def commands_of(block: str) -> list[str]:
    """The commands of a ```console block, without their output."""
    return [line[2:] for line in block.splitlines() if line.startswith("$ ")]


def printed(commands: Iterable[str], folder: Path, width: str = WIDTH, *, refused: bool = True) -> list[str]:
    """What each command prints, on both streams, run by bash in `folder`, where the home is `.meshtune`.

    refused: a command may be. CalledProcessError: another failed, ended by a signal, or in an exception that nothing
    caught."""
    programs = folder / ".bin"
    programs.mkdir(exist_ok=True)
    (programs / "meshtune").write_text(f'#!/bin/sh\nexec {sys.executable} -m meshtune.tuner.cli "$@"\n')
    (programs / "meshtune").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "MESHTUNE_HOME": str(folder / ".meshtune"),
        "COLUMNS": width,
    }
    told = []
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=120, check=False,
        )  # fmt: skip
        wrong = done.returncode < 0 if refused else done.returncode != 0
        if wrong or "Traceback (most recent call last)" in done.stdout:
            raise subprocess.CalledProcessError(done.returncode, command, done.stdout)
        told.append("\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines()))
    return told


def made(page: Path, folder: Path) -> str:
    """The page with each ```console block as its commands print it now; a block that is the same so far stays."""
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    if (FILES / page.stem).exists():
        shutil.copytree(FILES / page.stem, folder, dirs_exist_ok=True)

    def anew(found: re.Match[str]) -> str:
        measured, block = found.groups()
        commands = commands_of(block)
        parts = [
            f"$ {command}\n{told}".strip() for command, told in zip(commands, printed(commands, folder), strict=True)
        ]
        body = "\n\n".join(parts) + "\n"
        if measured:
            same = alike(body.splitlines(), block.splitlines())
        else:
            same = CHANGING.sub("", body) == CHANGING.sub("", block)
        return found[0] if same else found[0].replace(block, body)

    return CONSOLE.sub(anew, page.read_text(encoding="utf-8"))


def shape(line: str) -> str:
    """A line of a measured run without what another run has otherwise."""
    line = CHANGING.sub("ID", line)
    for pattern, name in MEASURED:
        line = pattern.sub(name, line)
    return line


def alike(one: Iterable[str], other: Iterable[str]) -> bool:
    """Whether two runs tell the same lines, by their shapes, but for kinds of lines that only one's outcome has."""
    shapes = [set(map(shape, lines)) for lines in (one, other)]
    kinds = [{found[0] for line in lines if (found := SOMETIMES.match(line))} for lines in shapes]
    different = [SOMETIMES.match(line) for line in shapes[0] ^ shapes[1]]
    return all(found and found[0] in kinds[0] ^ kinds[1] for found in different)


def compared(name: str, lines: list[str]) -> None:
    """Hold the blocks of the run `name` against `lines`, or write them.

    AssertionError: a block has other lines, by their shapes, in whatever order; or no page has a block of this run."""
    pattern = re.compile(RUN.format(name=re.escape(name)))
    pages = {page: text for page in PAGES if pattern.search(text := page.read_text(encoding="utf-8"))}
    assert pages, f"no page has a block of the run {name}"

    def anew(found: re.Match[str]) -> str:
        if alike(found[2].splitlines(), lines):
            return found[0]
        return "".join([found[1], *(f"{line.rstrip()}\n" for line in lines), found[3]])

    for page, text in pages.items():
        written = pattern.sub(anew, text)
        if writes():
            page.write_text(written, encoding="utf-8")
        assert writes() or written == text, (
            f"{page.relative_to(ROOT)}: run {name}: make docs-samples\n{chr(10).join(lines)}"
        )


def of_a_campaign(output: str, most_again: int = 2) -> list[str]:
    """Of what `meshtune run` prints: the first line, the trials with at most so many second runs, the last words."""
    told = ("trial ", "the search has ended", "Fastest ", "Recommended: ")
    lines = output.splitlines()
    again = [line for line in lines if line.startswith("second run, ")][:most_again]
    return [line for number, line in enumerate(lines) if not number or line.startswith(told) or line in again]


def writes() -> bool:
    """Whether pages are written instead of compared."""
    return os.environ.get("MESHTUNE_SAMPLES") == "write"
