"""Asks a running service for the best known plan, within a deadline, and trusts nothing that it says unchecked.

No proxies and no redirects: a token goes to the service that was named, and nowhere else.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from urllib.parse import urlencode, urlsplit

from meshtune.tuner.access.credentials import TOKEN_VARIABLES

DEFAULT_URL = "http://127.0.0.1:8000"
MOST_BYTES = 2**16
# What may reach a command line or a script.
_LINE = re.compile(r"(MESHTUNE_[A-Z_]+)=([A-Za-z0-9_.:/-]+)")


class NoAnswer(Exception):
    """The service gave no usable answer in time; the message says why. A launch goes on without."""


def ask(url: str, question: Mapping[str, str], *, limit_s: float) -> dict[str, str]:
    """The answer's variables by name. Raises NoAnswer within limit_s, whatever the service or the network does."""
    token = _token()
    too_late = NoAnswer(f"{url} did not answer within {limit_s:g} s")
    answers: SimpleQueue[dict[str, str] | NoAnswer] = SimpleQueue()

    def fetch() -> None:
        try:
            answers.put(_fetch(url, question, token, limit_s))
        except NoAnswer as told:
            answers.put(told)
        except TimeoutError:
            answers.put(too_late)
        except (OSError, HTTPException, ValueError) as error:
            answers.put(NoAnswer(f"{url}: {error or type(error).__name__}"))

    # A socket's time limit is for each read, and name look-ups have none: the thread is left behind.
    Thread(target=fetch, daemon=True).start()
    try:
        answer = answers.get(timeout=limit_s)
    except Empty:
        raise too_late from None
    if isinstance(answer, NoAnswer):
        raise answer
    return answer


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
            body = response.read(MOST_BYTES)
            whole = response.headers["Content-Length"] in (None, str(len(body)))
    text = body.decode("utf-8", errors="replace")
    if response.status != 200:
        raise NoAnswer(f"{url}: {response.status}: {_detail(text) or response.reason}")
    return _variables(url, text if whole else "")


def _variables(url: str, text: str) -> dict[str, str]:
    """Half a plan would be worse than none, so that an answer that was cut off counts as none."""
    found = [_LINE.fullmatch(line) for line in text.splitlines()]
    if not found or None in found or not text.endswith("\n"):
        raise NoAnswer(f"{url}: the answer is not lines of MESHTUNE_NAME=value")
    return {match[1]: match[2] for match in found if match}


def _detail(text: str) -> str:
    with suppress(ValueError, KeyError, TypeError):
        return " ".join(str(json.loads(text)["detail"]).split())
    return ""


def _token() -> str:
    """From MESHTUNE_TOKEN, else from the file that MESHTUNE_TOKEN_FILE names; empty for none. Raises NoAnswer."""
    token, file = (os.environ.get(name, "") for name in TOKEN_VARIABLES)
    if token or not file:
        return token
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise NoAnswer(f"MESHTUNE_TOKEN_FILE: {file}: {error}") from None
