"""`meshtune ... --server`: the same commands, the same words, on a service in place of a home."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from client_specs import SLOW, SPEC
from command_lab import Result, run_meshtune
from service_lab import ServiceLab
from service_process import meshtune

from meshtune.tuner.client.errors import NotFound

Command = Callable[..., Result]


@pytest.fixture
def remote(service: ServiceLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command on the service, in a folder without a home."""
    monkeypatch.setenv("MESHTUNE_TOKEN", service.token)
    monkeypatch.setenv("MESHTUNE_SERVER", service.url)
    (tmp_path / "spec.yaml").write_text("# a comment\n" + yaml.safe_dump(SPEC))
    return lambda *words: run_meshtune(tmp_path, *words)


@pytest.fixture
def local(service: ServiceLab, tmp_path: Path) -> Command:
    """The command on the home that the service works on."""
    return lambda *words: run_meshtune(tmp_path, *words, "--server", "", "--home", service.home)


@pytest.mark.parametrize(
    "words",
    [
        ["show"],
        ["show", "--all"],
        ["show", "BEGIN"],
        ["show", "client"],
        ["show", "ID"],
        ["show", "ID", "--trial", "2"],
        ["show", "ID", "--trial", "99"],
        ["best", "ID"],
        ["best", "ID", "--json", "--top", "3"],
        ["analyze", "ID"],
        ["analyze", "ID", "--json"],
        ["project", "ID", "--nodes", "1,2"],
        ["project", "ID", "--json"],
        ["estimate", "spec.yaml"],
        ["estimate", "spec.yaml", "--json"],
        ["project", "spec.yaml", "--nodes", "1,2"],
        ["project", "spec.yaml", "--plan", "tp=2", "--json"],
        ["project", "nothing.yaml"],
        ["estimate", "gpt-micro", "--on", "8xH100"],
        ["estimate", "gpt-micro", "--on", "8xH100", "--seq", "512", "--json"],
        ["estimate", "gpt-micro", "--on", "8xH100", "--plan", "tp=8"],
        ["estimate", "spec.yaml", "--calibrate", "ID"],
        ["estimate", "spec.yaml", "--calibrate", "ID", "--plan", "tp=8"],
        ["diff", "ID", "ID/3"],
        ["diff", "ID/0", "ID/3", "--json"],
        ["diff", "ID/0", "ID/99"],
        ["diff", "ID/0", "nobody/1"],
        ["delete", "nobody"],
        ["estimate", "spec.yaml", "--plan", "tp=8,pp=2"],
        ["estimate", "spec.yaml", "--why", "tp8 pp2 mbs1 zero1"],
        ["best", "nobody"],
        ["export-data", "ID"],
        ["export-data", "ID", "--format", "json"],
        ["recommend", "--model", "gpt-micro", "--cluster", "dgx-h100", "--nodes", "1", "--simulated"],
        ["recommend", "--model", "gpt-micro", "--cluster", "dgx-h100", "--nodes", "2", "--simulated", "--json"],
        ["recommend", "--model", "gpt-micro", "--cluster", "dgx-h100", "--nodes", "1"],
        ["pause", "ID"],
        ["resume", "ID"],
        ["cancel", "ID"],
    ],
    ids=" ".join,
)
def test_a_command_says_the_same_of_a_service_as_of_its_home(done, remote, local, words):
    words = [word.replace("ID", done).replace("BEGIN", done[:-2]) for word in words]
    there, here = remote(*words), local(*words)
    assert there == here
    assert there.out or there.err


def test_an_export_is_the_same_wherever_the_campaign_is(done, remote, local, tmp_path):
    for command, folder in ((remote, "there"), (local, "here")):
        result = command("export", done, "-o", folder)
        assert result.code == 0, result.err
    there, here = (
        {path.name: path.read_text().replace(folder, "") for path in (tmp_path / folder).iterdir()}
        for folder in ("there", "here")
    )
    assert there == here
    assert "setting.json" in there


def test_a_report_is_the_same_wherever_the_campaign_is(done, remote, local, tmp_path):
    for command, name in ((remote, "there.html"), (local, "here.html")):
        result = command("report", done, "-o", name)
        assert (result.code, result.err) == (0, "")
    assert (tmp_path / "there.html").read_text() == (tmp_path / "here.html").read_text()


