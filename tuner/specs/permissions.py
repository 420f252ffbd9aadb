"""Which parts of a spec let somebody run what they like, or read and write files that they name: all that is not listed
here as harmless. A new option is refused until it is listed.

Looks at the document as it came, so that no backend reads a file before somebody has said that it may.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from meshtune.search_spaces.checks import Problem
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.specs.document import InvalidSpec

# Sections without backends: names, numbers and choices, which no program takes for a path or a command.
PLAIN = frozenset(
    {
        *("name", "model", "cluster", "global_batch_size", "space", "baseline", "objective", "budget", "trial", "stop"),
        *("parallel", "seed", "pareto", "confirm", "warm_start"),
    }
)
# section -> kind -> the options that are harmless. Of a kind that is not here, nothing is.
HARMLESS: Mapping[str, Mapping[str, frozenset[str]]] = {
    "workload": {
        "torch": frozenset({"dtype", "learning_rate", "router", "measuring"}),
        "simulated": frozenset({"framework", "measuring"}),
    },
    "runner": {
        "local": frozenset({"slots", "idle_s"}),
        "simulated": frozenset({"seed", "noise", "fault_rate", "seconds_per_trial", "slots"}),
        # address would have the service connect to, and trust, whatever answers there.
        "ray": frozenset({"namespace", "idle_s"}),
        # extra_lines may name files and programs, setup is shell.
        "slurm": frozenset(
            {
                *("mode", "partition", "account", "qos", "constraint", "reservation", "gres", "exclude"),
                *("cpus_per_device", "call_limit_s", "poll_s"),
            }
        ),
        # mpiexec is a command line.
        "pbs": frozenset({"queue", "project", "filesystems", "select", "place", "call_limit_s", "poll_s"}),
    },
    "search": {
        "physics": frozenset({"prior", "fits", "residual"}),
        "deephyper": frozenset({"n_initial", "guard", "filter_failures"}),
        "optuna": frozenset({"n_initial", "guard", "sampler"}),
        "random": frozenset(),
        "grid": frozenset(),
    },
}
DEFAULTS = {"workload": "torch", "runner": "local", "search": "physics"}


class CommandNotAllowed(InvalidSpec):
    """The spec says what is executed, or names files, and whoever sent it may not. `problems` has every such part."""


def commands_named(document: object) -> list[Problem]:
    """Every part of a spec's document that only the scope `command` allows, by its path; none where all is harmless.

    What is no spec at all has no such part: reading it tells what is wrong.
    """
    if not isinstance(document, Mapping):
        return []
    known = {entry.name for entry in fields(CampaignSpec)}
    found = [
        Problem(key, "is not among the parts of a spec that need no scope `command`")
        for key in document
        if key in known and key not in PLAIN and key not in HARMLESS
    ]
    for section, kinds in HARMLESS.items():
        found += [problem.under(section) for problem in _of_backend(document.get(section), kinds, DEFAULTS[section])]
    return found


def _of_backend(raw: Any, kinds: Mapping[str, frozenset[str]], default: str) -> list[Problem]:
    """As a section is read: a name, or a mapping with `kind` and options beside it."""
    options: Mapping[Any, Any] = raw if isinstance(raw, Mapping) else {}
    kind = options.get("kind", default) if raw is None or isinstance(raw, Mapping) else raw
    if not isinstance(kind, str) or kind not in kinds:
        # Of an unknown kind, too: reading it would say so, and say nothing of what it names.
        return [Problem("kind", f"{kind!r} runs what the spec names; without the scope `command`: {', '.join(kinds)}")]
    allowed = ", ".join(sorted(kinds[kind])) or "none"
    return [
        Problem(str(key), f"needs the scope `command`; the options of {kind} that do not: {allowed}")
        for key in options
        if key != "kind" and key not in kinds[kind]
    ]
