"""What a training script says of its own flags: its calls of argparse, click and absl, fields of dataclasses and
arguments of functions that tyro, fire and the like make flags of, and nanoGPT's constants. It is read, never run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from meshtune.runners.programs.dialects.base import Launch
from meshtune.runners.untrusted_text import UnreadableText, read_file

# Bytes of a file; files: the script, and modules beside it that it imports.
_MAX_FILE, _MAX_FILES = 400_000, 12
_MAX_HELP = 100
# Libraries that make flags of a dataclass's fields, and of a function's arguments.
_OF_FIELDS = re.compile(r"\b(HfArgumentParser|tyro|simple_parsing|draccus|pyrallis|jsonargparse|TrlParser)\b")
_OF_FUNCTIONS = ("typer.run", "fire.Fire", "tyro.cli", "Fire", "jsonargparse.CLI", "CLI", "auto_cli")
_OF_CONSTANTS = re.compile(r"\bconfigurator\.py\b")


def plain_name(name: str) -> str:
    """A flag's name as patterns have it: `--train.batch-size` is `batch_size`."""
    return name.lstrip("-+").rpartition(".")[2].replace("-", "_").lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """names: as a command line has them. default: None where there is none that is known. switch: it takes no value.
    off: the name that turns it off. joined: `--name=value` alone is understood."""

    names: tuple[str, ...]
    default: Any = None
    help: str = ""
    switch: bool = False
    choices: tuple[str, ...] = ()
    off: str = ""
    joined: bool = False

    @property
    def plain(self) -> tuple[str, ...]:
        """The long names, or all where there is no long one, as patterns have them."""
        return tuple(map(plain_name, [name for name in self.names if len(name.strip("-")) > 1] or self.names))

    @property
    def name(self) -> str:
        return max(self.names, key=len)


@dataclass(frozen=True)
class Script:
    """trees: of the script, "" for what is not there, and of the modules beside it, each with its text."""

    trees: tuple[tuple[ast.Module, str], ...] = ()

    @cached_property
    def text(self) -> str:
        return "\n".join(text for _, text in self.trees)

    @cached_property
    def flags(self) -> tuple[Flag, ...]:
        """One of each name, the first."""
        found = dict[str, Flag]()
        for tree, text in self.trees:
            for flag in _flags(tree, text, self.text):
                found.setdefault(flag.name, flag)
        return tuple(found.values())

    @cached_property
    def divided(self) -> dict[str, str]:
        """By the plain name of a value what the source divides it by."""
        found = {}
        for tree, _ in self.trees:
            for node in ast.walk(tree):
                if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div | ast.FloorDiv):
                    left = node.left if isinstance(node, ast.BinOp) else node.target
                    right = node.right if isinstance(node, ast.BinOp) else node.value
                    while isinstance(left, ast.Call) and len(left.args) == 1:
                        left = left.args[0]
                    if name := getattr(left, "attr", getattr(left, "id", "")):
                        found[name.lower()] = f"{found.get(name.lower(), '')} {_source(right)}"
        return found

    def find(self, name: str) -> Flag | None:
        """The flag of a name, of one that argparse takes as an abbreviation too."""
        same = [flag for flag in self.flags if name in flag.names or flag.off == name]
        if not same and name.startswith("--"):
            plain = plain_name(name)
            same = [flag for flag in self.flags if plain in map(plain_name, flag.names)]
            same = same or [flag for flag in self.flags if any(each.startswith(name) for each in flag.names)]
        return same[0] if len(same) == 1 else None


