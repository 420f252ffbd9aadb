"""Libraries that only some backends need: each comes with an extra of the package.

MissingExtra   a library is not installed; its message has the command that installs it
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

# extra -> its modules by the names of their libraries
EXTRAS: Mapping[str, Mapping[str, str]] = {
    "torch": {"PyTorch": "torch"},
    "ray": {"Ray": "ray"},
    "deephyper": {"DeepHyper": "deephyper"},
    "optuna": {"Optuna": "optuna", "scikit-learn": "sklearn"},
    "postgres": {"psycopg": "psycopg"},
}


class MissingExtra(Exception):
    """A library is not installed. Trying again fails again until its extra is installed."""


def require_extra(extra: str, user: str) -> None:
    """Check that the libraries of an extra are installed, without importing them (DeepHyper takes 3 s).

    user: what needs it, such as "the search deephyper". Raises MissingExtra.
    """
    missing = [library for library, module in EXTRAS[extra].items() if find_spec(module) is None]
    if missing:
        raise MissingExtra(f"{user} needs {' and '.join(missing)}: pip install 'meshtune[{extra}]'")
