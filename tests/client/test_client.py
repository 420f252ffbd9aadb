"""The client against a real service: what it reads, what it starts, what goes wrong and what then happens."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from bad_network import answering, proxy
from client_specs import SLOW, SPEC
from service_lab import ServiceLab
from service_process import free_port

from meshtune import AsyncClient, Client, ServiceError
from meshtune.runners.documents import plain
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.client import errors
from meshtune.tuner.client.errors import Outdated
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.results.views import best_view
from meshtune.tuner.service.ask_tell import Suggestion

ANSWERS = {
    "": lambda campaign: campaign.refresh(),
    "/best?top=3": lambda campaign: campaign.best(top=3),
    "/analysis": lambda campaign: campaign.analysis(),
    "/projection?nodes=1&nodes=2": lambda campaign: campaign.projection([1, 2]),
    "/space/why?tp=4&zero_stage=1": lambda campaign: campaign.why({"tp": 4, "zero_stage": 1}),
    "/trials/1": lambda campaign: campaign.trial(1),
    "/trials/1/job": lambda campaign: campaign.job(1),
    "/trial-comparison?trial=0&trial=3": lambda campaign: campaign.compare_trials([0, 3]),
    "/pareto": lambda campaign: campaign.pareto(),
    "/exports/megatron?trial=best&option=steps%3D7": lambda campaign: campaign.export("megatron", "best", steps=7),
    "/trials/3/exports/json": lambda campaign: campaign.export("json", trial=3),
}
# Operations without a method: docs/how-to/client.md has the reasons.
WITHOUT = {
    *("list_presets", "get_model_preset", "get_cluster_preset", "list_knobs", "list_examples", "get_registry"),
    *("list_runners", "list_calibrations", "list_audit", "campaign_space", "count_space", "export_trial"),
    *("archive_trial", "archive_campaign", "report_result", "live", "ready", "read_metrics"),
}
# Of methods that need some.
ARGUMENTS = {
    **{name: ["a"] for name in ("campaign", "import_script")},
    **{name: [SPEC] for name in ("create", "estimate", "project")},
    **{name: [1] for name in ("trial", "wait_trial", "complete", "rerun", "job", "logs")},
    "why": [{"tp": 1}],
    "enqueue": [{"tp": 1}],
    "clone": [{"seed": 2}],
    "compare": [["a", "b"]],
    "compare_trials": [[0, 1]],
    "export": ["json"],
    "log": [1, "rank-0.log"],
    "report": ["unwritten"],
    "heartbeat": [Suggestion(trial=1, claim="", plan=Plan(), plan_key="", knobs={}, arguments=(), time_limit_s=1.0)],
}
NAMED = {
    "extend": {"trials": 1},
    "complete": {"step_times_s": [1.0]},
    "recommend": {"model": "a", "cluster": "b", "nodes": 1},
    "fit": {"on": "8xH100"},
}
BUSY = (503, {"Retry-After": "1", "Content-Type": "application/problem+json"}, b"{}")


@pytest.mark.parametrize("path", ANSWERS)
def test_an_answer_is_read_back_into_the_value_that_it_was(service, client, done, path):
    value = ANSWERS[path](client.campaign(done))
    assert plain(value) == service.call("GET", f"/v1/campaigns/{done}{path}")


class FirstRequests:
    """In place of a connection: a call's answer is what it would ask first."""

    patience_s = 1.0

    def take(self, steps):
        return next(steps)

    def follow(self, follower):
        return follower.request


def test_every_operation_of_the_document_has_a_method_or_a_reason(service, client, done, monkeypatch):
    document = service.call("GET", "/openapi.json")["paths"]
    known = {
        (method.upper(), re.sub(r"\{\w+\}", "[^/:]+", path)): operation["operationId"]
        for path, operations in document.items()
        for method, operation in operations.items()
    }
    campaign, asked = client.campaign(done), set()
    for owner in (client, campaign):
        monkeypatch.setattr(owner, "_link", FirstRequests())
        for name in dir(owner):
            if name.startswith("_") or name in ("close", "plot") or not callable(getattr(owner, name)):
                continue
            given = [SPEC, "tp=1"] if owner is client and name == "why" else ARGUMENTS.get(name, [])
            request = getattr(owner, name)(*given, **NAMED.get(name, {}))
            asked |= {
                id
                for (method, path), id in known.items()
                if method == request.method and re.fullmatch(path, request.path)
            }
    assert asked.isdisjoint(WITHOUT)
    assert asked | WITHOUT == set(known.values())
    reasons = (Path(__file__).parents[2] / "docs/how-to/client.md").read_text()
    assert [name for name in WITHOUT if f"`{name}`" not in reasons] == []


