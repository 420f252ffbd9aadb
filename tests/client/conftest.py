"""One real service for the tests of the client and of `--server`, and a campaign in it that is done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from client_specs import SPEC
from service_lab import ServiceLab

from meshtune import Client


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One service for all of them: one worker of pytest-xdist."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.xdist_group("client"))


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceLab]:
    with ServiceLab(tmp_path_factory.mktemp("service")) as lab:
        yield lab


@pytest.fixture
def client(service: ServiceLab) -> Iterator[Client]:
    with Client(service.url, service.token) as client:
        yield client


@pytest.fixture(scope="session")
def done(service: ServiceLab) -> str:
    """The id of a campaign that is over; tests only look at it."""
    with Client(service.url, service.token) as client:
        campaign = client.create(SPEC)
        assert campaign.wait(limit_s=60).state == "completed"
        return campaign.id
