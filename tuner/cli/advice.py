"""A batch script with the best known plan for it, or, when there is none, as it is, submitted to Slurm.

The script's `#MESHTUNE` lines say what it trains; `@MESHTUNE_NAME:-default@` in it is filled in. The plan is asked of a
running service, within a deadline, and nothing that the service says is trusted unchecked: variables that
knobs set are those that a catalog has. No proxies and no redirects:
a token goes to the service that was named, and nowhere else.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from urllib.parse import urlencode, urlsplit

import typer

from meshtune.runners.command import answered
from meshtune.runners.schedulers.slurm.sbatch import directives, exporting, node_count, submit, takes_next_word
from meshtune.runners.untrusted_text import JSON_LIMITS, read_file, read_json
from meshtune.search_spaces.checks import did_you_mean, raising
from meshtune.tuner.access.tokens import SECRET_VARIABLES, TOKEN_FILE, own_token
from meshtune.tuner.cli.common import WrongCall, errors
from meshtune.tuner.results.environment import ENVIRONMENT_NAMES, KNOB_VARIABLE, SAFE_VALUE, catalog_variables

# A launch does not wait longer for advice.
LIMIT_S = 2.0
# What a script may say of itself; the route takes the same names.
KEYS = ("model", "cluster", "global_batch_size", "workload", "software")
PLACEHOLDER = re.compile(r"@(MESHTUNE_[A-Z0-9_]+)(?::-([^@\n]*))?@")
MAX_BYTES = 2**16
# What may reach a command line or a script.
_LINE = re.compile(rf"([A-Za-z_][A-Za-z0-9_]*)=({SAFE_VALUE.pattern})")


def submitted(words: Sequence[str], own: Sequence[str], *, model: str, cluster: str, url: str, dry_run: bool) -> None:
    """words: the script, with options of sbatch around it. own: the script's arguments."""
    script, options = split_words(words)
    with raising(WrongCall, str(script), ValueError):  # not UTF-8, or an open quote
        text = read_file(script, JSON_LIMITS.max_bytes, regular=False)
        named = {name: value for name, value in (("model", model), ("cluster", cluster)) if value}
        asked = read_directive(directives(text, "MESHTUNE")) | named
        nodes = node_count(text, options)
    for name in ("model", "cluster"):
        if name not in asked:
            raise WrongCall(f"{script}: name the {name}: --{name}, or a line `#MESHTUNE model=... cluster=...`")
    values = _values(url, asked, nodes)
    filled = fill(text, values)
    if values:
        exported = exporting(options, text, values)
        if exported is None:
            _warn("--export lets no variables into the job: only placeholders are filled")
        options = exported or options
    if dry_run:
        sys.stdout.write(f"{shlex.join(['sbatch', *options, str(script), *own])}\n\n{filled}")
        sys.stdout.flush()
        if which("sbatch") is None:
            _warn("Slurm was not asked: there is no sbatch here")
            return
        options = ["--test-only", *options]
    with TemporaryDirectory(prefix="meshtune-") as folder:
        sent = script
        if PLACEHOLDER.search(text):
            sent = Path(folder) / script.name  # the same name: jobs are called by it
            sent.write_text(filled, encoding="utf-8")
        code = submit([*options, str(sent), *own], hide=SECRET_VARIABLES)
    raise typer.Exit(code)


def split_words(words: Sequence[str]) -> tuple[Path, list[str]]:
    """The script, and the options of sbatch that stand around it. Raises WrongCall."""
    options, others = [], []
    rest = iter(words)
    for word in rest:
        if len(word) < 2 or not word.startswith("-"):
            others.append(word)
            continue
        options.append(word)
        if takes_next_word(word):
            options += [value] if (value := next(rest, None)) is not None else []
    if not others:
        raise WrongCall(
            f"no script among {shlex.join(words)!r}: the word behind an option is its value; write --option=value, or "
            "the script first"
        )
    script, *strays = others
    if strays:
        raise WrongCall(
            f"{shlex.join(strays)}: neither an option of sbatch nor the value of one; arguments of the script follow "
            f"`--`: meshtune sbatch {shlex.join([*options, script])} -- {shlex.join(strays)}"
        )
    return Path(script), options