def test_a_clone_is_a_campaign_with_changes(client, done):
    campaign = client.campaign(done).clone({"name": "cloned", "seed": 7}, key="clone-1")
    assert (campaign.view.name, campaign.record().campaign.spec.seed) == ("cloned", 7)
    assert client.campaign(done).clone({"name": "cloned", "seed": 7}, key="clone-1").id == campaign.id
    assert campaign.wait(limit_s=60).state == "completed"


def test_what_stands_beside_campaigns_is_read(service, client, done):
    other = client.create({**SPEC, "name": "beside", "seed": 2})
    assert other.wait(limit_s=60).state == "completed"
    query = f"campaign={done}&campaign={other.id}"
    assert plain(client.compare([done, other.id])) == service.call("GET", f"/v1/comparison?{query}")
    assert plain(client.whoami()) == service.call("GET", "/v1/whoami")
    body = {"spec": SPEC, "nodes": [1, 2], "plan": "tp=2"}
    assert plain(client.project(SPEC, nodes=[1, 2], plan="tp=2")) == service.call("POST", "/v1/projections", body)
    made = client.import_script("torchrun --nproc-per-node $N train.py --batch-size 4", name="own.sh", set={"N": "8"})
    assert yaml.safe_load(made.spec)["name"] == "own"


def test_logs_of_a_job_are_read(client):
    """Of a runner that has a folder."""
    spec = {**SPEC, "name": "logged", "runner": "local", "cluster": "local-cpu", "budget": {"trials": 1}, "confirm": 0}
    work = {
        "kind": "command",
        "framework": "nanotron",
        "command": ["python3", "-c", "print('hello')", "{grad_accum_steps}"],
    }
    campaign = client.create({**spec, "workload": work})
    campaign.wait(limit_s=60)
    logs = campaign.logs(0)
    assert "rank-0.log" in [log.name for log in logs]
    assert any("hello" in campaign.log(0, log.name) for log in logs)


def test_lists_are_whole_and_filters_are_the_services(service, client, done):
    campaign = client.campaign(done)
    every = service.call("GET", f"/v1/campaigns/{done}/trials?view=brief&page_size=1000")["trials"]
    assert [plain(trial) for trial in campaign.trials()] == every
    again = campaign.trials(origins=["confirmation"], sort="-number", limit=2)
    assert [trial.origin for trial in again] == ["confirmation"] * 2
    assert again[0].number > again[1].number
    events = campaign.events()
    assert [plain(event) for event in events] == service.call("GET", f"/v1/campaigns/{done}/events?page_size=1000")[
        "events"
    ]
    assert campaign.events(after=events[-3].id) == events[-2:]
    assert client.campaign(done).view in [one.view for one in client.campaigns(name="client", states=["completed"])]
    assert client.campaigns(name="nothing is called so") == []


def test_a_record_ranks_here_as_at_the_service(client, done):
    campaign = client.campaign(done)
    record = campaign.record()
    assert plain(best_view(record.campaign, rank(record.campaign, record.trials), 10)) == plain(campaign.best())


def test_asyncio_gets_the_same_answers(service, client, done):
    async def asked() -> list[object]:
        async with AsyncClient(service.url, service.token) as client:
            campaign = await client.campaign(done)
            answers = await asyncio.gather(
                *(campaign.best(), campaign.trials(), campaign.trial(3), campaign.record(), campaign.job(3)),
                *(campaign.compare_trials([0, 3]), campaign.export("json"), client.whoami()),
            )
            return [*answers, [event async for event in campaign.follow()]]

    campaign = client.campaign(done)
    told = [campaign.best(), campaign.trials(), campaign.trial(3), campaign.record(), campaign.job(3)]
    told += [campaign.compare_trials([0, 3]), campaign.export("json"), client.whoami()]
    told += [campaign.events()]
    assert asyncio.run(asked()) == told


