"""A whole campaign over REST: its record, table and report are what the store's values make."""

from __future__ import annotations

import csv
import io

import pyarrow.parquet
import pytest

from meshtune.tuner.results.record import read_record
from meshtune.tuner.results.table import csv_of, table_of


@pytest.fixture
def shared(shared_client):
    return shared_client.app.state.service


@pytest.fixture(scope="module")
def looked_at(shared_over):
    return shared_over()


@pytest.fixture
def fetch(shared_client, looked_at):
    """Ask for a document of a campaign that is over."""
    return lambda name: shared_client.get(f"/v1/campaigns/{looked_at}/{name}")


def test_the_record_is_what_the_store_has(fetch, looked_at, shared):
    response = fetch("record")
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    found = read_record(response.content)
    assert (found.campaign, list(found.trials)) == (shared.campaign(looked_at), shared.trials(looked_at))


def test_the_table_is_that_of_the_commands_in_every_format(fetch, looked_at, shared):
    table = table_of(shared.campaign(looked_at), shared.trials(looked_at))
    default, parquet = fetch("data"), fetch("data?format=parquet")
    assert default.content == fetch("data?format=csv").content == csv_of(table)
    assert default.headers["content-type"] == "text/csv; charset=utf-8"
    assert default.headers["content-disposition"] == f'attachment; filename="{looked_at}.csv"'
    assert len(list(csv.DictReader(io.StringIO(default.text)))) == len(table.rows) > 0
    read = pyarrow.parquet.read_table(io.BytesIO(parquet.content))
    assert [tuple(row.values()) for row in read.to_pylist()] == list(table.rows)
    assert read_record(fetch("data?format=json").content) == read_record(fetch("record").content)


def test_the_report_is_a_page_that_may_load_and_run_nothing(fetch, looked_at):
    response = fetch("report")
    assert (response.status_code, response.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert response.headers["content-disposition"] == f'attachment; filename="{looked_at}.html"'
    assert response.headers["content-security-policy"].startswith(
        "default-src 'none'; style-src 'unsafe-inline'; sandbox"
    )
    assert looked_at in response.text
    assert "<svg" in response.text


@pytest.mark.parametrize("name", ["record", "data", "report"])
def test_what_the_client_has_is_not_sent_again_until_the_campaign_changes(name, client, create, drive):
    id = create(budget={"trials": 1})
    first = client.get(f"/v1/campaigns/{id}/{name}")
    assert first.status_code == 200
    known = {"If-None-Match": first.headers["etag"]}
    again = client.get(f"/v1/campaigns/{id}/{name}", headers=known)
    assert (again.status_code, again.content) == (304, b"")
    drive(id)
    assert client.get(f"/v1/campaigns/{id}/{name}", headers=known).status_code == 200


@pytest.mark.parametrize("name", ["record", "data", "report"])
def test_no_campaign_has_none(name, shared_client, problem):
    problem(shared_client.get(f"/v1/campaigns/nobody/{name}"), 404, "/problems/not-found")
