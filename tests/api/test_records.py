"""A whole campaign over REST: its record, table and report are what the store's values make."""

from __future__ import annotations

import csv
import io

import pyarrow.parquet
import pytest

from meshtune.tuner.results.record import read_record
from meshtune.tuner.results.table import csv_of, table_of


@pytest.fixture
def fetch(client, over):
    """Ask for a document of a campaign that is over."""
    return lambda name, **headers: client.get(f"/v1/campaigns/{over}/{name}", headers=headers)


def test_the_record_is_what_the_store_has(fetch, over, service):
    response = fetch("record")
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    found = read_record(response.content)
    assert (found.campaign, list(found.trials)) == (service.campaign(over), service.trials(over))


def test_the_table_is_that_of_the_commands_in_every_format(fetch, over, service):
    table = table_of(service.campaign(over), service.trials(over))
    default, parquet = fetch("data"), fetch("data?format=parquet")
    assert default.content == fetch("data?format=csv").content == csv_of(table)
    assert default.headers["content-type"] == "text/csv; charset=utf-8"
    assert default.headers["content-disposition"] == f'attachment; filename="{over}.csv"'
    assert len(list(csv.DictReader(io.StringIO(default.text)))) == len(table.rows) > 0
    read = pyarrow.parquet.read_table(io.BytesIO(parquet.content))
    assert [tuple(row.values()) for row in read.to_pylist()] == list(table.rows)
    assert read_record(fetch("data?format=json").content) == read_record(fetch("record").content)


def test_the_report_is_a_page_that_may_load_and_run_nothing(fetch, over):
    response = fetch("report")
    assert (response.status_code, response.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert response.headers["content-disposition"] == f'attachment; filename="{over}.html"'
    assert response.headers["content-security-policy"].startswith(
        "default-src 'none'; style-src 'unsafe-inline'; sandbox"
    )
    assert over in response.text
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
def test_no_campaign_has_none(name, client, problem):
    problem(client.get(f"/v1/campaigns/nobody/{name}"), 404, "/problems/not-found")
