from __future__ import annotations

from typing import Any

import pytest
from dialect_cases import stored_for


@pytest.fixture
def stored(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What this test expects: see `dialect_cases`."""
    return dict(stored_for(request.path.stem)["expected"][request.function.__name__.removeprefix("test_")])
