"""What REST says of measured plans: recommendations, quotes, records and calibrations, as the command line and the
store have them."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import asdict

import jsonschema
import pyarrow.parquet
import pytest
from new_tokens import new_token

from meshtune.runners.documents import plain
from meshtune.search_spaces.physics.constants import CONSTANTS, UNCALIBRATED, Calibration
from meshtune.tuner.access.tokens import Scope
from meshtune.tuner.campaign.calibration import StoredCalibration, key_of
from meshtune.tuner.prediction.predict import Basis
from meshtune.tuner.prediction.quote import make_quote
from meshtune.tuner.results.known_best import (
    MAX_CAMPAIGNS,
    CampaignRecords,
    LaunchQuestion,
    NothingKnown,
    best_measured,
)
from meshtune.tuner.results.known_best_projection import best_projected
from meshtune.tuner.results.record import read_record
from meshtune.tuner.results.table import csv_of, table_of
from meshtune.tuner.specs.read import read_spec

pytestmark = pytest.mark.slow

ASKED = {"model": "gpt-micro", "cluster": "local-cpu", "nodes": 1}
SPEEDS = {"peak_flops": {"float32": 1e12}, "memory_bandwidth_bytes_per_s": 1e11}
LINK = {"latency_s": 1e-6, "bandwidth_bytes_per_s": 1e10}
KNOWN = {"preset": "local-cpu", "device": SPEEDS, "node_link": LINK, "network_link": LINK}


@pytest.fixture(scope="module")
def finished(shared_over):
    return shared_over(cluster=KNOWN)


@pytest.mark.parametrize(("nodes", "answer"), [(1, best_measured), (2, best_projected)], ids=["measured", "projected"])
def test_an_answer_is_that_of_the_command_line(shared_client, finished, nodes, answer):
    response = shared_client.get("/v1/recommendations", params=ASKED | {"nodes": nodes})
    assert response.status_code == 200, response.text
    service = shared_client.app.state.service
    records = CampaignRecords(service.store.campaigns(limit=MAX_CAMPAIGNS), service.store.trials)
    told = response.json()
    assert told == plain(answer(LaunchQuestion(**ASKED | {"nodes": nodes}), records))
    assert (told["measured"], told["standing"]) == ((True, "measured") if nodes == 1 else (False, "projected"))
    if nodes == 1:
        best = shared_client.get(f"/v1/campaigns/{finished}/best").json()["recommendation"]["setting"]
        assert told["plan"] == best["plan"]
        assert told["measured_with"] == best["measured_with"]
    else:
        assert told["sources"][0]["differs"] == ["1 nodes, asked for 2"]
        assert told["p_fits"] is not None
    document = shared_client.app.openapi()
    schema = document["components"]["schemas"]["BestKnown"]
    jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(told)


def test_a_shell_gets_lines_of_safe_characters(shared_client, finished):
    response = shared_client.get("/v1/recommendations", params=ASKED | {"format": "env"})
    assert response.headers["content-type"].startswith("text/plain")
    lines = response.text.splitlines()
    assert all(re.fullmatch(r"MESHTUNE_[A-Z_]+=[A-Za-z0-9_.:/-]+", line) for line in lines)
    assert "MESHTUNE_MEASURED=1" in lines
    projected = shared_client.get("/v1/recommendations", params=ASKED | {"nodes": 2, "format": "env"})
    assert "MESHTUNE_MEASURED=0" in projected.text.splitlines()


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"model": "gpt-mikro"}, "did you mean 'gpt-micro'?"),
        ({"cluster": "local-cpus"}, "did you mean 'local-cpu'?"),
        ({"cluster": "frontier"}, "nothing was measured on MI250X-GCD-64GB; measured: cpu-process"),
        ({"nodes": 1024}, "10.0 doublings away"),
        ({"simulated": True}, "measured: nothing"),
    ],
)
def test_nothing_near_is_a_404_that_says_what_is_known(shared_client, problem, finished, over, words):
    response = shared_client.get("/v1/recommendations", params=ASKED | over)
    assert words in problem(response, 404, "/problems/nothing-known")["detail"]


def test_more_nodes_than_a_cluster_may_have_are_told():
    with pytest.raises(NothingKnown, match="no cluster is that large: nodes"):
        best_measured(LaunchQuestion(**ASKED | {"nodes": 2**31 - 1}), CampaignRecords([], lambda _: []))


@pytest.mark.parametrize(
    "over",
    [
        {"nodes": 0},
        {"nodes": 2**31 - 1},
        {"global_batch_size": 0},
        {"software": "torch"},
        {"software": "torch=2;rm"},
        {"format": "yaml"},
        {"model": ""},
    ],
    ids=str,
)
def test_a_malformed_question_is_refused_with_its_place(shared_client, problem, over):
    found = problem(shared_client.get("/v1/recommendations", params=ASKED | over), 422, "/problems/malformed-request")
    assert {entry["pointer"] for entry in found["errors"]} == {f"/query/{name}" for name in over}


def test_the_software_of_a_question_counts(shared_client, finished):
    response = shared_client.get("/v1/recommendations", params=ASKED | {"software": "torch=2.13,cuda=13.0"})
    assert response.json()["measured"] is False
    assert "torch unknown, asked for 2.13" in response.json()["sources"][0]["differs"]


BARE = {"name": "bare", "kind": "cuda", "memory_bytes": 2**34}
FAST = BARE | {"peak_flops": {"float32": 1e13}, "memory_bandwidth_bytes_per_s": 1e12}


def one_device(device):
    return {"name": "one", "nodes": 1, "devices_per_node": 1, "device": device}


@pytest.mark.parametrize("device", [BARE, FAST], ids=["without speeds", "with speeds"])
def test_an_estimate_is_the_quote_of_the_command_line_and_starts_nothing(client, app, spec, device):
    spec |= {"cluster": one_device(device), "baseline": None, "runner": "local"}
    response = client.post("/v1/estimates", json=spec)
    assert response.status_code == 200, response.text
    quote = make_quote(*read_spec(spec, None), Basis())
    assert response.json() == plain(quote)
    assert bool(response.json()["missing"]) == (device is BARE)
    document = app.openapi()
    schema = document["components"]["schemas"]["Quote"]
    jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(response.json())
    assert client.get("/v1/campaigns").json()["campaigns"] == []


def test_a_spec_with_mistakes_is_refused_with_all_of_them(client, spec, problem):
    found = problem(client.post("/v1/estimates", json=spec | {"seed": -1, "serach": 1}), 422, "/problems/invalid-spec")
    assert {entry["pointer"] for entry in found["errors"]} == {"/seed", "/serach"}


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


DEVICE = {
    "name": "fast",
    "kind": "cuda",
    "memory_bytes": 2**34,
    "peak_flops": {"float32": 1e13},
    "memory_bandwidth_bytes_per_s": 1e12,
}
SURE = Calibration(UNCALIBRATED.constants, UNCALIBRATED.covariance / 100, time_log_sd=0.05, times=5, memories=5)


@pytest.fixture
def calibrated(service, spec):
    """Calibrations of ann, and of the command line; the spec is of their device and training code."""
    cluster = {"name": "one", "nodes": 1, "devices_per_node": 1, "device": DEVICE}
    spec |= {"cluster": cluster, "baseline": None, "runner": "local"}
    known, _ = read_spec(spec, None)
    for campaign, owner, at in (("of-ann", "ann", 1.0), ("of-the-site", "", 2.0)):
        service.store.calibrations.keep(
            StoredCalibration(
                campaign=campaign,
                created_at=at,
                **asdict(key_of(known)),
                version="torch 2.5.1",
                model="gpt-micro",
                cluster="one",
                devices=1,
                trials=5,
                described=known.cluster.device,
                calibration=SURE,
                owner=owner,
            )
        )
    return spec


def test_the_newest_comes_first_with_every_constant(client, app, calibrated):
    found = client.get("/v1/calibrations").json()["calibrations"]
    assert [one["campaign"] for one in found] == ["of-the-site", "of-ann"]
    assert (found[1]["device"], found[1]["version"], found[1]["trials"]) == ("fast", "torch 2.5.1", 5)
    assert found[1]["created_at"] == "1970-01-01T00:00:01Z"
    assert [one["name"] for one in found[0]["constants"]] == list(CONSTANTS)
    assert all(one["log_sd"] == pytest.approx(one["default_log_sd"] / 10) for one in found[0]["constants"])
    document = app.openapi()
    schema = document["components"]["schemas"]["CalibrationView"]
    jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(found[0])
    assert len(client.get("/v1/calibrations?limit=1").json()["calibrations"]) == 1


def test_a_token_lists_and_uses_its_own(client, service, calibrated):
    ann = new_token(service.store, "ann", Scope.READ, Scope.COMMAND)
    bob = new_token(service.store, "bob", Scope.READ, Scope.COMMAND)
    for header, known in ((ann, ["of-ann"]), (bob, [])):
        found = client.get("/v1/calibrations", headers=header).json()["calibrations"]
        assert [one["campaign"] for one in found] == known
        bodies = {"why": {"spec": calibrated, "plan": {"tp": 1}}, "nodes": {"spec": calibrated, "nodes": [1]}}
        paths = {"/v1/estimates": calibrated, "/v1/spaces/why": bodies["why"], "/v1/projections": bodies["nodes"]}
        for path, body in paths.items():
            basis = client.post(path, json=body, headers=header).json()["basis"]
            assert (basis["anchor"] or {}).get("campaign") == next(iter(known), None)
            assert basis["calibrated"] is bool(known)
            assert basis["error_factor"] > 1


def test_the_site_s_is_the_newest_for_who_reads_all(client, calibrated):
    basis = client.post("/v1/estimates", json=calibrated).json()["basis"]
    assert basis["anchor"]["campaign"] == "of-the-site"
    assert basis["anchor"]["created_at"] == "1970-01-01T00:00:02Z"
    assert "of of-the-site (1970-01-01 00:00 UTC, 5 trials of gpt-micro" in basis["words"]
    dry = client.post("/v1/campaigns?dry_run=true", json=calibrated).json()["basis"]
    assert dry["anchor"] == basis["anchor"]
