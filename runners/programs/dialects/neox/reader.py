"""Reads a gpt-neox training: `deepy.py train.py a.yml b.yml`, its YAML files, or the arguments that it prints.

A trial runs it by one merged YAML file, in which the plan's keys stand for the user's. Names and defaults are of
EleutherAI/gpt-neox at ea7aefd8 (May 2026), megatron/neox_arguments; earlier ones where a comment says so."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from meshtune.runners.programs.dialects.base import CannotRead, Imported, Launch
from meshtune.runners.programs.dialects.bash.expansion import is_known
from meshtune.runners.programs.dialects.config_import import (
    ConfigReading,
    command_options,
    literal,
    mapping_in,
    program_words,
    read_mapping,
    settled,
    text_of,
)
from meshtune.runners.programs.dialects.neox.arguments import DERIVED, KNOWN
from meshtune.runners.programs.dialects.neox.model import model_of
from meshtune.runners.programs.dialects.neox.plan import ask_the_rest, devices_of, plan_of, settings_of
from meshtune.runners.untrusted_text import UnreadableText, read_json, read_literal
from meshtune.search_spaces.checks import raising

CONFIG_FILE = "neox.yml"
_EXAMPLE = f"[python, ./deepy.py, train.py, '{{directory}}/{CONFIG_FILE}'], started from gpt-neox's folder"
# Options of deepy.py that take a value (arguments.py, consume_deepy_args).
_DIRECTORY = ("-d", "--conf_dir")
_PASSED_ON = ("--wandb_group", "--wandb_run_name", "--wandb_team", "-H", "--hostfile")
_OTHER_SCRIPTS = ("generate.py", "eval.py")
_MARKS = frozenset({"pipe_parallel_size", "model_parallel_size", "num_layers", "hidden_size", "num_attention_heads"})


def is_program(launch: Launch) -> bool:
    return PurePosixPath(launch.script).name == "deepy.py" or any(
        word.partition("=")[0] == "--megatron_config" for word in launch.words
    )


def is_file(name: str, text: str) -> bool:
    return len(_MARKS & set(map(_plain, mapping_in(name, text, (".yml", ".yaml", ".json"))))) >= 3


def read_file_text(name: str, text: str) -> Imported:
    """One YAML file that says all. Raises CannotRead."""
    return _imported({name: read_mapping(name, text)}, None, place=name)


def read_log(text: str) -> Imported:
    """What the program resolved, and the user's own files, both from its log. Raises CannotRead."""
    values, updated = resolved_arguments(text)
    return _imported(_own(updated, "the log"), None, place="the log", resolved=values)


def read_launch(launch: Launch) -> Imported:
    """`deepy.py SCRIPT FILES`, or a process that DeepSpeed started of it. Raises CannotRead."""
    if PurePosixPath(launch.script).name != "deepy.py":
        return _worker(launch)
    names, words = _arguments(launch)
    instead = ", or its log: `meshtune import RUN.log`"
    texts = {name: text_of(launch, name, "gpt-neox is started with", instead) for name in names}
    files = {name: read_mapping(name, text) for name, text in texts.items()}
    return _imported(files, launch, place=launch.place, words=[*program_words(launch), *words])


def _arguments(launch: Launch) -> tuple[list[str], list[str]]:
    """The configuration files that deepy.py would read, and its words with one file in their place."""
    folder, names, kept, loose = "", list[str](), list[str](), list[str]()
    words = iter(launch.words)
    for word in words:
        name, joined, value = word.partition("=")
        if name in (*_DIRECTORY, *_PASSED_ON):
            value = value if joined else next(words, "")
            if name in _DIRECTORY:
                folder = value
            else:
                kept += [name, literal(value)]
        elif word.startswith("-"):
            kept.append(literal(word))
        else:
            loose.append(word)
    if loose and PurePosixPath(loose[0]).name in _OTHER_SCRIPTS:
        raise CannotRead(f"{launch.place}: deepy.py starts {loose[0]}, which trains nothing")
    if len(loose) < 2:
        told = f"{launch.place}: deepy.py starts with {' '.join(loose) or 'nothing'}: no configuration file is named"
        raise CannotRead(f"{told}; run the script with `meshtune import --capture -- bash SCRIPT`")
    for word in loose[1:]:
        if not is_known(word):
            told = f"{launch.place}: deepy.py reads a file whose name is not known here"
            raise CannotRead(f"{told}; run the script with `meshtune import --capture -- bash SCRIPT`")
        # "enables us to pass in `125M` instead of `125M.yml`"
        ending = "" if word.endswith((".yml", ".json")) else ".yml"
        names.append(str(PurePosixPath(folder) / f"{word}{ending}") if folder else f"{word}{ending}")
    return names, [literal(loose[0]), *kept, f"{{directory}}/{CONFIG_FILE}"]


def _worker(launch: Launch) -> Imported:
    """A rank that DeepSpeed started: all that differs from the defaults stands in --megatron_config."""
    words = [part for word in launch.words for part in word.split("=", 1) if word.startswith("--megatron_config")]
    at = launch.words.index("--megatron_config") + 1 if "--megatron_config" in launch.words else 0
    coded = launch.words[at] if 0 < at < len(launch.words) else words[-1]
    with raising(CannotRead, f"{launch.place}: --megatron_config of gpt-neox cannot be read", ValueError):
        config = read_json(base64.b64decode(coded, altchars=b"-_", validate=True))
    if not isinstance(config, dict):
        raise CannotRead(f"{launch.place}: --megatron_config of gpt-neox is no object")
    return _imported(_own(config, "--megatron_config"), None, place=launch.place, resolved=config)