def test_a_lost_answer_starts_no_second_campaign(service):
    with proxy(service.port) as way, Client(way.url, service.token) as client:
        way.lose = 2
        campaign = client.create({**SPEC, "name": "lost twice"})
        assert way.sent == [b"POST /v1/campaigns HTTP/1.1"] * 3
        assert [one.id for one in client.campaigns(name="lost twice")] == [campaign.id]


def test_a_key_of_ones_own_starts_one_campaign_however_often_it_is_asked(client):
    first, second = (client.create({**SPEC, "name": "keyed"}, key="night 7".replace(" ", "-")) for _ in range(2))
    assert first.id == second.id
    with pytest.raises(errors.InvalidRequest, match="another request"):
        client.create({**SPEC, "name": "other"}, key="night-7")


def test_what_may_be_done_twice_by_mistake_is_not_sent_twice(service, client):
    campaign = client.create(SPEC)
    campaign.wait()
    with proxy(service.port) as way, Client(way.url, service.token) as lossy:
        own = lossy.campaign(campaign.id)
        way.lose = 1
        with pytest.raises(errors.ServiceUnreachable) as lost:
            own.delete()
    assert lost.value.retryable
    assert len([line for line in way.sent if line.startswith(b"DELETE")]) == 1


def test_a_busy_service_is_asked_again_when_it_says(service, client, done):
    body = json.dumps(service.call("GET", f"/v1/campaigns/{done}")).encode()
    with answering(BUSY, BUSY, (200, {"Content-Type": "application/json"}, body)) as script:
        before = time.monotonic()
        with Client(script.url) as patient:
            assert patient.campaign(done).view == client.campaign(done).view
        assert time.monotonic() - before >= 2.0
    assert len(script.asked) == 3


def test_a_service_that_stays_away_is_told_after_the_patience(service):
    for url in (f"http://127.0.0.1:{free_port()}", None):
        with answering(BUSY) as script:
            before = time.monotonic()
            with (
                Client(url or script.url, patience_s=1.2) as hasty,
                pytest.raises(errors.ServiceUnreachable) as away,
            ):
                hasty.campaigns()
            assert time.monotonic() - before < 3.0
            assert away.value.retryable
            assert "GET /v1/campaigns" in str(away.value)


@pytest.mark.parametrize(
    "answer",
    [
        (200, {"Content-Type": "text/html"}, b"<html>Sign in</html>"),
        (404, {"Content-Type": "text/html"}, b"<html>"),
        (302, {"Location": "/login"}, b""),
        (200, {"Content-Type": "application/json"}, b'{"campaigns": [{"id": "of another version"}]}'),
    ],
)
def test_what_is_no_meshtune_of_this_version_is_named(answer):
    with (
        answering(answer) as script,
        Client(script.url) as misled,
        pytest.raises(errors.UnreadableAnswer, match="GET /v1/campaigns: "),
    ):
        misled.campaigns()


def test_each_refusal_has_its_kind_and_the_services_words(service, client, done):
    with pytest.raises(errors.NotFound, match="there is no campaign nobody"):
        client.campaign("nobody")
    with pytest.raises(errors.Conflict, match="completed"):
        client.campaign(done).pause()
    with pytest.raises(errors.InvalidRequest) as wrong:
        client.create({"model": "gpt-micro", "global_batch_size": 0})
    assert {mistake.pointer for mistake in wrong.value.mistakes} >= {"/cluster", "/global_batch_size"}
    assert all(mistake.pointer in str(wrong.value) for mistake in wrong.value.mistakes)
    with Client(service.url, "mt_none") as nobody, pytest.raises(errors.NotAuthenticated):
        nobody.campaigns()
    token = service.new_token("reader", "read")
    with Client(service.url, token) as reader, pytest.raises(errors.NotAllowed, match="launch"):
        reader.create(SPEC)
    assert not any(kind.retryable for kind in (errors.NotFound, errors.InvalidRequest, errors.NotAllowed))
    with pytest.raises(ServiceError, match="must begin with http"):
        Client("127.0.0.1:8000")


