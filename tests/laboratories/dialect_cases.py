"""The cases of the dialects' tests as data: `tests/dialects/cases/NAME.yaml` beside `test_NAME.py`.

given: what several tests read. tables: by test, its parameters and their values. expected: by test, what it finds."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

CASES = Path(__file__).parents[1] / "dialects" / "cases"


@cache
def stored_for(module: str) -> dict[str, Any]:
    """Of the tests of a module, by its name."""
    text = (CASES / f"{module.rpartition('test_')[2]}.yaml").read_text(encoding="utf-8")
    return dict(yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def cases(test: Callable[..., None]) -> Callable[..., None]:
    """The test once for each row of its table."""
    names, *rows = stored_for(test.__module__)["tables"][test.__name__.removeprefix("test_")]
    return pytest.mark.parametrize(names, rows)(test)
