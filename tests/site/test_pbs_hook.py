"""PBS Pro's queuejob hook sample, with a stand-in for the module `pbs` that a server gives it; no PBS was at hand."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="the hook asks by curl, which is not on PATH")
SAMPLE = Path(__file__).parents[2] / "examples" / "site" / "pbs_hook.py"
ALONE = "meshtune: no recommendation, the job goes with its own defaults: "


class Accepted(SystemExit):
    """event.accept() ends a hook."""


class Server:
    """What a PBS server gives a hook of one job: its event, and a log. limit_s: how long the hook waits."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.log: list[str] = []
        self.limit_s = 60  # what answers is heard, however busy this machine is
        self.patch = monkeypatch
        (folder / "curl.conf").write_text('header = "Authorization: Bearer hush"\n')

    def configure(self, url: str, *, cluster: str = "") -> None:
        (self.folder / "site.conf").write_text(f"url = {url}\n" + (f"cluster = {cluster}\n" if cluster else ""))

    def queue(self, variables: dict[str, str] | None, select: str | None = "2:ncpus=8") -> dict[str, str] | None:
        """Run the hook on a job with these variables; return them as they are then."""
        pbs = ModuleType("pbs")

        def accept() -> None:
            raise Accepted

        job = SimpleNamespace(Variable_List=variables, Resource_List={"select": select})
        event = SimpleNamespace(job=job, accept=accept)
        pbs.event = lambda: event
        pbs.LOG_WARNING, pbs.LOG_DEBUG = 4, 7
        pbs.logmsg = lambda level, message: self.log.append(message)
        self.patch.setitem(sys.modules, "pbs", pbs)
        sample = SAMPLE.read_text()
        for name in ("site.conf", "curl.conf"):
            assert sample.count(f'"/etc/meshtune/{name}"') == 1
            sample = sample.replace(f"/etc/meshtune/{name}", str(self.folder / name))
        assert sample.count("LIMIT_S = 2\n") == 1
        (self.folder / "hook.py").write_text(sample.replace("LIMIT_S = 2\n", f"LIMIT_S = {self.limit_s}\n"))
        with pytest.raises(Accepted):
            runpy.run_path(str(self.folder / "hook.py"))
        return variables


@pytest.fixture
def server(tmp_path, monkeypatch) -> Server:
    return Server(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("select", "nodes"),
    [("2:ncpus=8", 2), ("ncpus=8", 1), ("4", 4), ("2:ncpus=8+1:ncpus=4", 3), ("2+ngpus=1", 3), (None, 1)],
)
def test_a_job_gets_the_best_known_plan_for_its_nodes(select, nodes, server, service):
    server.configure(service.url)
    variables = server.queue({"MESHTUNE_FOR": "llama3-8b@aurora", "OWN": "kept"}, select)
    assert service.asked == [f"/v1/recommendations?model=llama3-8b&cluster=aurora&nodes={nodes}&format=env"]
    assert service.tokens == ["Bearer hush"]
    found = {"MESHTUNE_TP": "4", "MESHTUNE_PP": "1", "MESHTUNE_SOURCE": "demo-1a2b3c/7"}
    assert variables == {"MESHTUNE_FOR": "llama3-8b@aurora", "OWN": "kept", **found}


def test_the_token_is_on_no_command_line(server, service, monkeypatch):
    ran = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **more: ran.append(command) or run(command, **more))
    server.configure(service.url, cluster="here")
    server.queue({"MESHTUNE_FOR": "m"})
    assert service.asked == ["/v1/recommendations?model=m&cluster=here&nodes=2&format=env"]
    assert service.tokens == ["Bearer hush"]
    assert "hush" not in str(ran)


@pytest.mark.parametrize("variables", [None, {}, {"OWN": "kept"}])
def test_other_jobs_are_left_alone(variables, server, service):
    server.configure(service.url)
    assert server.queue(variables) == variables
    assert (service.asked, server.log) == ([], [])


@pytest.mark.parametrize("wanted", ["", "m", "m@", "m@c;id", "m@c&simulated=true", "../m@c", "m@c\n", "m" * 101 + "@c"])
def test_a_hostile_or_half_wish_is_not_asked_for(wanted, server, service):
    server.configure(service.url)
    assert server.queue({"MESHTUNE_FOR": wanted}) == {"MESHTUNE_FOR": wanted}
    assert service.asked == []
    assert server.log[0].startswith(f"{ALONE}MESHTUNE_FOR must ")


@pytest.mark.parametrize(
    "answer",
    ["MESHTUNE_TP=4\nLD_PRELOAD=/tmp/evil.so\n", "MESHTUNE_TP=4,LD_PRELOAD=x\n", "MESHTUNE_TP=\n", "<html></html>\n"],
)
def test_an_answer_that_is_not_clean_is_not_used_at_all(answer, server, service):
    service.answer = answer
    server.configure(service.url)
    assert server.queue({"MESHTUNE_FOR": "m@c"}) == {"MESHTUNE_FOR": "m@c"}
    assert server.log == [f"{ALONE}{service.url} gave an answer that is not lines of MESHTUNE_NAME=value"]


def test_without_a_usable_service_a_job_goes_as_it_came(server, service):
    service.status = 404
    server.configure(service.url)
    server.queue({"MESHTUNE_FOR": "m@c"})
    server.configure("file:///etc/passwd")
    server.queue({"MESHTUNE_FOR": "m@c"})
    (server.folder / "site.conf").unlink()
    assert server.queue({"MESHTUNE_FOR": "m@c"}) == {"MESHTUNE_FOR": "m@c"}
    answered, named, read = server.log
    assert answered == f"{ALONE}{service.url} gave no answer within {server.limit_s} s: curl's exit status 22"
    assert named.endswith("site.conf names no url")
    assert "No such file" in read


@pytest.mark.slow
def test_a_slow_service_holds_the_server_up_for_two_seconds_at_most(server, service):
    service.pause_s = 60.0
    server.limit_s = 2
    server.configure(service.url)
    before = time.monotonic()
    assert server.queue({"MESHTUNE_FOR": "m@c"}) == {"MESHTUNE_FOR": "m@c"}
    assert time.monotonic() - before < 30.0
    (told,) = server.log
    # On a busy machine curl may not have noticed a second later.
    assert told.startswith(ALONE)
    assert f"{service.url} gave no answer within 2 s: curl's exit status 28" in told or "after 3 seconds" in told
