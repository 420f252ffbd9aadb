"""Whose campaign: the table of docs/how-to/access.md, over every route of the OpenAPI document, each scope and each
owner; and what a project, a clone and the audit log make of it."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx import Response
from new_tokens import new_token

from meshtune.api.openapi import SPEC_EXAMPLE
from meshtune.runners.registry import RUNNERS
from meshtune.tuner.access.tokens import Scope
from meshtune.tuner.service.driving.loop import Driver, drive_one
from meshtune.tuner.service.service import Service

pytestmark = pytest.mark.slow

R, A, L, C, ADMIN = Scope.READ, Scope.READ_ALL, Scope.LAUNCH, Scope.COMMAND, Scope.ADMIN
SCOPES = [{R}, {A}, {L}, {C}, {R, L}, {A, L}, {ADMIN}]
# In the name and the model of a campaign that some may not read.
SECRET = "hush"
SPEC: dict[str, Any] = {
    "name": SECRET,
    "model": {"preset": "gpt-micro", "name": SECRET},
    "cluster": "local-cpu",
    "global_batch_size": 16,
    "search": "random",
    # In the place of the runner of that name: a token needs `command` for others.
    "runner": "local",
    "budget": {"trials": 2},
    "confirm": 0,
    "warm_start": False,
}
NOTHING = "nothing-123456"


class Relation(StrEnum):
    OWNER = "owner"
    MEMBER = "member"
    GUEST = "guest"
    STRANGER = "stranger"


class Verb(StrEnum):
    READ = "read"
    CHANGE = "change"
    CLONE = "clone"
    DELETE = "delete"
    # Routes that name no campaign: the scope alone counts.
    COMPUTE = "compute"
    LIST = "list"
    CREATE = "create"
    AUDIT = "audit"


NEEDS = {
    Verb.READ: {R},
    Verb.COMPUTE: {R},
    Verb.LIST: {R},
    Verb.CHANGE: {L},
    Verb.CREATE: {L},
    Verb.CLONE: {R, L},
    Verb.DELETE: {ADMIN},
    Verb.AUDIT: {ADMIN},
}
PROJECTS = {Relation.MEMBER: {"llm"}, Relation.GUEST: {"llm:read"}, Relation.STRANGER: {"other"}}
# By the ids of operations. What a campaign is asked by the query, beside.
VERBS = {
    Verb.READ: """
        get_campaign list_events list_trials get_trial best_trials pareto_front analyse_campaign campaign_space
        explain_plan project_campaign get_job export_trial export_campaign list_trial_logs read_trial_log
        compare_campaigns stream get_recommendation compare_trials archive_trial archive_campaign get_record get_data
        get_report spec_as_written
    """,
    Verb.CHANGE: """
        pause_campaign resume_campaign cancel_campaign change_campaign enqueue_trial rerun_trial revalidate_campaign
        suggest_trials complete_trial heartbeat_trial
    """,
    Verb.CLONE: "clone_campaign",
    Verb.DELETE: "delete_campaign",
    Verb.LIST: "list_campaigns list_runners list_calibrations",
    Verb.CREATE: "create_campaign",
    Verb.AUDIT: "list_audit",
    Verb.COMPUTE: """
        whoami count_space estimate_campaign explain_plan_of_spec project_spec list_presets get_model_preset
        get_cluster_preset list_examples list_knobs get_registry
    """,
}
VERB_OF = {operation: verb for verb, operations in VERBS.items() for operation in operations.split()}
QUERY = {
    "compare_campaigns": "?campaign={id}&campaign={id}",
    "stream": "?campaign={id}",
    "get_recommendation": f"?simulated=false&model={SECRET}&cluster=local-cpu&nodes=1",
    "explain_plan": "?tp=1",
    "compare_trials": "?trial=0&trial=1",
}
PATH = {"number": "0", "attempt": "1", "name": "rank-0.log", "format": "job"}
PRESETS = {"get_model_preset": "gpt-micro", "get_cluster_preset": "local-cpu"}
# Jobs have tokens of their own, nobody's fit is asked, and an import is of no campaign: its scopes are in test_imports.
UNGUARDED = {"report_result", "judge_fit", "import_script"}


@dataclass(frozen=True)
class Caller:
    name: str
    relation: Relation
    scopes: frozenset[Scope]
    headers: dict[str, str]
    # The campaign that it has this relation to.
    campaign: str

    def has(self, scope: Scope) -> bool:
        return not self.scopes.isdisjoint({scope, ADMIN} | ({A} if scope is R else set()))

    @property
    def sees(self) -> bool:
        return self.relation is not Relation.STRANGER or self.has(A)

    def expected(self, verb: Verb) -> int:
        """403 or 404, or 0 for any other answer: the table."""
        if not all(map(self.has, NEEDS[verb])):
            return 403
        if verb in (Verb.COMPUTE, Verb.LIST, Verb.CREATE, Verb.AUDIT):
            return 0
        if not self.sees:
            return 404
        changes = self.relation in (Relation.OWNER, Relation.MEMBER) or self.has(ADMIN)
        return 0 if verb is Verb.READ or changes else 403


def header(service: Service, name: str, scopes: set[Scope], projects: set[str] = frozenset()) -> dict[str, str]:
    return new_token(service.store, name, *scopes, projects=frozenset(projects))


@pytest.fixture(scope="module")
def service(shared_client) -> Iterator[Service]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RUNNERS, "local", RUNNERS["instant"])
        yield shared_client.app.state.service


@pytest.fixture(scope="module")
def site(shared_client, service) -> TestClient:
    return TestClient(shared_client.app)


@pytest.fixture(scope="module")
def callers(service) -> list[Caller]:
    """Of each relation to a campaign that is over, with each set of scopes; ann's is shared by a project."""

    def over(owner: str, **changes: str) -> str:
        id = service.create(SPEC | changes, owner).id
        drive_one(Driver(service), service, id, lambda: None)
        job = service.store.trial(id, 0).last.job_name
        (service.home.job(id, job) / "rank-0.log").write_text(f"{SECRET}\n")
        return id

    shared = over("ann", project="llm")
    service.create(SPEC | {"project": "llm"}, "ann")  # active
    found = []
    for relation in Relation:
        for number, scopes in enumerate(SCOPES):
            name = f"{relation}-{number}"
            campaign = over(name) if relation is Relation.OWNER else shared
            headers = header(service, name, scopes, PROJECTS.get(relation, set()))
            found.append(Caller(name, relation, frozenset(scopes), headers, campaign))
    return found


