"""Reads starts of a team's own trainer that took some of Megatron's arguments over, as `kind: command`, word by word.

Which program that is says `[program]` of the table. What is certain is written; all else of plan and model stays empty,
and one question names the words that may say it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

from meshtune.runners.programs.dialects.base import Imported, Launch
from meshtune.runners.programs.dialects.config_import import command_options, literal, of_plan, program_words
from meshtune.runners.programs.megatron.command_line import read_command_line, unknown_names
from meshtune.runners.programs.megatron.options import TABLE
from meshtune.runners.programs.megatron.reader import has_arguments, is_own_trainer


def is_program(launch: Launch) -> bool:
    return has_arguments(launch) and is_own_trainer(launch)


def read_launch(launch: Launch) -> Imported:
    """What its start says."""
    line = read_command_line(launch)
    line.table.read(line)
    # Sections of the spec -> their keys, which nothing says for certain.
    open_: dict[str, dict[str, Any]] = {"baseline": {}, "model": {}}
    for question in line.questions:
        section, _, key = question.path.partition(".")
        if section in open_:
            open_[section][key] = None
    line.questions = [question for question in line.questions if question.path == "global_batch_size"]
    line.notes = list(launch.notes)
    line.fields |= {"nodes": launch.nodes, "devices_per_node": launch.devices_per_node}
    places, words = TABLE.lists["own_trainer"]["places"], program_words(launch)
    for before, word in pairwise(("", *launch.words)):
        name, joined, _ = word.partition("=")
        place = places.get(before) or (f"{name}={places[name]}" if joined and name in places else "")
        words.append(place if of_plan(place) else literal(word))
    theirs = ", ".join(map(line.written, unknown_names(line.given))) or "its defaults"
    line.ask(
        "workload.fixed",
        f"{launch.script} has some of Megatron's arguments and may be no Megatron, so trials start it as it is (`kind: "
        f"command`; see workload.command). Write the fields of the plan that it fixes, such as {{zero_stage: 3, "
        f"recompute: full}}, here, in `baseline` and as lists in `space` ({{recompute: [full]}}), and its model: "
        f"{theirs} may say them. Where its micro-batch is of several ranks, fix micro_batch_size, that of one, and "
        f"write yours in workload.command. Delete the empty lines that it has no word for, and name the patterns of "
        f"its log in workload.log (docs/how-to/workloads.md)",
    )
    names = {word.partition("=")[0] for word in launch.words}
    alone = {name: place for name, place in places.items() if name in names and not of_plan(place)}
    options = {**command_options(line, launch, words, ""), "trial_arguments": alone or None}
    found = line.imported({**options, "dtype": line.fields.get("dtype")})
    return replace(found, model={**found.model, **open_["model"]}, plan={**found.plan, **open_["baseline"]})
