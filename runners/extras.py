"""The extras of the package, and the libraries that each brings: what is missing is named with its command."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from meshtune.search_spaces.checks import UserError

# extra -> its modules by the names of their libraries. A runner or workload of that name needs it: a runner where it is
# created, a workload where its jobs run.
EXTRAS: Mapping[str, Mapping[str, str]] = {
    "torch": {"PyTorch": "torch"},
    "ray": {"Ray": "ray"},
    "deephyper": {"DeepHyper": "deephyper"},
    "optuna": {"Optuna": "optuna", "scikit-learn": "sklearn"},
    "postgres": {"psycopg": "psycopg"},
    "kubernetes": {"the Kubernetes client": "kubernetes"},
    "report": {"Jinja": "jinja2", "Matplotlib": "matplotlib"},
    "parquet": {"PyArrow": "pyarrow"},
    "mcp": {"the MCP package": "mcp"},
}


class MissingExtra(UserError):
    """A library is not installed; the message has the command that installs it."""


def require_extra(extra: str, user: str) -> None:
    """Check that an extra is installed, without importing it. user: what needs it. Raises MissingExtra."""
    missing = [library for library, module in EXTRAS[extra].items() if find_spec(module) is None]
    if missing:
        raise MissingExtra(f"{user} needs {' and '.join(missing)}: pip install 'meshtune[{extra}]'")