def test_run_starts_a_campaign_at_the_service_and_follows_it_to_its_end(remote, local, client):
    result = remote("run", "spec.yaml")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    (id,) = re.findall(r"^(client-\w+): gpt-micro on 8 x ", lines[0])
    assert [line for line in lines if line.startswith(f"{id} is completed: ")]
    ended = [trial.number for trial in client.campaign(id).trials() if trial.state == "done"]
    told = [
        int(found[2]) for line in lines if (found := re.match(r"(second run, )?trial (\d+): tp\d.*: ok, step", line))
    ]
    assert sorted(told) == ended
    assert len(ended) >= 9
    assert result.out.endswith(local("best", id).out.split("\n", 1)[1])
    assert client.campaign(id).view.owner == "lab"


def test_the_mistakes_of_a_spec_are_told_in_the_same_words(remote, local, tmp_path):
    (tmp_path / "wrong.yaml").write_text("model: gpt-micro\nglobal_batch_size: -1\nserach: grid\n")
    there = remote("run", "wrong.yaml")
    assert there == local("run", "wrong.yaml")
    assert (there.code, there.out) == (2, "")
    assert there.err.count("\n") >= 3


def test_a_dry_run_tells_the_quote_and_starts_nothing(remote, client):
    before = len(client.campaigns())
    result = remote("run", "spec.yaml", "--dry-run")
    assert (result.code, result.err) == (0, "")
    assert "no job is shown" in result.out
    assert len(client.campaigns()) == before


def test_a_campaign_is_paused_resumed_and_cancelled_at_the_service(remote, client, service):
    campaign = client.create(SLOW)
    assert remote("pause", campaign.id).out == (
        f"{campaign.id} is paused; `meshtune resume {campaign.id} --server {service.url}` goes on\n"
    )
    assert campaign.refresh().state == "paused"
    resumed = campaign.resume()
    assert resumed.state == "running"
    assert remote("cancel", campaign.id).out == f"{campaign.id} is cancelled\n"


def test_an_edit_says_the_limits_that_it_leaves(remote, client):
    campaign = client.create(SPEC)
    campaign.wait()
    done = remote("edit", campaign.id, "--time-limit-s", "700", "--wall-time-s", "7200", "--trials", "9")
    assert done.err == ""
    words = f"{campaign.id} is changed: budget, trial; 9 trials and \\d+ to \\d+ second runs; "
    assert re.match(
        f"{words}a trial may take 11 min 40 s, the campaign [\\d.]+ device-hours, 2 h 00 min of work\n", done.out
    )
    assert campaign.refresh().summary.budget.wall_time_s == 7200
    remote("edit", campaign.id, "--device-hours", "inf", "--trials", "11")
    assert campaign.refresh().summary.budget.device_hours is None


def test_settings_are_measured_again_as_second_runs_of_the_campaign(remote, client):
    campaign = client.create({**SPEC, "name": "again", "confirm": 0})
    campaign.wait()
    before = len(campaign.trials())
    again = remote("rerun", campaign.id, "best", "worst")
    assert (again.code, again.err) == (0, "")
    assert re.fullmatch(
        r"(trial \d+: tp\d.*: recorded [\d,.]+, now [\d,.]+ tokens/s/device\n){2}the order holds\n", again.out
    )
    assert [trial.origin for trial in campaign.trials()[before:]] == ["confirmation"] * 2
    stands = json.loads(remote("revalidate", campaign.id, "--json").out)
    assert stands["campaign"] == campaign.id
    assert len(campaign.trials()) > before + 2


def test_ctrl_c_leaves_the_campaign_running_and_says_how_to_come_back(service, client, tmp_path):
    # On a busy machine the command's first look may come after seconds: the campaign must still run then.
    spec = SLOW | {"runner": {"kind": "simulated", "seconds_per_trial": 2}}
    (tmp_path / "slow.yaml").write_text(yaml.safe_dump(spec))
    command = meshtune("run", "slow.yaml", "--server", service.url)
    environment = {"MESHTUNE_TOKEN": service.token, "PATH": "/usr/bin:/bin"}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    id = process.stdout.readline().partition(":")[0]
    while not process.stdout.readline().startswith("trial "):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert f"{id} goes on at {service.url}" in rest
    assert f"meshtune resume {id} --server {service.url}" in rest
    campaign = client.campaign(id)
    assert campaign.view.state == "running"
    campaign.cancel()