def script_of(launch: Launch) -> Script:
    """The script that a start names, with the modules beside it that it imports."""
    name = launch.script
    if name.startswith("-m "):
        name = name[3:].replace(".", "/") + ".py"
    path = Path(launch.directory or ".") / name
    paths, found = [path], list[tuple[ast.Module, str]]()
    for at, each in enumerate(iter(paths)):
        try:
            text = read_file(each, _MAX_FILE)
            tree = ast.parse(text)  # noqa: TID251  # bounded by its size, and read without running it
        except (OSError, UnreadableText, SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        found.append((tree, text))
        if at == 0:
            paths += [inner for inner in _beside(tree, path.parent) if inner != path][: _MAX_FILES - 1]
    return Script(tuple(found))


def _beside(tree: ast.Module, folder: Path) -> Iterator[Path]:
    for node in ast.walk(tree):
        modules = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            modules = [node.module] if node.module else [each.name for each in node.names]
        for module in modules:
            path = folder.joinpath(*module.split(".")).with_suffix(".py")
            if path.is_file():
                yield path


def _flags(tree: ast.Module, text: str, every_text: str) -> Iterator[Flag]:
    lines = text.splitlines()
    nodes = list(ast.walk(tree))
    classes = [node for node in nodes if isinstance(node, ast.ClassDef) and _decorated(node, "dataclass")]
    # A section of another class is a dataclass too: `--train.batch-size`.
    inner = {_source(each.annotation): f"{each.target.id}." for node in classes for each in _annotated(node)}
    called = {
        _source(node.args[0])
        for node in nodes
        if isinstance(node, ast.Call) and node.args and _source(node.func) in _OF_FUNCTIONS
    }
    dash = "-" if re.search(r"\b(tyro|typer)\b", every_text) else "_"
    for node in nodes:
        if isinstance(node, ast.Call):
            yield from _of_call(node)
        elif isinstance(node, ast.ClassDef) and node in classes and _OF_FIELDS.search(every_text):
            for each in _annotated(node):
                flag = _of_value(each.value, each.target.id, dash, _source(each.annotation) == "bool")
                before = inner.get(node.name, "")
                yield replace(flag, names=(f"--{before}{flag.name[2:]}",), help=flag.help or _comment(lines, each))
        elif isinstance(node, ast.FunctionDef) and (node.name in called or _decorated(node, "command")):
            arguments = [*node.args.args, *node.args.kwonlyargs]
            defaults = [*node.args.defaults, *node.args.kw_defaults]
            for argument, value in zip(reversed(arguments), reversed(defaults), strict=False):
                yield _of_value(value, argument.arg, dash, isinstance(_literal(value), bool))
    if _OF_CONSTANTS.search(text):
        for node in tree.body:
            named = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
            if named and isinstance(_literal(node.value), bool | int | float | str):
                name = f"--{node.targets[0].id}"
                yield Flag(names=(name,), default=_literal(node.value), help=_comment(lines, node), joined=True)


def _of_call(call: ast.Call) -> Iterator[Flag]:
    kind = getattr(call.func, "attr", getattr(call.func, "id", ""))
    values = [_literal(value) for value in call.args]
    if kind.startswith("DEFINE_") and len(values) > 1 and isinstance(values[0], str):
        switch = kind in ("DEFINE_bool", "DEFINE_boolean")
        off = f"--no{values[0]}" if switch else ""
        yield Flag(names=(f"--{values[0]}",), default=values[1], help=_short(values[-1]), switch=switch, off=off)
    elif kind in ("add_argument", "option"):
        said = {each.arg: each.value for each in call.keywords if each.arg}
        texts = [part for value in values if isinstance(value, str) for part in value.split("/")]
        names = tuple(text for text in texts if text.startswith("-"))
        action = _source(said.get("action"))
        off = next((name for name in names if "/" in "".join(map(str, values)) and name.startswith("--no")), "")
        if names and "BooleanOptionalAction" in action:
            off = f"--no-{max(names, key=len)[2:]}"
        if names:
            yield Flag(
                names=tuple(name for name in names if name != off) or names,
                default=_literal(said.get("default")),
                help=_short(_literal(said.get("help"))),
                switch=bool(off or "store_" in action or _literal(said.get("is_flag"))),
                choices=tuple(map(str, _listed(said.get("choices") or said.get("type")))),
                off=off,
            )


def _of_value(value: ast.expr | None, name: str, dash: str, switch: bool) -> Flag:
    """The flag of a field or an argument with a default, which may be `field(default=...)` or `typer.Option(...)`."""
    names, default, told = (f"--{name.replace('_', dash)}",), _literal(value), ""
    if isinstance(value, ast.Call):
        said = {each.arg: _literal(each.value) for each in value.keywords}
        first = [_literal(each) for each in value.args]
        default, meta = said.get("default", next(iter(first), None)), said.get("metadata")
        told = _short((meta if isinstance(meta, dict) else said).get("help"))
        names = tuple(each for each in first[1:] if isinstance(each, str) and each.startswith("--")) or names
    off = f"--no-{names[0][2:]}" if switch and dash == "-" else ""
    return Flag(names=names, default=default, help=told, switch=switch, off=off)


def _annotated(node: ast.ClassDef) -> list[Any]:
    return [each for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)]


def _decorated(node: ast.ClassDef | ast.FunctionDef, name: str) -> bool:
    return any(re.search(rf"\b{name}\b", _source(each)) for each in node.decorator_list)


def _literal(value: ast.expr | None) -> Any:
    try:
        return None if value is None else ast.literal_eval(value)  # noqa: TID251  # of a tree whose text is bounded
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def _listed(value: ast.expr | None) -> tuple[Any, ...]:
    """`[...]`, or click's `Choice([...])`."""
    found = _literal(value.args[0] if isinstance(value, ast.Call) and value.args else value)
    return tuple(found) if isinstance(found, list | tuple) else ()


def _source(value: ast.AST | None) -> str:
    try:
        return "" if value is None else ast.unparse(value)
    except (RecursionError, ValueError):
        return ""


def _comment(lines: list[str], node: ast.stmt) -> str:
    return _short(lines[(node.end_lineno or node.lineno) - 1].partition("#")[2])


def _short(text: Any) -> str:
    words = " ".join(str(text or "").split())
    return words if len(words) <= _MAX_HELP else f"{words[:_MAX_HELP]} ..."
