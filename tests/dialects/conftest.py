from __future__ import annotations

from typing import Any

import pytest
from dialect_cases import stored_for


@pytest.fixture
def stored(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What this test expects: see `dialect_cases`."""
    return dict(stored_for(request.path.stem)["expected"][request.function.__name__.removeprefix("test_")])


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is not at its place is looked for below the present folder: none is there."""
    monkeypatch.chdir(tmp_path_factory.mktemp("empty"))
