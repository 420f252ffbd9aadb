"""The service that the samples ask."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from advice_service import AdviceService


@pytest.fixture
def service() -> Iterator[AdviceService]:
    with AdviceService() as service:
        yield service