def _own(told: Mapping[str, Any], place: str) -> dict[str, dict[str, Any]]:
    """The user's files among what the program tells; without any what it tells, but for what it derives."""
    files = told.get("config_files")
    if isinstance(files, dict) and files:
        return {str(name): read_mapping(str(name), str(text)) for name, text in files.items()}
    return {place: {key: value for key, value in told.items() if key not in DERIVED}}


def _plain(key: str) -> str:
    return key.replace("-", "_")


def _merged(files: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """All files as one, in the user's spelling. Raises CannotRead for a key that stands twice, as gpt-neox does."""
    merged: dict[str, Any] = {}
    place: dict[str, str] = {}
    for name, config in files.items():
        for key, value in config.items():
            if _plain(key) in place:
                raise CannotRead(f"{key} stands in {place[_plain(key)]} and in {name}, which gpt-neox refuses")
            place[_plain(key)] = name
            merged[key] = value
    return merged


def _imported(
    files: Mapping[str, Mapping[str, Any]],
    launch: Launch | None,
    *,
    place: str,
    words: list[str] | None = None,
    resolved: Mapping[str, Any] | None = None,
) -> Imported:
    """resolved: what the program made of the files; None: only they are known."""
    own = _merged(files)
    spelled = {_plain(key): key for key in own}
    said = {_plain(key): value for key, value in own.items()}
    reading = ConfigReading({**said, **(resolved or {})}, place=place)
    if {"-H", "--hostfile"} & set(words or ()):
        reading.ask(
            "", "--hostfile names hosts for DeepSpeed's launcher; trials have nodes of their own: is it right for them?"
        )
    reading.ask_unknown([key for key in said if key not in KNOWN], "gpt-neox")
    model = model_of(reading)
    nodes, per_node, devices = devices_of(reading, launch)
    plan, batch = plan_of(reading, devices)
    settings = settings_of(reading, plan, spelled, resolved is not None)
    ask_the_rest(reading, nodes)
    for key in [key for key, value in settings.set.items() if value is None]:
        reading.note(f"{key} is taken out for trials, which leave and load no checkpoints and logs")
    workload: dict[str, Any] = {
        **command_options(reading, launch, words or [], _EXAMPLE),
        "start": "job",
        "configs": {CONFIG_FILE: {"format": "yaml", "base": own, "set": settings.set}},
        **({"fixed": settings.fixed} if settings.fixed else {}),
        "log": dict(LOG),
        "framework": "megatron-deepspeed",
        "dtype": settings.dtype,
    }
    found = Imported(
        model=model,
        plan=plan,
        workload=workload,
        global_batch_size=batch,
        nodes=nodes,
        devices_per_node=per_node,
    )
    return settled(found, reading, launch)


# megatron/logging.py, training_log; megatron/utils.py, report_memory.
LOG: Mapping[str, str] = {
    "step": r"iteration\s+(\d+)/\s*\d+ \| elapsed time per iteration",
    "step_time_ms": r"elapsed time per iteration \(ms\): ([\d.]+)",
    "loss": r" lm_loss: ([\d.E+-]+|nan|inf)",
    "memory_mib": r"memory \(MB\) \|.* max allocated: ([\d.]+)",
    "illegal": r"must be a whole number|ZeRO-2 and ZeRO-3 are incompatible with pipeline",
}


# megatron/neox_arguments/arguments.py, NeoXArgs.print: `name .... value.........updated`, one per line. A launcher
# may put a host or rank before a line.
_HEAD = "-------------------- arguments --------------------"
_END = "---------------- end of arguments ----------------"
_LINE = re.compile(r"  (?P<name>[a-z]\w*) \.*(?: |$)(?P<value>.*?)\.*(?P<how>default|updated)?\s*$")
_VOCAB = re.compile(r"> padded vocab \(size: (\d+)\) with \d+ dummy tokens \(new size: \d+\)")


def is_log(text: str) -> bool:
    # Megatron-LM has another head, of 24 dashes.
    return "NeoXArgs." in text and (_HEAD in text or "NeoXArgs.from_ymls()" in text)


def resolved_arguments(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The last whole list of arguments, and those of it that differ from their defaults, the user's own among them.
    Raises CannotRead."""
    lines, found = list[str](), list[str]()
    inside = False
    for line in text.splitlines():
        if _HEAD in line:
            inside, lines = True, []
        elif _END in line:
            inside, found = False, lines or found
        elif inside:
            lines.append(line)
    if not found:
        told = "a log of gpt-neox without its list of arguments (`end of arguments`)"
        raise CannotRead(f"{told}; import the YAML files instead: `meshtune import FILE.yml`")
    values, updated = dict[str, Any](), dict[str, Any]()
    for line in found:
        match = _LINE.search(line)
        if match is None:
            continue
        values[match["name"]] = value = _value(match["value"])
        if match["how"] == "updated":
            updated[match["name"]] = value
    # Without the padding, which follows from each plan.
    if entries := _VOCAB.findall(text):
        values["padded_vocab_size"] = int(entries[-1])
    return values, updated


def _value(text: str) -> Any:
    """A value as `str` prints it. A text with commas (`split`) is a text, no tuple."""
    try:
        value = read_literal(text)
    except UnreadableText:
        return text
    return text if isinstance(value, tuple | set | bytes) else value
