"""Secrets from files and the environment, so that neither the process list nor a job sees them, and files for them."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

DATABASE_FILE = "MESHTUNE_DB_FILE"
TOKEN_VARIABLES = ("MESHTUNE_TOKEN", "MESHTUNE_TOKEN_FILE")
# Variables that no job sees, nor a scheduler's command that may hand its environment on.
SECRET_VARIABLES = (*TOKEN_VARIABLES, "MESHTUNE_DB", DATABASE_FILE)
_PASSWORD = re.compile(r"://[^/@]*:[^@]+@")


def database_url(given: str) -> str:
    """The database URL of a command: as it was given, else the text of the file that MESHTUNE_DB_FILE names.

    A password among the arguments is seen by everybody on this machine, and gets a warning. Raises OSError.
    """
    file = os.environ.get(DATABASE_FILE, "")
    if not given and file:
        return Path(file).read_text(encoding="utf-8", errors="replace").strip()
    if _PASSWORD.search(given) and any(given in word for word in sys.argv):
        sys.stderr.write(
            "meshtune: the password in --db is shown by the process list; "
            f"set MESHTUNE_DB, or {DATABASE_FILE} to a file with the URL, instead\n"
        )
    return given


def write_private(path: Path, text: str) -> None:
    """Write a file with mode 0600 from its first moment on, in place of what is there. Raises OSError."""
    path.unlink(missing_ok=True)
    # O_EXCL: not through a link that somebody else put there meanwhile.
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