@pytest.mark.parametrize("words", [["project", "ID", "--wall", "0.9"], ["project", "spec.yaml", "--tokens", "1e9"]])
def test_what_cannot_be_done_at_a_service_is_refused_in_one_line(done, remote, words):
    result = remote(*(done if word == "ID" else word for word in words))
    assert (result.code, result.out) == (2, "")
    assert result.err.count("\n") == 1
    assert "home" in result.err


def test_a_campaign_is_deleted_where_it_is_by_one_who_may(remote, local, client, service, monkeypatch):
    ids = [client.create(SPEC).id for _ in range(2)]
    for id in ids:
        client.campaign(id).wait(limit_s=60)
    asked = remote("delete", ids[0])
    assert asked == local("delete", ids[0])
    assert (asked.code, asked.out, "--yes" in asked.err) == (2, "", True)
    running = client.create(SLOW)
    for command, place in ((remote, f"--server {service.url}"), (local, f"--home {service.home}")):
        refused = command("delete", running.id, "--yes")
        assert (refused.code, refused.out) == (2, "")
        assert f"is running: `meshtune cancel {running.id} {place}` ends it first" in refused.err
    running.cancel()
    with monkeypatch.context() as patch:
        patch.setenv("MESHTUNE_TOKEN", service.new_token("starter", "launch", "read:all"))
        refused = remote("delete", ids[0], "--yes")
    assert (refused.code, "admin" in refused.err) == (2, True)
    for command, id in zip((remote, local), ids, strict=True):
        gone = command("delete", id, "--yes")
        assert (gone.code, gone.out, gone.err) == (0, f"{id} is deleted\n", "")
        with pytest.raises(NotFound):
            client.campaign(id)
        assert not (service.home / "campaigns" / id).exists()


def test_a_plan_is_confirmed_by_a_campaign_at_the_service(done, remote, local, client, tmp_path):
    (tmp_path / "other.yaml").write_text("workload: simulated\nrunner: {kind: simulated, seconds_per_trial: 0.05}\n")
    before = {campaign.id for campaign in client.campaigns()}
    there = remote("confirm", done, "--with", "other.yaml")
    (id,) = {campaign.id for campaign in client.campaigns()} - before
    assert client.campaign(id).view.name == "confirm client"
    assert there.out.splitlines()[0].startswith(f"{id}: gpt-micro on 8 x ")
    here = local("confirm", done, "--with", "other.yaml")
    assert (there.code, there.err) == (here.code, "")
    # The lines before are of trials as they end; numbers are of each campaign's own runs.
    ends = [re.sub(r"[\d.]+", "N", "\n".join(result.out.splitlines()[-3:])) for result in (there, here)]
    assert ends[0] == ends[1]
    assert "confirmed: " in ends[0]
    (tmp_path / "other.yaml").write_text("workload: simulated\nmodel: llama3-8b\n")
    wrong = remote("confirm", done, "--with", "other.yaml")
    assert wrong == local("confirm", done, "--with", "other.yaml")
    assert (wrong.code, wrong.out, "is not that of the campaign" in wrong.err) == (2, "", True)


def test_a_service_that_is_away_or_refuses_the_token_is_told_in_one_line(remote, monkeypatch, service):
    monkeypatch.setenv("MESHTUNE_TOKEN", "mt_wrong")
    refused = remote("best", "last")
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert "token" in refused.err


def test_a_command_on_a_home_loads_no_http_client(service, done):
    code = (
        "import sys; sys.argv = ['meshtune', *sys.argv[1:]]\nfrom meshtune.tuner.cli.main import main\n"
        "try: main()\nfinally: print('httpx2' in sys.modules)"
    )
    command = [sys.executable, "-c", code, "best", done, "--json", "--home", str(service.home)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert shown.splitlines()[-1] == "False"
    assert json.loads(shown.rpartition("\n}")[0] + "}")["campaign"] == done
