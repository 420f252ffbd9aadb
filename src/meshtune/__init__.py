"""meshtune: finds the fastest way to lay one training job over one cluster.

    from meshtune import Client

    campaign = Client("http://127.0.0.1:8000", token).create("spec.yaml")

The client's names are loaded when they are first asked for: jobs import `meshtune.runners` under Pythons that have
none of the libraries that it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshtune.tuner.client.client import AsyncClient, Client
    from meshtune.tuner.client.errors import ServiceError

__all__ = ["AsyncClient", "Client", "ServiceError"]
_CLIENT = "meshtune.tuner.client"
_WHERE = {"AsyncClient": f"{_CLIENT}.client", "Client": f"{_CLIENT}.client", "ServiceError": f"{_CLIENT}.errors"}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
