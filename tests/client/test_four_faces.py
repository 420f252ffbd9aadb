"""REST, the client (blocking and with asyncio), the command line on a service and the tools of an agent agree.

A table says by what each operation is reached. Every entry is called on a real service, whose log is the witness. A
token without `launch` starts and changes nothing by any of them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from agent_lab import Refusal, talk
from client_specs import SPEC
from command_lab import run_meshtune
from service_lab import ServiceLab

from meshtune import AsyncClient, Client
from meshtune.tuner.client.errors import NotAllowed

# Nobody measures what it asks for, so that it stays as it is.
LIVE = SPEC | {"name": "live", "workload": "torch", "runner": "external", "cluster": "local-cpu", "confirm": 0}
PAUSED = SPEC | {"name": "paused", "runner": {"kind": "simulated", "seconds_per_trial": 0.5}, "confirm": 0}
# With a budget of device-hours, as an agent has to state it.
STATED = SPEC | {"name": "stated", "budget": {"trials": 3, "device_hours": 1.0}, "confirm": 0}
LAUNCH = "torchrun --nproc-per-node 8 train.py --batch-size 4"
PLAN = "tp=2,mbs=2"
HELD = "the package holds the same"
PROGRAMS = "a program's loop, which a person or an agent does not type"


@dataclass(frozen=True)
class Row:
    """client: a call, of the client and what the calls before it gave, by operation and by name of a campaign. command,
    tool: words, and a tool with its arguments, of which capitals are campaigns. Or the reason that there is none. by:
    the operation that a command asks for it, where that is another."""

    client: Callable[[Any, Any], Any] | str
    command: str
    tool: tuple[str, dict[str, Any]] | str
    by: str = ""


ONE_CAMPAIGN = "an agent works on one campaign at a time: best and why have it"
PERSON = "a person decides that"
SMALL = "too large for an agent: best, why and export have what matters"
TABLE: Mapping[str, Row] = {
    "whoami": Row(lambda c, s: c.whoami(), "-: the token is at hand", ("create_campaign", {"spec": "STATED"})),
    "judge_fit": Row(
        lambda c, s: c.fit("gpt-micro", on="8xH100"),
        "-: `fit` computes here",
        ("fit", {"model": "gpt-micro", "on": "8xH100"}),
    ),
    "import_script": Row(
        lambda c, s: c.import_script(LAUNCH),
        "-: `import` reads files of this machine",
        ("import_launch", {"script": LAUNCH}),
    ),
    "estimate_campaign": Row(lambda c, s: c.estimate(SPEC), "estimate SPEC", ("estimate", {"spec": "SPEC"})),
    "explain_plan_of_spec": Row(
        lambda c, s: c.why(SPEC, PLAN), f"estimate SPEC --why {PLAN}", ("why_not", {"spec": "SPEC", "plan": PLAN})
    ),
    "project_spec": Row(lambda c, s: c.project(SPEC, nodes=[1, 2]), "project SPEC --nodes 1,2", ONE_CAMPAIGN),
    "create_campaign": Row(
        lambda c, s: c.create(STATED), "run STATED", ("create_campaign", {"spec": "STATED", "go": "GO"})
    ),
    "list_campaigns": Row(lambda c, s: c.brief(limit=3), "show --all", ("campaigns", {})),
    "get_campaign": Row(lambda c, s: c.campaign(s["DONE"].id), "show DONE", ("follow", {"campaign": "DONE"})),
    "list_events": Row(lambda c, s: s["DONE"].events(), "run STATED", ("follow", {"campaign": "DONE"})),
    "stream": Row("follow: see the test of the client", "run STATED", "follow reads events: an answer has to end"),
    "get_record": Row(lambda c, s: s["DONE"].record(), "show DONE", SMALL),
    "best_trials": Row(lambda c, s: s["DONE"].best(3), "best DONE", ("best", {"campaign": "DONE"}), by="get_record"),
    "analyse_campaign": Row(lambda c, s: s["DONE"].analysis(), "analyze DONE", ("why", {"campaign": "DONE"})),
    "explain_plan": Row(
        lambda c, s: s["DONE"].why({"tp": 2, "micro_batch_size": 2}),
        "-: `estimate --why` asks of a spec",
        ("why_not", {"campaign": "DONE", "plan": PLAN}),
    ),
    "project_campaign": Row(lambda c, s: s["DONE"].projection([1, 2]), "project DONE --nodes 1,2", ONE_CAMPAIGN),
    "export_campaign": Row(
        lambda c, s: s["DONE"].export("json"),
        "export DONE -o FOLDER --format json",
        ("export", {"campaign": "DONE", "format": "json"}),
        by="get_record",
    ),
    "compare_campaigns": Row(
        lambda c, s: c.compare([s["DONE"].id, s["LIVE"].id]), "diff DONE LIVE", ONE_CAMPAIGN, by="get_record"
    ),
    "compare_trials": Row(lambda c, s: s["DONE"].compare_trials([0, 1]), "diff DONE/0 DONE/1", SMALL, by="get_record"),
    "get_recommendation": Row(
        lambda c, s: c.recommend(model="gpt-micro", cluster="dgx-h100", nodes=1, simulated=True),
        "recommend --model gpt-micro --cluster dgx-h100 --nodes 1 --simulated",
        ONE_CAMPAIGN,
    ),
    "pareto_front": Row(lambda c, s: s["DONE"].pareto(), "best DONE", SMALL, by="get_record"),
    "list_trials": Row(lambda c, s: s["DONE"].trials(limit=2), "show DONE", SMALL, by="get_record"),
    "get_trial": Row(lambda c, s: s["DONE"].trial(0), "show DONE --trial 0", SMALL, by="get_record"),
    "get_job": Row(
        lambda c, s: s["DONE"].job(0),
        "-: `export --format job`",
        ("export", {"campaign": "DONE", "format": "job"}),
        by="export_campaign",
    ),
    "list_trial_logs": Row(lambda c, s: s["DONE"].logs(0), "-: `show --trial` has the end of the log", SMALL),
    "read_trial_log": Row("see the test of logs", "-: `show --trial` has the end of the log", SMALL),
    "get_data": Row(lambda c, s: s["DONE"].data(), "export-data DONE", SMALL, by="get_record"),
    "get_report": Row(
        lambda c, s: s["DONE"].report(s["FOLDER"] / "one.html"), "report DONE -o FOLDER.html", SMALL, by="get_record"
    ),
    "spec_as_written": Row(lambda c, s: s["DONE"].spec(), "-: the file that was run", SMALL),
    "clone_campaign": Row(lambda c, s: s["DONE"].clone({"name": "clone"}), "-: `run` of the spec", PERSON),
    "change_campaign": Row(lambda c, s: s["LIVE"].update(notes="seen"), "edit LIVE --notes seen", PERSON),
    "pause_campaign": Row(lambda c, s: s["LIVE"].pause(), "pause LIVE", PERSON),
    "enqueue_trial": Row(lambda c, s: s["LIVE"].enqueue(PLAN), f"enqueue LIVE {PLAN}", PERSON),
    "resume_campaign": Row(lambda c, s: s["PAUSED"].resume(), "resume PAUSED", PERSON),
    "rerun_trial": Row(lambda c, s: s["DONE"].rerun(0), "rerun DONE 0", PERSON),
    "revalidate_campaign": Row(lambda c, s: s["DONE"].revalidate(), "revalidate DONE", PERSON, by="rerun_trial"),
    "cancel_campaign": Row(lambda c, s: s["DOOMED"].cancel(), "cancel DOOMED", PERSON),
    "delete_campaign": Row(lambda c, s: s["OVER"].delete(), "delete OVER --yes", PERSON),
    "suggest_trials": Row(lambda c, s: s["ASKED"].suggest(worker="w"), f"-: {PROGRAMS}", PROGRAMS),
    "heartbeat_trial": Row(lambda c, s: s["ASKED"].heartbeat(s["HELD"]), f"-: {PROGRAMS}", PROGRAMS),
    "complete_trial": Row(
        lambda c, s: s["ASKED"].complete(s["HELD"], step_times_s=[1.0, 1.1, 1.0]),
        f"-: {PROGRAMS}",
        PROGRAMS,
    ),
    **dict.fromkeys(
        ("list_presets", "get_model_preset", "get_cluster_preset", "list_knobs", "list_examples", "get_registry"),
        Row(HELD, f"-: {HELD}", HELD),
    ),
    **dict.fromkeys(
        ("list_runners", "list_calibrations"), Row("view.trouble and basis", "-: of the service's own", SMALL)
    ),
    **dict.fromkeys(
        ("campaign_space", "count_space"), Row("estimate has it", "-: `spaces` counts here", "estimate has it")
    ),
    **dict.fromkeys(
        ("export_trial", "archive_trial", "archive_campaign"),
        Row("export(format, trial)", "-: `export --trial`", "export has it"),
    ),
    "list_audit": Row("for what collects logs", "-: of the service's own", "of the service's own"),
    "report_result": Row("of jobs", "-: of jobs", "of jobs"),
    **dict.fromkeys(
        ("live", "ready", "read_metrics"), Row("for what watches a service", "-: of monitors", "of monitors")
    ),
}
CAMPAIGNS = {"PAUSED": PAUSED, "DONE": SPEC, "OVER": SPEC, "LIVE": LIVE, "DOOMED": LIVE, "ASKED": LIVE}
# Of a refusal, in its words.
SCOPE = "needs the scope"
SPECS = {name: yaml.safe_dump(spec) for name, spec in {"SPEC": SPEC, "STATED": STATED}.items()}


class Blocking:
    """A face: the service as a token reaches it in one way. ids: of campaigns, by the names of the table."""

    def __init__(self, url: str, token: str, ids: Mapping[str, str], folder: Path) -> None:
        self.url, self.token, self.ids, self.folder = url, token, ids, folder
        self.client: Any = self.opened()
        self.given: dict[str, Any] = {"FOLDER": folder, "HELD": SimpleNamespace(trial=0, claim="none")}

    def opened(self) -> Any:
        return Client(self.url, self.token)

    def got(self, answer: Any) -> Any:
        return answer

    def has(self, row: Row) -> bool:
        return callable(row.client)

    def of(self, id: str, row: Row) -> str:
        """The operation that an entry of the table asks for."""
        return id

    def allowed(self, row: Row) -> bool:
        """Call it; whether the token allows that."""
        assert callable(row.client)
        for name in CAMPAIGNS.keys() - self.given.keys():
            self.given[name] = self.got(self.client.campaign(self.ids[name]))
        try:
            answer = self.got(row.client(self.client, self.given))
        except NotAllowed:
            return False
        if row is TABLE["suggest_trials"]:
            self.given["HELD"] = answer.suggestions[0]
        return True

    def walk(self, rows: Mapping[str, Row], after: Callable[[str, bool], None]) -> None:
        """Call each, and then `after` with whether the token allowed it."""
        for id, row in rows.items():
            after(id, self.allowed(row))

    def close(self) -> None:
        self.got(self.client.close())


class WithAsyncio(Blocking):
    def opened(self) -> Any:
        self.runner = asyncio.Runner()
        return AsyncClient(self.url, self.token)

    def got(self, answer: Any) -> Any:
        async def awaited() -> Any:
            return await answer

        return self.runner.run(awaited())

    def close(self) -> None:
        super().close()
        self.runner.close()


class Command(Blocking):
    def has(self, row: Row) -> bool:
        return not row.command.startswith("-")

    def of(self, id: str, row: Row) -> str:
        return row.by or id

    def allowed(self, row: Row) -> bool:
        words = row.command.replace("FOLDER", str(self.folder / "out"))
        for name, id in self.ids.items():
            words = words.replace(name, id)
        for name, text in SPECS.items():
            (self.folder / f"{name}.yaml").write_text(text)
            words = words.replace(name, f"{name}.yaml")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MESHTUNE_TOKEN", self.token)
            patch.setenv("MESHTUNE_SERVER", self.url)
            done = run_meshtune(self.folder, *words.split())
        refused = done.code == 2 and SCOPE in done.err
        assert refused or done.code == 0, (words, done)
        return not refused


class Agent(Blocking):
    def has(self, row: Row) -> bool:
        return not isinstance(row.tool, str)

    def of(self, id: str, row: Row) -> str:
        return row.by if row.by in ("export_campaign",) else id

    def walk(self, rows: Mapping[str, Row], after: Callable[[str, bool], None]) -> None:
        """In one session."""
        texts = {**self.ids, **SPECS}

        async def script(call: Any) -> None:
            for id, row in rows.items():
                tool, arguments = row.tool
                named = {name: texts.get(value, value) for name, value in arguments.items()}
                allowed = True
                try:
                    if "go" in named:
                        named["go"] = (await call(tool, spec=named["spec"]))["go"]
                    await call(tool, **named)
                except Refusal as error:
                    allowed = SCOPE not in str(error)
                    if allowed:
                        raise
                after(id, allowed)

        talk(self.url, self.token, script)


FACES = (Blocking, WithAsyncio, Command, Agent)


class Witness:
    """A service whose log says which operation was asked for, with which token, and how that went."""

    def __init__(self, folder: Path) -> None:
        self.lab = ServiceLab(folder)
        self.lab.start("--log-format", "json")
        paths = self.lab.call("GET", "/openapi.json")["paths"]
        self.operations = {
            operation["operationId"]: (method.upper(), path, operation)
            for path, methods in paths.items()
            for method, operation in methods.items()
        }

    def asked(self, token: str) -> list[tuple[str, int]]:
        """Operations and statuses, in order."""
        named = {(method, path): id for id, (method, path, _) in self.operations.items()}
        lines = [json.loads(line) for line in self.lab.log.read_text().splitlines() if line.startswith("{")]
        return [
            (named[(line["method"], line["route"])], line["status"])
            for line in lines
            if line.get("token") == token and (line["method"], line["route"]) in named
        ]

    def changing(self) -> set[str]:
        """The operations for which the document asks for more than to read."""
        scopes = {
            id: {scope for each in operation.get("security", ()) for scope in each.get("token", ())}
            for id, (_, _, operation) in self.operations.items()
        }
        return {id for id, named in scopes.items() if named & {"launch", "admin"}}

    def campaigns(self) -> dict[str, tuple[str, int, str, int]]:
        """State, number of trials, version of each, and how many jobs it has out."""
        rows = self.lab.call("GET", "/v1/campaigns?page_size=500")["campaigns"]
        return {
            row["id"]: (row["state"], sum(row["trials"].values()), row["version"], row["summary"]["in_flight"])
            for row in rows
        }


@pytest.fixture(scope="module")
def witness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Witness]:
    made = Witness(tmp_path_factory.mktemp("faces"))
    yield made
    made.lab.__exit__()


def created(witness: Witness, token: str) -> dict[str, str]:
    """The ids of its campaigns, of which DONE and OVER are over, and no other changes by itself."""
    sent = {"authorization": f"Bearer {token}"}
    ids = {}
    for name, spec in CAMPAIGNS.items():
        ids[name] = witness.lab.call("POST", "/v1/campaigns", spec, **sent)["id"]
        if name == "PAUSED":
            witness.lab.call("POST", f"/v1/campaigns/{ids[name]}:pause", **sent)
    for name in ("DONE", "OVER"):
        witness.lab.wait_state(ids[name], "completed")
    for name in ("LIVE", "DOOMED", "ASKED"):
        witness.lab.wait(lambda id=ids[name]: witness.campaigns()[id][1] == 1, 60)
    witness.lab.wait(lambda: not witness.campaigns()[ids["PAUSED"]][3], 60)
    return ids


def test_the_table_has_every_operation(witness):
    assert TABLE.keys() == witness.operations.keys()


@pytest.mark.parametrize("kind", FACES)
def test_every_entry_reaches_its_operation(witness, tmp_path, kind):
    token = witness.lab.new_token(kind.__name__, "read:all", "launch", "admin")
    face = kind(witness.lab.url, token, created(witness, token), tmp_path)
    seen, missed = len(witness.asked(kind.__name__)), []

    def after(id: str, allowed: bool) -> None:
        """The log has a request a moment after its answer."""
        nonlocal seen
        expected, end = face.of(id, TABLE[id]), time.monotonic() + 5
        while not any(one == expected and status < 400 for one, status in witness.asked(kind.__name__)[seen:]):
            if not allowed or time.monotonic() > end:
                missed.append((id, witness.asked(kind.__name__)[seen:]))
                break
        seen = len(witness.asked(kind.__name__))

    face.walk({id: row for id, row in TABLE.items() if face.has(row)}, after)
    face.close()
    assert missed == []


@pytest.mark.parametrize("kind", FACES)
def test_a_token_that_reads_starts_and_changes_nothing(witness, tmp_path, kind):
    owner = witness.lab.new_token(f"owner-{kind.__name__}", "read", "launch")
    ids = created(witness, owner)
    face = kind(witness.lab.url, witness.lab.new_token(f"reader-{kind.__name__}", "read:all"), ids, tmp_path)
    before = {id: found for id, found in witness.campaigns().items() if id in ids.values()}
    count, passed = len(witness.campaigns()), []
    rows = {id: row for id, row in TABLE.items() if face.has(row) and id in witness.changing()}
    face.walk(rows, lambda id, allowed: passed.append(id) if allowed else None)
    face.close()
    assert passed == []
    after = witness.campaigns()
    assert {id: after[id] for id in before} == before
    assert len(after) == count


def test_the_figures_of_a_campaign_are_the_same_by_all_four(witness, tmp_path):
    token = witness.lab.new_token("same", "read", "launch")
    ids = created(witness, token)
    best = witness.lab.call("GET", f"/v1/campaigns/{ids['DONE']}/best", authorization=f"Bearer {token}")
    expected = [(one["plan_key"], one["objective"]["value"]) for one in best["best"][:3]]
    assert len(expected) == 3
    with Client(witness.lab.url, token) as client:
        of_client = client.campaign(ids["DONE"]).best(3).best
    assert [(one.plan_key, one.objective.value) for one in of_client] == expected

    async def awaited() -> Any:
        async with AsyncClient(witness.lab.url, token) as client:
            return (await (await client.campaign(ids["DONE"])).best(3)).best

    assert asyncio.run(awaited()) == of_client
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MESHTUNE_TOKEN", token)
        printed = run_meshtune(tmp_path, "best", ids["DONE"], "--top", "3", "--json", "--server", witness.lab.url)
    of_command = json.loads(printed.out)["best"]
    assert [(one["plan_key"], one["objective"]["value"]) for one in of_command] == expected

    async def script(call: Any) -> Any:
        return await call("best", campaign=ids["DONE"])

    of_agent = talk(witness.lab.url, token, script)["best"]
    assert [(one["plan_key"], pytest.approx(one["objective"]["value"], rel=1e-3)) for one in of_agent[:3]] == expected
