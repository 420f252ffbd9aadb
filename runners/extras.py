"""Libraries that only some backends need: each comes with an extra of the package."""

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
    """A library is not installed; the message has the command that installs it."""


def require_extra(extra: str, user: str) -> None:
    """Check that an extra is installed, without importing it. user: what needs it. Raises MissingExtra."""
    missing = [library for library, module in EXTRAS[extra].items() if find_spec(module) is None]
    if missing:
        raise MissingExtra(f"{user} needs {' and '.join(missing)}: pip install 'meshtune[{extra}]'")
