"""Values that have broken readers of documents elsewhere, and here; and the places of a document where they may stand.
The benchmark of trust and the tests of specs put them in."""

from __future__ import annotations

from typing import Any

NUMBERS = (
    *(0, -1, 1, 3, 7, 2**31 - 1, 2**31, 2**53, 2**63, 10**400),
    *(0.5, -0.0, 1e308, 5e-324, float("nan"), float("inf")),
)
TEXTS = (
    *("", " ", "free", "gpt-1t", "1e3", "0x10", "\0", "\ud800", "\u202e", "\U0001f600"),
    *("{", "{tp}", "'", "-" * 300, "a\nb", "..", "/"),
)
HOLDERS: tuple[Any, ...] = (
    *([], {}, [[]], [None], {"": 1}, {"kind": None}, {"preset": "gpt-1t"}),
    *([1] * 300, "(" * 200 + ")" * 200),
)
ODD: tuple[Any, ...] = (None, True, False, *NUMBERS, *TEXTS, *HOLDERS)
KEYS = ("kind", "preset", "name", "tp", "nodes", "layers", "", "a.b", "~", "/", "options", "global_batch_size")


def places(node: Any) -> list[tuple[Any, Any]]:
    """Every key and index of a document, with what holds it."""
    entries = list(node.items() if isinstance(node, dict) else enumerate(node)) if isinstance(node, dict | list) else []
    return [(node, key) for key, _ in entries] + [place for _, inner in entries for place in places(inner)]
