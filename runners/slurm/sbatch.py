"""Submits somebody's own batch script by the real `sbatch`, with variables for its job. Reads of the script only the
`#SBATCH` lines. Heterogeneous jobs are not understood."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Mapping, Sequence

from meshtune.runners.base import RunnerUnavailable
from meshtune.runners.batch.directives import directives as directives

# With these, sbatch lets no variable of ours through ("can not specify explicit environment variables with NONE").
SHUT = ("NONE", "NIL")


def option_value(words: Sequence[str], long: str, short: str = "") -> str | None:
    """The value of the last such option: `--long=x`, `--long x`, `-sx` or `-s x`; None where there is none."""
    value: str | None = None
    for position, word in enumerate(words):
        following = words[position + 1] if position + 1 < len(words) else None
        if word in (f"--{long}", f"-{short}" if short else ""):
            value = following
        elif word.startswith(f"--{long}="):
            value = word.partition("=")[2]
        elif short and word.startswith(f"-{short}") and not word.startswith("--"):
            value = word[2:]
    return value


def node_count(script: str, options: Sequence[str]) -> int | None:
    """How many nodes the job asks for; None where it leaves that open (nothing, or a range)."""
    asked = option_value(options, "nodes", "N") or option_value(directives(script, "SBATCH"), "nodes", "N")
    least, _, most = (asked or "").partition("-")
    if not least.isascii() or not least.isdigit() or most not in ("", least):
        return None
    return int(least) or None


def exporting(options: Sequence[str], script: str, values: Mapping[str, str]) -> list[str] | None:
    """The options with an `--export` that adds the values to the user's; None where that shuts them out. Precedence as
    sbatch has it: the command line, SBATCH_EXPORT, the script, ALL."""
    own = option_value(options, "export") or os.environ.get("SBATCH_EXPORT")
    base = own or option_value(directives(script, "SBATCH"), "export") or "ALL"
    if base.upper() in SHUT:
        return None
    return [*options, f"--export={','.join([base, *(f'{name}={value}' for name, value in values.items())])}"]


def submit(arguments: Sequence[str], *, hide: Collection[str] = ()) -> int:
    """Run `sbatch`; return its exit status. hide: variables that neither it nor the job sees. Raises
    RunnerUnavailable."""
    environment = {name: value for name, value in os.environ.items() if name not in hide}
    try:
        return subprocess.call(["sbatch", *arguments], env=environment)
    except OSError as error:
        raise RunnerUnavailable(f"sbatch cannot be run: {error.strerror}") from error