def test_url_and_token_come_from_the_environment(service, done, monkeypatch, tmp_path):
    monkeypatch.setenv("MESHTUNE_SERVER", f"{service.url}/")
    monkeypatch.setenv("MESHTUNE_TOKEN", service.token)
    with Client() as client:
        assert client.campaign(done).id == done
    (tmp_path / "token").write_text(f"{service.token}\n")
    monkeypatch.delenv("MESHTUNE_TOKEN")
    monkeypatch.setenv("MESHTUNE_TOKEN_FILE", str(tmp_path / "token"))
    with Client() as client:
        assert client.campaign(done).id == done
    (tmp_path / "token").write_bytes(b"\xff")
    with pytest.raises(ServiceError, match=r"MESHTUNE_TOKEN_FILE: .*token: .*codec"):
        Client()


def test_a_spec_is_a_document_a_text_or_a_file_with_what_it_names_beside_it(client, tmp_path):
    llama = {"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4}
    llama |= {"intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps(llama))
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump({**SPEC, "model": {"hf_config": "config.json", "seq_len": 64}}))
    for spec in (SPEC, yaml.safe_dump(SPEC), file, str(file)):
        quote = client.estimate(spec)
        assert quote.name == "client"
    assert quote.model != "gpt-micro"
    with pytest.raises(FileNotFoundError):
        client.create(tmp_path / "nothing.yaml")


def test_waiting_has_a_limit_and_the_campaign_goes_on(client):
    campaign = client.create(SLOW)
    with pytest.raises(TimeoutError, match=r"is running after 0\.5 s, and goes on"):
        campaign.wait(limit_s=0.5)
    assert campaign.cancel().state in ("cancelling", "cancelled")
    assert campaign.wait(limit_s=30).state == campaign.view.state == "cancelled"


def test_a_figure_is_drawn_from_what_the_service_has(client, done, tmp_path):
    campaign = client.campaign(done)
    for drawing in (campaign.plot.best(), campaign.plot.effects(), campaign.plot.heat_map("tp", "micro_batch_size")):
        assert drawing._repr_svg_().lstrip().startswith("<svg")
    saved: Path = campaign.plot.failures().save(tmp_path / "failures.pdf")
    assert saved.read_bytes().startswith(b"%PDF")


@pytest.fixture
def own_service(tmp_path: Path) -> ServiceLab:
    return ServiceLab(tmp_path)


def test_a_campaign_is_followed_through_a_restart_of_the_service_to_its_end(own_service):
    with own_service as service, Client(service.url, service.token) as client:
        campaign = client.create(SLOW | {"budget": {"trials": 3}})
        seen = []
        for event in campaign.follow():
            seen.append(event)
            if len(seen) == 4:
                service.kill()
                service.start()
        assert seen[-1].kind == "campaign.completed"
        assert seen == campaign.events()
        assert list(campaign.follow(after=seen[-3].id)) == seen[-2:]
        assert list(campaign.follow(after=seen[-1].id)) == []


@pytest.mark.long
def test_asyncio_follows_through_a_restart_too(own_service):
    async def followed(url: str, token: str) -> None:
        async with AsyncClient(url, token) as client:
            campaign = await client.create(SLOW | {"budget": {"trials": 6}})
            seen = []
            async for event in campaign.follow():
                seen.append(event)
                if len(seen) == 9:
                    await asyncio.to_thread(own_service.kill)
                    await asyncio.to_thread(own_service.start)
            assert seen == await campaign.events()

    with own_service:
        asyncio.run(followed(own_service.url, own_service.token))


def test_what_people_change_of_a_campaign_is_changed_and_a_finished_one_goes_on(client):
    text = f"# why: a paper\n{yaml.safe_dump(SPEC)}"
    campaign = client.create(text)
    assert campaign.wait(limit_s=60).state == "completed"
    assert campaign.spec() == text
    view = campaign.update(name="renamed", tags=["paper"], notes="the second try", trial={"time_limit_s": 777})
    assert (view.name, view.tags, view.notes) == ("renamed", ("paper",), "the second try")
    assert campaign.view == view
    assert campaign.record().campaign.spec.trial.limit_s == 777
    seen = campaign.events()[-1].id
    assert campaign.extend(trials=3).state == "running"
    followed = [event.kind for event in campaign.follow(after=seen)]
    assert followed[-1] == "campaign.completed"
    assert campaign.view.summary.budget.trials == 11
    first = campaign.trials(origins=["baseline", "search"])
    assert len(first) == 11
    with pytest.raises(ValueError, match="sets no limit of wall_time_s"):
        campaign.extend(wall_time_s=1)
    with pytest.raises(ValueError, match="a positive number"):
        campaign.extend()


def test_of_two_that_extend_at_once_none_is_lost_and_an_old_version_changes_nothing(service, client):
    campaign = client.create({**SPEC, "name": "extended by two"})
    campaign.pause()
    begun = campaign.refresh()
    together = threading.Barrier(4)

    def extend(number: int) -> None:
        with Client(service.url, service.token) as own:
            mine = own.campaign(campaign.id)
            together.wait(60)
            for _ in range(3):
                mine.extend(trials=number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(extend, range(1, 5)))
    assert campaign.refresh().summary.budget.trials == begun.summary.budget.trials + 3 * (1 + 2 + 3 + 4)
    with pytest.raises(Outdated, match=begun.version):
        campaign.update(notes="too late", version=begun.version)
    assert campaign.refresh().notes == ""
    assert campaign.update(notes="in time", version=campaign.view.version).notes == "in time"
    campaign.cancel()
    campaign.wait(limit_s=60)


def test_brief_campaigns_and_limits_of_numbers(client, done):
    campaign = client.campaign(done)
    [line] = [one for one in client.brief(states=["completed"], min_devices=1) if one.id == done]
    assert (line.version, line.done, line.gain) == (
        campaign.view.version,
        campaign.view.summary.done,
        campaign.view.summary.recommended.gain_over_baseline.value,
    )
    assert client.brief(created_before=campaign.view.created_at - timedelta(days=1)) == []
    assert client.campaigns(max_devices=0) == []
    measured = [one for one in campaign.trials(sort="step_time_s") if one.step_time_s is not None]
    middle = measured[len(measured) // 2].step_time_s
    assert campaign.trials(sort="step_time_s", at_most={"step_time_s": middle})[-1].step_time_s == middle
    assert campaign.trials(at_least={"mfu": 2.0}) == campaign.trials(finished_before="2020-01-01") == []


def test_a_plan_is_put_in_by_hand_and_measured_again(client):
    campaign = client.create({**SLOW, "name": "by hand"})
    trial = campaign.enqueue({"tp": 2, "pp": 2, "micro_batch_size": 1})
    assert (trial.origin, trial.plan.tp, trial.plan.pp) == ("enqueued", 2, 2)
    assert campaign.enqueue("tp2 pp1 mbs1 zero1").plan.zero_stage == 1
    assert campaign.wait_trial(trial.number, limit_s=60).state == "done"
    again = campaign.rerun(trial.number)
    assert (again.origin, again.plan) == ("confirmation", trial.plan)
    with pytest.raises(errors.InvalidRequest, match="/plan"):
        campaign.enqueue({"tp": 3})
    campaign.cancel()


def test_a_loop_of_ones_own_asks_for_plans_and_tells_how_they_went(client):
    campaign = client.create({**SPEC, "name": "own loop", "workload": "torch", "runner": "external", "confirm": 0})
    told = {}
    (lost,) = campaign.suggest(wait_s=10).suggestions
    assert campaign.complete(lost, verdict="lost").number == lost.trial
    while found := campaign.suggest(count=2, wait_s=10).suggestions:
        for one in found:
            if one.plan.tp == 8:
                trial = campaign.complete(one, verdict="oom", reason="rank 3: CUDA out of memory")
            else:
                step_s = 0.1 * one.plan.tp + 0.01 * one.plan.pp
                trial = campaign.complete(one.trial, step_times_s=[step_s, 1.01 * step_s, 0.99 * step_s])
            told[one.plan_key] = trial.verdict
    view = campaign.wait(limit_s=30)
    assert (view.state, len(told)) == ("completed", 8)
    assert {trial.plan_key: trial.verdict for trial in campaign.trials()} == told
    assert {trial.plan.tp for trial in campaign.trials(verdicts=["oom"])} <= {8}
    assert campaign.best().best[0].plan.tp == min(trial.plan.tp for trial in campaign.trials(verdicts=["ok"]))
