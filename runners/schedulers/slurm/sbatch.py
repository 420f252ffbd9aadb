"""Submits somebody's own batch script by the real `sbatch`, with variables for its job. Reads of the script only the
`#SBATCH` lines. Heterogeneous jobs are not understood."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Mapping, Sequence

from meshtune.runners.base import RunnerUnavailable
from meshtune.runners.schedulers.batch.script import directives as directives
from meshtune.runners.untrusted_text import option_value

# With these, sbatch lets no variable of ours through ("can not specify explicit environment variables with NONE").
SHUT = ("NONE", "NIL")

# The options of sbatch that have no argument, or one that only `=` or the same word gives; all others take the next
# word. `.has_arg` in src/common/slurm_opt.c of Slurm 26.11 (284c3b9); the manual of 22.05 has no other.
ALONE = (
    *("--consolidate-segments", "--contiguous", "--exclusive", "--external", "--get-user-env", "--help", "--hold"),
    *("--ignore-pbs", "--nice", "--no-kill", "--no-requeue", "--oom-kill-step", "--overcommit", "--oversubscribe"),
    *("--parsable", "--propagate", "--quiet", "--reboot", "--requeue", "--resv-ports", "--spread-job"),
    *("--spread-segments", "--stepmgr", "--test-only", "--usage", "--use-min-nodes", "--verbose", "--version"),
    *("--wait", "-H", "-k", "-O", "-s", "-Q", "-h", "-v", "-V", "-W"),
)


def takes_next_word(option: str) -> bool:
    """True for `--nodes` and `-N`, whose value is the word that follows; False for `--hold`, `--nodes=2` and `-N2`."""
    if option.startswith("--"):
        return "=" not in option and option not in ALONE
    # Short ones are written together, `-HN 2`; the first that takes a value has the rest of the word, if there is any.
    for position, letter in enumerate(option[1:], start=1):
        if f"-{letter}" not in ALONE:
            return position == len(option) - 1
    return False


def node_count(script: str, options: Sequence[str]) -> int | None:
    """How many nodes the job asks for; None where it leaves that open (nothing, or a range)."""
    names = ("--nodes", "-N")
    asked = option_value(options, *names) or option_value(directives(script, "SBATCH"), *names)
    least, _, most = (asked or "").partition("-")
    if not least.isascii() or not least.isdigit() or most not in ("", least):
        return None
    return int(least) or None


def exporting(options: Sequence[str], script: str, values: Mapping[str, str]) -> list[str] | None:
    """The options with an `--export` that adds the values to the user's; None where that shuts them out. Precedence as
    sbatch has it: the command line, SBATCH_EXPORT, the script, ALL."""
    own = option_value(options, "--export") or os.environ.get("SBATCH_EXPORT")
    base = own or option_value(directives(script, "SBATCH"), "--export") or "ALL"
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
