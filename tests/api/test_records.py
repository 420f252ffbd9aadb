"""A whole campaign over REST: its record is what the store has."""

from __future__ import annotations

from meshtune.tuner.results.record import read_record


def test_the_record_is_what_the_store_has(client, over, service):
    response = client.get(f"/v1/campaigns/{over}/record")
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    found = read_record(response.content)
    assert (found.campaign, list(found.trials)) == (service.campaign(over), service.trials(over))


def test_a_record_that_the_client_has_is_not_sent_again(client, over, create):
    etag = client.get(f"/v1/campaigns/{over}/record").headers["etag"]
    again = client.get(f"/v1/campaigns/{over}/record", headers={"If-None-Match": etag})
    assert (again.status_code, again.content) == (304, b"")
    other = client.get(f"/v1/campaigns/{create()}/record", headers={"If-None-Match": etag})
    assert other.status_code == 200


def test_no_campaign_has_no_record(client, problem):
    problem(client.get("/v1/campaigns/nobody/record"), 404, "/problems/not-found")
