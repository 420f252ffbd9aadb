"""Starts and files that are not read, each refused with a spec that goes on from there. A program that is recognised is
a folder with a table:

[program]    title; starts_ranks: true where one process of a `script` says nothing of devices
[recognise]  ways: of each way the patterns that are all found in a configuration or a start
[spec]       next: what to do in place of a spec; set: what a trial sets in its file; start: a pattern of the line that
             starts it, and what stands in its place"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import PurePath
from typing import Any

from meshtune.runners.programs.dialects.base import Launch
from meshtune.runners.programs.dialects.bash.expansion import as_written, is_known
from meshtune.runners.programs.table import PROGRAMS, programs, table_of
from meshtune.runners.untrusted_text import UnreadableText, read_words

_CONFIG = re.compile(r"[^\s'\"=<>|;()]+\.(?:ya?ml|json)")
# Lines that start nothing, though they may name the program.
_NO_START = re.compile(r"\s*(?:(?:export\s+)?\w+=(?:\"[^\"]*\"|'[^']*'|\S*)\s*$|(?:cd|echo|source|conda|pip|mkdir)\b)")
_COMMENTS = re.compile(r"(?m)^\s*#.*$")
# Of a program whose words are not known: the user puts its keys or options there.
_OPEN = {"MICRO_BATCH": "{micro_batch_size}", "ACCUMULATION": "{grad_accum_steps}", "STEPS": "{steps}"}


@cache
def tables() -> Mapping[str, Mapping[str, Any]]:
    """By folder, those of all programs that are recognised."""
    lists = {name: table_of(f"{PROGRAMS}.{name}").lists for name in programs()}
    return {name: document for name, document in lists.items() if "recognise" in document}


@cache
def _of_ranks() -> tuple[str, ...]:
    lists = (table_of(f"{PROGRAMS}.{name}").lists for name in programs())
    own = [
        each for each in lists if each.get("command", {}).get("start") or each.get("program", {}).get("starts_ranks")
    ]
    return tuple(each["program"]["script"] for each in own)


def starts_ranks(script: str) -> bool:
    """Whether a program starts its ranks itself, so that one process of it says nothing of devices."""
    return any(re.fullmatch(pattern, script) for pattern in _of_ranks())


def recognised(text: str) -> str:
    """The folder of such a program in a configuration or a script, "" for none."""
    code = _COMMENTS.sub("", text)
    for name, table in tables().items():
        if any(all(re.search(mark, code) for mark in way) for way in table["recognise"]["ways"]):
            return name
    return ""


def not_read(
    name: str,
    text: str,
    launch: Launch | None = None,
    *,
    file: str = "",
    nodes: int | None = None,
    devices: int | None = None,
) -> str:
    """The refusal of such a program, with the next step. text: of the configuration or of the script; launch: the start
    where one was found; file: the configuration's name. nodes, devices: of a script without a start that is found."""
    table = tables()[name]
    told = f"is a file or a start of {table['program']['title']}, which is recognised and not read"
    if step := table.get("spec", {}).get("next"):
        return f"{told}. Next: {step}"
    if "command" in table:
        told = f"names {table['program']['title']}, whose start is not found by reading"
        line = shlex.quote(_line(table, text))
        return f"{told}. Next: meshtune import --capture -- bash SCRIPT ARGUMENTS; or meshtune import --command {line}"
    launch = launch or Launch(script="", words=(), place="", nodes=nodes, devices_per_node=devices)
    own = [] if launch.script else _words(table, text)
    return f"{told}. Next: {spec_to_go_on_with(launch, own, file=file, settings=table.get('spec', {}).get('set', {}))}"


