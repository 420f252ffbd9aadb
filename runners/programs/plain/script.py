"""What a training script says of its own flags: its calls of argparse and click, and the dataclasses that tyro and
the like make flags of. It is read, and never run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from meshtune.runners.programs.dialects.base import Launch
from meshtune.runners.untrusted_text import UnreadableText, is_there, read_file

# Bytes of a file, files (the script, and modules beside it that it imports), characters of a help.
_MAX_FILE, _MAX_FILES, _MAX_HELP = 400_000, 12, 100
# What makes flags of a dataclass's fields.
_OF_FIELDS = re.compile(r"\b(HfArgumentParser|TrlParser|tyro|simple_parsing|draccus|pyrallis|jsonargparse)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """names: as a command line has them. default: None where none is known. switch: it takes no value. off: the name
    that turns it off."""

    names: tuple[str, ...]
    default: Any = None
    help: str = ""
    switch: bool = False
    choices: tuple[str, ...] = ()
    off: str = ""

    @property
    def name(self) -> str:
        return max(self.names, key=len)

    @property
    def plain(self) -> str:
        """The name as patterns have it: `--train.batch-size` is `batch_size`. `-b` is the batch, `--optim.b` is not."""
        own = self.name.lstrip("-").replace("-", "_").lower()
        last = own.rpartition(".")[2]
        return last if len(last) > 1 else own


@dataclass(slots=True)
class Script:
    """text: of the script and the modules beside it. divided: by the name of a value what it is divided by."""

    text: str = ""
    flags: list[Flag] = field(default_factory=list)
    divided: dict[str, str] = field(default_factory=dict)

    def find(self, name: str) -> Flag | None:
        """The flag of a name, or of what argparse takes as the start of one."""
        plain = Flag(names=(name,)).plain
        same = [flag for flag in self.flags if name in (*flag.names, flag.off)]
        same = same or [flag for flag in self.flags if flag.plain == plain]
        same = same or [flag for flag in self.flags if name.startswith("--") and flag.name.startswith(name)]
        return same[0] if len({flag.name for flag in same}) == 1 else None


def script_of(launch: Launch) -> Script:
    """The script that a start names; empty where it is not there or no Python."""
    module = launch.script.removeprefix("-m ")
    name = launch.script if module == launch.script else f"{module.replace('.', '/')}.py"
    paths, found = [Path(launch.directory or ".") / name], Script()
    for path in paths:
        try:
            text = read_file(path, _MAX_FILE)
            tree = ast.parse(text)  # noqa: TID251  # its size is bounded
        except (OSError, UnreadableText, SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        nodes = list(ast.walk(tree))
        if path is paths[0]:
            modules = (name for node in nodes for name in _imported(node))
            beside = (path.parent.joinpath(*name.split(".")).with_suffix(".py") for name in modules)
            paths += [each for each in dict.fromkeys(beside) if is_there(each)][: _MAX_FILES - 1]
        found.text += text
        found.flags += _flags(nodes, text)
        for node in nodes:
            if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div | ast.FloorDiv):
                left, right = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
                while isinstance(left, ast.Call) and len(left.args) == 1:
                    left = left.args[0]
                name = getattr(left, "attr", getattr(left, "id", "")).lower()
                found.divided[name] = f"{found.divided.get(name, '')} {_source(right)}".strip()
    return found


def _imported(node: ast.AST) -> list[str]:
    named = [each.name for each in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else named


def _flags(nodes: Sequence[ast.AST], text: str) -> Iterator[Flag]:
    lines, dash = text.splitlines(), "-" if re.search(r"\btyro\b", text) else "_"
    annotations = set(re.findall(r":\s*(\w+)", text))
    for node in nodes:
        if isinstance(node, ast.Call):
            yield from _of_call(node)
        # A class that is a section of another has names that are not known here.
        elif isinstance(node, ast.ClassDef) and _OF_FIELDS.search(text) and node.name not in annotations:
            for each in node.body if any("dataclass" in _source(each) for each in node.decorator_list) else ():
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                    flag = _of_value(each.target.id, each.value, dash, _source(each.annotation) == "bool")
                    comment = lines[(each.end_lineno or each.lineno) - 1].partition("#")[2]
                    yield replace(flag, help=flag.help or _short(comment))


def _of_call(call: ast.Call) -> Iterator[Flag]:
    """`parser.add_argument(...)`, `click.option(...)`."""
    kind, texts = getattr(call.func, "attr", getattr(call.func, "id", "")), [_literal(each) for each in call.args]
    said = {each.arg: each.value for each in call.keywords if each.arg}
    if kind in ("add_argument", "option"):
        each_way = [text.partition("/") for text in texts if isinstance(text, str) and text.startswith("-")]
        names, off = tuple(on for on, _, _ in each_way), next((off for _, _, off in each_way if off), "")
        action, kinds = _source(said.get("action")), said.get("choices", said.get("type"))
        # click's Choice([...]).
        choices = _literal(kinds.args[0] if isinstance(kinds, ast.Call) and kinds.args else kinds)
        if names:
            off = off or (f"--no-{max(names, key=len)[2:]}" if "BooleanOptionalAction" in action else "")
            yield Flag(
                names=names,
                default=_literal(said.get("default")),
                help=_short(_literal(said.get("help"))),
                switch=bool(off or "store_" in action or _literal(said.get("is_flag"))),
                choices=tuple(map(str, choices)) if isinstance(choices, list | tuple) else (),
                off=off,
            )


def _of_value(name: str, value: ast.expr | None, dash: str, switch: bool) -> Flag:
    """The flag of a name with a default, which may be `field(default=...)`."""
    default, told = _literal(value), None
    if isinstance(value, ast.Call):
        said: dict[Any, Any] = {each.arg: _literal(each.value) for each in value.keywords}
        default = said.get("default", _literal(value.args[0]) if value.args else None)
        told = said.get("help") or (said.get("metadata") or {}).get("help")
    name = name.replace("_", dash)
    off = f"--no-{name}" if switch and dash == "-" else ""
    return Flag(names=(f"--{name}",), default=default, help=_short(told), switch=switch, off=off)


def _literal(value: ast.expr | None) -> Any:
    try:
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
            return _literal(value.left) * _literal(value.right)
        return ast.literal_eval(value) if value is not None else None  # noqa: TID251  # part of a bounded text
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None


def _source(value: ast.AST | None) -> str:
    try:
        return "" if value is None else ast.unparse(value)
    except (ValueError, RecursionError):
        return ""


def _short(text: Any) -> str:
    words = " ".join(str(text or "").split())
    return words if len(words) <= _MAX_HELP else f"{words[:_MAX_HELP]} ..."