def _values(url: str, asked: Mapping[str, str], nodes: int | None) -> dict[str, str]:
    """The variables; none, with a warning, where there is no answer."""
    if nodes is None:
        _warn("the script names no node count (--nodes): it goes with its own defaults")
        return {}
    try:
        values = ask(url, {**asked, "nodes": str(nodes)}, limit_s=LIMIT_S)
    except NoAnswer as error:
        _warn(f"no recommendation, the script goes with its own defaults: {error}")
        return {}
    errors.print(f"meshtune: {' '.join(f'{name}={value}' for name, value in values.items())}", soft_wrap=True)
    if values.get("MESHTUNE_MEASURED") != "1":
        _warn("this plan is projected, not measured")
    return values


def _warn(message: str) -> None:
    errors.print(f"meshtune: warning: {message}", style="yellow", soft_wrap=True)


def read_directive(words: Sequence[str]) -> dict[str, str]:
    """The `key=value` words of `#MESHTUNE` lines. Raises WrongCall."""
    pairs: dict[str, str] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key not in KEYS or not value:
            raise WrongCall(f"#MESHTUNE {word}: must be key=value; {did_you_mean(key, KEYS)}")
        pairs[key] = value
    return pairs


def fill(script: str, values: Mapping[str, str]) -> str:
    """The script with values, or the defaults of those that have none, for its placeholders. Raises WrongCall for a
    name that meshtune never gives, and for one that has neither."""
    missing: list[str] = []

    def replaced(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if name not in ENVIRONMENT_NAMES and not KNOB_VARIABLE.fullmatch(name):
            raise WrongCall(f"{match[0]}: there is no {name}; {did_you_mean(name, ENVIRONMENT_NAMES)}")
        if name not in values and default is None:
            missing.append(name)
        return values.get(name, default or "")

    filled = PLACEHOLDER.sub(replaced, script)
    if missing:
        names = ", ".join(dict.fromkeys(missing))
        raise WrongCall(
            f"there is no value for {names}, and no default, such as @{missing[0]}:-1@; nothing was submitted"
        )
    return filled


class NoAnswer(Exception):
    """The service gave no usable answer in time; the message says why. A launch goes on without."""


def ask(url: str, question: Mapping[str, str], *, limit_s: float) -> dict[str, str]:
    """The answer's variables by name. Raises NoAnswer within limit_s, whatever the service or the network does."""
    try:
        token = own_token()
    except (OSError, ValueError) as error:
        raise NoAnswer(f"{TOKEN_FILE}: {os.environ[TOKEN_FILE]}: {error}") from None
    try:
        # A socket's time limit is for each read, and name look-ups have none: the thread is left behind.
        return answered(partial(_fetch, url, question, token, limit_s), "ask").result(limit_s)
    except TimeoutError:
        raise NoAnswer(f"{url} did not answer within {limit_s:g} s") from None
    except (OSError, HTTPException, ValueError) as error:
        raise NoAnswer(f"{url}: {error or type(error).__name__}") from None


def _fetch(url: str, question: Mapping[str, str], token: str, limit_s: float) -> dict[str, str]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise NoAnswer(f"{url} is no http or https URL")
    secure = parts.scheme == "https"
    kind = HTTPSConnection if secure else HTTPConnection
    path = f"{parts.path.rstrip('/')}/v1/recommendations?{urlencode({**question, 'format': 'env'})}"
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with closing(kind(parts.hostname, parts.port, timeout=limit_s)) as connection:
        connection.request("GET", path, headers=headers)
        with connection.getresponse() as response:
            body = response.read(MAX_BYTES)
            whole = response.headers["Content-Length"] in (None, str(len(body)))
    text = body.decode("utf-8", errors="replace")
    if response.status != 200:
        raise NoAnswer(f"{url}: {response.status}: {_detail(text) or response.reason}")
    # Half a plan would be worse than none, so that an answer that was cut off counts as none.
    lines = [_LINE.fullmatch(line) for line in text.splitlines()]
    if not whole or not lines or None in lines or not text.endswith("\n"):
        raise NoAnswer(f"{url}: the answer is not lines of MESHTUNE_NAME=value")
    values = {match[1]: match[2] for match in lines if match}
    others = [name for name in values if not name.startswith("MESHTUNE_")]
    if others and (strange := [name for name in others if name not in catalog_variables()]):
        raise NoAnswer(f"{url}: the answer sets {', '.join(strange)}, which no catalog of knobs has")
    return values


def _detail(text: str) -> str:
    with suppress(ValueError, KeyError, TypeError):
        return " ".join(str(read_json(text)["detail"]).split())
    return ""