def spec_to_go_on_with(
    launch: Launch, own: Sequence[str] = (), *, file: str = "", settings: Mapping[str, Any] | None = None
) -> str:
    """The next step of a start that is not read: a spec of `kind: command`, whose lines say what was read and what is
    open. own: its words, where the launch has none; file: a configuration that is given alone."""
    script = launch.script
    words = [*(["python", *script.split()] if script else own), *map(as_written, launch.words)]
    words = words or ["python", "TRAIN.py", *([file] if file else [])]
    # The value of another option is a vocabulary, a data set or a launcher's.
    pairs = pairwise(words)
    places = (word for flag, word in pairs if not flag.startswith("-") or "config" in flag or "recipe" in flag)
    base = file or next(filter(_CONFIG.fullmatch, places), "")
    config = f"train{PurePath(base).suffix}"
    command = [word if word == base else word.replace("{", "{{").replace("}", "}}") for word in words]
    command = [f"{{directory}}/{config}" if word == base else word for word in command]
    said = settings or {f"{name}_KEY": value for name, value in _OPEN.items()}
    if not base:
        command += [part for name, value in _OPEN.items() for part in (f"--{name}_OPTION", value)]
    names = "keys" if base else "options"
    nodes, each = launch.nodes, launch.devices_per_node
    ranks = (nodes or 1) * (each or 8)
    counts = [f"{what} ({number} is an example)" for what, number in (("nodes", 1), ("devices_per_node", 8))]
    unknown = [text for text, number in zip(counts, (nodes, each), strict=True) if number is None]
    env = {name: value.replace("{", "{{").replace("}", "}}") for name, value in launch.env.items()}
    made = {"format": "json" if base.endswith(".json") else "yaml", "base": base, "set": said}
    # One device shards nothing.
    stage, model = (0, "llama3.2-1b") if (nodes, each) == (1, 1) else (3, "llama3-8b")
    lines = [
        f"model: {{preset: {model}}}  # open: a preset, or layers, hidden, heads, kv_heads, ffn, vocab, seq_len",
        f"cluster: {{preset: dgx-h100, nodes: {nodes or 1}, devices_per_node: {each or 8}}}  "
        f"# open: the preset{''.join(f', {text}' for text in unknown)}",
        f"global_batch_size: {-(-64 // ranks) * ranks}  # open: of the training",
        "workload:",
        "  kind: command",
        f"  command: {json.dumps(command, ensure_ascii=False)}" + "  # open: the words in capitals" * (not settings),
        f"  working_directory: {json.dumps(launch.directory or '.')}",
        *([f"  env: {json.dumps(env)}"] if env else ()),
        *([f"  configs: {json.dumps({config: made})}  # open: {names} in capitals" if base else ""]),
        "  framework: fsdp  # open: the nearest of docs/how-to/workloads.md",
        f"  fixed: {{zero_stage: {stage}, recompute: full}}  # open: of the training, whose other fields are 1",
        "space: {recompute: [full]}  # open: with what else recomputes, where the command is told it",
        f"baseline: {{micro_batch_size: 1, zero_stage: {stage}, recompute: full}}  # open: as the training runs",
    ]
    variables = " Write out the script's variables." * any(not is_known(word) or "$" in word for word in words)
    reads = (
        f"each trial writes where its words say: take its folders of checkpoints out, and name the {names} of the "
        f"batch and of the number of steps.{variables}"
    )
    return (
        f"a spec with `kind: command` of these lines, of which those with `# open:` are yours to answer; {reads} "
        f"(docs/how-to/workloads.md) Then meshtune spaces SPEC.yaml:\n\n" + "\n".join(filter(None, lines))
    )


def _line(table: Mapping[str, Any], text: str) -> str:
    """The line that starts the program, with the words that the script has behind it."""
    code = re.sub(r"\\[ \t]*(?:\n|$)", " ", _COMMENTS.sub("", text))
    line = next((line.strip() for line in code.splitlines() if _starts(table, line)), "PROGRAM ARGUMENTS")
    pattern, instead = table.get("spec", {}).get("start", ("(?!)", ""))
    return " ".join(re.sub(pattern, instead, line).split())


def _words(table: Mapping[str, Any], text: str) -> list[str]:
    line = _line(table, text)
    try:
        return read_words(line)
    except UnreadableText:
        return line.split()


def _starts(table: Mapping[str, Any], line: str) -> bool:
    return not _NO_START.match(line) and any(
        len(way) == 1 and re.search(way[0], line) for way in table["recognise"]["ways"]
    )
