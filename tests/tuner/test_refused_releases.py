"""Two services on one PostgreSQL that refuses releases of leases for a while: what the table calls a service's stays in
its hands, `/readyz` says so meanwhile, and every campaign gets on afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from postgres_lab import PostgresLab
from service_process import UNPACED, free_port, meshtune, without_ours
from specs import simulated

from meshtune.tuner.campaign.campaign import CampaignState, Home
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import Store

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

CAMPAIGNS, REFUSING_S = 12, 5.0
REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.holder = '' AND OLD.holder <> '' THEN RAISE EXCEPTION 'no space' USING ERRCODE = '53100'; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuse BEFORE UPDATE ON leases FOR EACH ROW EXECUTE FUNCTION refuse()
"""
SPEC = simulated(runner={"kind": "simulated", "seconds_per_trial": 2.0, "slots": 100}, budget={"trials": 10}, confirm=0)


@pytest.fixture
def server() -> Iterator[PostgresLab]:
    with PostgresLab() as lab:
        yield lab


@pytest.fixture
def serve(server: PostgresLab, tmp_path: Path) -> Iterator[Callable[[], int]]:
    """Start a service more; its port."""
    processes = []

    def start() -> int:
        port, environment = free_port(), {**without_ours(os.environ), **UNPACED, "MESHTUNE_DB": server.url("postgres")}
        command = meshtune("serve", "--port", str(port), "--home", str(tmp_path / "home"))
        processes.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL))
        await_(lambda: troubles(port) == "", 60.0)
        return port

    yield start
    for process in processes:
        process.kill()
        process.wait()


def troubles(port: int) -> str | None:
    """What keeps the service from being ready, empty where nothing does; None where it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10):
            return ""
    except urllib.error.HTTPError as error:
        return str(json.loads(error.read())["detail"])
    except OSError:
        return None


def await_(holds: Callable[[], object], limit_s: float = 30.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_a_database_refuses_to_release_is_driven_on_and_given_back_later(server, serve, tmp_path):
    home = Home(tmp_path / "home")
    first = serve()
    with Store.open(server.url("postgres")) as store, server.connect() as connection:
        ids = [Service(store, home).create(SPEC).id for _ in range(CAMPAIGNS)]
        await_(lambda: all(store.leases.drivers().by_campaign.values()))
        connection.execute(REFUSE)
        refused_at = time.monotonic()
        second = serve()
        await_(lambda: "cannot be given back" in (troubles(first) or ""), 20.0)
        assert "has a full disk" in (troubles(first) or "")
        Service(store, home).cancel(ids[-1])
        time.sleep(max(0.0, REFUSING_S - (time.monotonic() - refused_at)))
        assert set(store.leases.drivers().by_campaign.values()) != {""}
        connection.execute("DROP TRIGGER refuse ON leases")
        await_(lambda: (troubles(first), troubles(second)) == ("", ""))
        await_(lambda: store.campaign(ids[-1]).state is CampaignState.CANCELLED)
        await_(lambda: all(store.campaign(id).state is CampaignState.COMPLETED for id in ids[:-1]), 90.0)