@pytest.fixture(scope="module")
def operations(site) -> dict[str, tuple[str, str]]:
    """Method and path of every operation under /v1, by its id."""
    return {
        operation["operationId"]: (method.upper(), path)
        for path, methods in site.app.openapi()["paths"].items()
        if path.startswith("/v1/")
        for method, operation in methods.items()
    }


BODIES = {"enqueue_trial": {"plan": {"tp": 1}}, "complete_trial": {"verdict": "oom"}, "heartbeat_trial": {"claim": "x"}}


def ask(site: TestClient, operations: Any, operation: str, id: str, headers: dict[str, str]) -> Response:
    method, path = operations[operation]
    path += QUERY.get(operation, "")
    for name, value in {**PATH, "campaign_id": id, "id": id, "name": PRESETS.get(operation, PATH["name"])}.items():
        path = path.replace(f"{{{name}}}", value)
    body: Any = {} if method == "PATCH" else None
    if method == "POST":
        example = SPEC_EXAMPLE["demo"]["value"]
        body = {"explain_plan_of_spec": {"spec": example, "plan": {}}, "project_spec": {"spec": example}}.get(
            operation, example
        )
        changes = VERB_OF[operation] in (Verb.CLONE, Verb.CHANGE)
        body = BODIES.get(operation, {}) if changes else body
    return site.request(method, path, json=body, headers={**headers, "If-None-Match": '"mine"'})


def test_every_route_has_a_verb(operations):
    assert set(VERB_OF) == set(operations) - UNGUARDED


@pytest.mark.parametrize("operation", sorted(VERB_OF))
def test_a_route_does_as_the_table_says_for_each_scope_and_owner(site, operations, callers, operation):
    verb = VERB_OF[operation]
    for caller in callers:
        if verb is Verb.DELETE and caller.expected(verb) == 0:
            continue  # below
        response = ask(site, operations, operation, caller.campaign, caller.headers)
        case = (operation, caller, response.status_code, response.text)
        expected = caller.expected(verb)
        if expected:
            assert response.status_code == expected, case
            assert SECRET not in response.text.replace(f"{SECRET}-", "").replace(f"'{SECRET}'", ""), case
        elif operation == "stream":
            assert response.status_code == 503, case  # nothing reads the events here
        else:
            assert response.status_code in (200, 201, 202, 409), case
        if expected == 404 and operation != "get_recommendation":
            none = ask(site, operations, operation, NOTHING, caller.headers)
            assert response.text.replace(caller.campaign, NOTHING) == none.text, case
        if verb is Verb.COMPUTE:
            assert SECRET not in response.text, case


