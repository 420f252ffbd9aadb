"""A search's options are a frozen dataclass; this reads one from a document, and checks that its library is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from meshtune.runners.extras import MissingExtra, require_extra
from meshtune.search_spaces.checks import did_you_mean
from meshtune.tuner.search.base import SearchMisconfigured

T = TypeVar("T")


def parse_options(search: str, kind: type[T], given: Mapping[str, Any]) -> T:
    """`given` as a `kind`; each value must have its field's type, nothing is converted. Raises SearchMisconfigured."""
    types = get_type_hints(kind, include_extras=True)
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # every kind of options is a dataclass
    for name, value in given.items():
        if name not in known:
            hint = did_you_mean(str(name), known) if known else "it takes no options"
            raise SearchMisconfigured(f"search {search}: unknown option {name!r} ({value!r}); {_listed(known, hint)}")
        try:
            TypeAdapter(types[name]).validate_python(value, strict=True)
        except ValidationError as error:
            message = error.errors()[0]["msg"]
            raise SearchMisconfigured(
                f"search {search}: option {name!r} is {value!r}: {message}; known options: {', '.join(known)}"
            ) from None
    return kind(**given)


def require_library(search: str, extra: str) -> None:
    """Check that the library of an extra is installed. Raises SearchMisconfigured."""
    try:
        require_extra(extra, f"the search {search}")
    except MissingExtra as missing:
        raise SearchMisconfigured(str(missing)) from None


def _listed(known: list[str], hint: str) -> str:
    return f"{hint} (known options: {', '.join(known)})" if known else hint
