"""Where our secrets come from, so that neither the process list nor a job sees them."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

DATABASE_FILE = "MESHTUNE_DB_FILE"
TOKEN_VARIABLES = ("MESHTUNE_TOKEN", "MESHTUNE_TOKEN_FILE")
# What no job sees, nor a scheduler's command that may hand its environment on.
SECRET_VARIABLES = (*TOKEN_VARIABLES, "MESHTUNE_DB", DATABASE_FILE)
_PASSWORD = re.compile(r"://[^/@]*:[^@]+@")


def database_url(given: str) -> str:
    """The database URL of a command: as it was given, else what the file says that MESHTUNE_DB_FILE names.

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