def test_who_may_delete_deletes_anybodys(site, operations, service, callers):
    for caller in callers:
        if caller.expected(Verb.DELETE) == 0:
            active = service.create(SPEC | {"project": "llm"}, "ann").id
            assert ask(site, operations, "delete_campaign", active, caller.headers).status_code == 409
            service.cancel(active)
            drive_one(Driver(service), service, active, lambda: None)
            assert ask(site, operations, "delete_campaign", active, caller.headers).status_code == 204


def test_a_list_holds_what_may_be_read_and_nothing_else(site, service, callers):
    """One URL for all: what is kept for one is not for another."""
    every = service.campaigns(limit=1000)
    for caller in (*callers, callers[0]):
        if not caller.has(R):
            continue
        shared = {project.removesuffix(":read") for project in PROJECTS.get(caller.relation, ())}
        mine = [each for each in every if caller.has(A) or each.owner == caller.name or each.spec.project in shared]
        page = site.get("/v1/campaigns?page_size=500", headers=caller.headers).json()
        assert [campaign["id"] for campaign in page["campaigns"]] == [each.id for each in mine]
        runners = site.get("/v1/runners", headers=caller.headers).json()["runners"]
        assert sum(runner["active_campaigns"] for runner in runners) == sum(each.state.active for each in mine)
        narrow = site.get("/v1/campaigns?project=llm&owner=ann&name=hush", headers=caller.headers).json()["campaigns"]
        assert [each["id"] for each in narrow] == [each.id for each in mine if each.owner == "ann"]


@pytest.fixture
def made(service) -> Iterator[Any]:
    """A token of a name that is made once more in each test."""
    names: list[str] = []

    def make(*scopes: Scope, projects: set[str] = frozenset()) -> dict[str, str]:
        names.append(f"made-{time.monotonic_ns()}")
        return header(service, names[-1], set(scopes), projects)

    yield make
    for name in names:
        service.store.access.revoke(name, time.time())


def test_a_campaign_is_put_into_a_project_by_those_who_share_it(site, made, problem):
    spec = SPEC | {"project": "llm"}
    for scopes, projects, allowed in (
        ((R, L), {"llm"}, True),
        ((ADMIN,), set(), True),
        ((R, L), {"llm:read"}, False),
        ((A, L), {"other"}, False),
    ):
        response = site.post("/v1/campaigns", json=spec, headers=made(*scopes, projects=projects))
        if allowed:
            assert (response.status_code, response.json()["project"]) == (201, "llm")
        else:
            assert "into the project llm" in problem(response, 403, "/problems/scope-missing")["detail"]
    told = problem(
        site.post("/v1/campaigns", json=spec | {"project": "a b"}, headers=made(ADMIN)), 422, "/problems/invalid-spec"
    )
    assert told["errors"][0]["pointer"] == "/project"


def test_a_clone_of_what_one_may_only_read_is_ones_own_outside_of_the_project(site, service, callers, made):
    guest = made(R, L, projects={"llm:read"})
    shared = next(caller.campaign for caller in callers if caller.relation is Relation.GUEST)
    assert site.post(f"/v1/campaigns/{shared}:clone", json={}, headers=guest).status_code == 403
    response = site.post(f"/v1/campaigns/{shared}:clone", json={"project": None}, headers=guest)
    clone = response.json()
    assert (response.status_code, clone["project"], clone["owner"][:5]) == (201, "", "made-")
    newest = service.store.access.audit(limit=100_000)[-1]
    assert (newest.object, newest.detail) == (clone["id"], f"of {shared}")


def test_who_may_launch_and_not_read_moves_its_campaign_and_gets_no_spec(site, made):
    blind = made(L, projects={"llm"})
    created = site.post("/v1/campaigns", json=SPEC, headers=blind)
    id = created.json()["id"]
    paused = site.post(f"/v1/campaigns/{id}:pause", headers=blind)
    assert [(answer.status_code, answer.json()["spec"]) for answer in (created, paused)] == [(201, {}), (200, {})]
    assert site.post(f"/v1/campaigns/{id}:clone", json={}, headers=blind).status_code == 403
