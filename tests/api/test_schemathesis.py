"""Generated requests to every operation of the OpenAPI document are answered as the document says, and never by a 5xx.

Few for each operation, always the same; in the long form many, and others each time.
"""

from collections.abc import Callable
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from meshtune.runners.registry import RUNNERS

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
FEW = settings(max_examples=4, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
# Longer ones httpx does not send.
MAX_URL = 65_536
MANY = settings(FEW, max_examples=200, derandomize=False)


@pytest.fixture
def known(create, drive, service, client, monkeypatch) -> dict[str, Any]:
    """What a path may name that is there: of a campaign that has ended, with a log."""
    monkeypatch.setitem(RUNNERS, "local", RUNNERS["instant"])  # the schema names the registered runners only
    id = create(budget={"trials": 4}, runner="local")
    drive(id)
    job = service.store.trial(id, 0).last.job_name
    (service.home.job(id, job) / "rank-0.log").write_text("step 1\nstep 2\n")
    return {"campaign_id": id, "number": 0, "attempt": 1, "format": "job"}


def operations(app) -> list[Any]:
    """All but the stream, which does not end; what deletes comes last."""
    found = [one.ok() for one in schemathesis.openapi.from_dict(app.openapi()).get_all_operations()]
    return sorted((one for one in found if one.path != "/v1/stream"), key=lambda one: one.method == "delete")


def send(client: Any, case: Any) -> Any:
    kwargs = case.as_transport_kwargs(base_url="http://testserver")
    prepared = requests.Request(**{key: value for key, value in kwargs.items() if key != "timeout"}).prepare()
    assume(len(prepared.url) <= MAX_URL)
    headers = {key: value for key, value in prepared.headers.items() if key.lower() != "authorization"}
    return client.request(prepared.method, prepared.url, headers=headers, content=prepared.body)


def asked(operation: Any, client: Any, known: dict[str, Any], extent: settings) -> Callable[[], None]:
    """A test of one operation, with requests that keep its schema and some that do not."""
    good = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    bad = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)
    parts = bool(operation.body or operation.query or operation.path_parameters)

    @extent
    @given(st.data())
    def ask(data: st.DataObject) -> None:
        case = data.draw(bad if parts and data.draw(st.integers(0, 3)) == 0 else good)
        if data.draw(st.integers(0, 3)):
            case.path_parameters |= {key: known[key] for key in case.path_parameters if key in known}
            if "name" in case.path_parameters:
                case.path_parameters["name"] = "rank-0.log"
        case.validate_response(send(client, case), checks=CHECKS)

    return ask


@pytest.mark.parametrize(
    "extent",
    [
        pytest.param(FEW, marks=pytest.mark.slow),
        pytest.param(MANY, marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
    ],
    ids=["few", "many"],
)
def test_every_operation_answers_as_its_document_says(app, client, known, extent):
    failed = {}
    for operation in operations(app):
        try:
            asked(operation, client, known, extent)()
        except BaseException as error:  # all of them, not the first alone
            if isinstance(error, KeyboardInterrupt | pytest.fail.Exception):  # the latter: the time limit
                raise
            failed[f"{operation.method.upper()} {operation.path}"] = error
    assert not failed, "\n\n".join(f"{name}: {error}" for name, error in failed.items())
