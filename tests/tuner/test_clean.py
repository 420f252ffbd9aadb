"""`meshtune clean` and a service's retention: the files of campaigns that ended long ago go, and nothing that anybody
needs: not of campaigns that go on, not what ended lately, not what was measured."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_lab import run_meshtune, said
from driven import Driven
from service_lab import ServiceLab
from specs import simulated, tiny
from sqlalchemy import create_engine, text

from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.campaign import CampaignState, Home
from meshtune.tuner.campaign.units import gibibytes
from meshtune.tuner.service.cleaning import job_files
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import Store

DAY_S = 86400.0
NOTHING = "with --remove this goes: 0 files, 0 KiB, of 0 campaigns\n"
SPEC = simulated(budget={"trials": 2}, confirm=0)


def ran(folder: Path, spec: dict[str, Any] = SPEC) -> str:
    """The id of a campaign that `meshtune run` has worked on in `folder`."""
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    done = run_meshtune(folder, "run", "spec.yaml", "--home", "home")
    assert done.code in (0, 1), done
    with Store.open(Home(folder / "home").database_url) as store:
        return store.campaigns(limit=1)[0].id


def age(home: Path, days: float, *ids: str) -> None:
    """Let these campaigns, and all files of theirs, be so old."""
    then = time.time() - days * DAY_S
    engine = create_engine(f"sqlite:///{home}/meshtune.db")
    with engine.begin() as connection:
        for id in ids:
            connection.execute(text("UPDATE campaigns SET updated_at = :then WHERE id = :id"), {"then": then, "id": id})
    engine.dispose()
    for path in home.rglob("*"):
        if any(part.startswith(id) for part in path.relative_to(home).parts for id in ids):
            os.utime(path, (then, then), follow_symlinks=False)


def files_of(home: Path, id: str) -> list[Path]:
    return [path for path in home.rglob("*") if path.is_file() and f"{id}-t" in str(path)]


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


def test_one_campaign_is_deleted_with_all_that_it_has_once_it_is_over(tmp_path, home):
    first, second = ran(tmp_path), ran(tmp_path)
    assert "with --remove" in said(tmp_path, "clean", first, "--home", "home")
    with Store.open(Home(home).database_url) as store:
        service = Service(store, Home(home))
        going = service.create(SPEC).id
        refused = run_meshtune(tmp_path, "clean", going, "--remove", "--home", "home")
        assert (refused.code, "cancel it first" in refused.err) == (2, True), refused
        assert said(tmp_path, "clean", first, "--remove", "--home", "home") == f"{first} is deleted\n"
        assert {one.id for one in store.campaigns(limit=9)} == {second, going}
    assert (files_of(home, first), files_of(home, second) != []) == ([], True)


def test_what_ended_long_ago_is_shown_with_its_size_and_goes_on_request_alone(tmp_path, home):
    old, young = ran(tmp_path), ran(tmp_path)
    age(home, 31, old)
    age(home, 2, young)
    files = files_of(home, old)
    size = gibibytes(sum(path.stat().st_size for path in files))
    before = {path: path.read_bytes() for path in files_of(home, young)}
    table = said(tmp_path, "export-data", old, "--format", "json", "-o", "-", "--home", "home")
    shown = said(tmp_path, "clean", "--home", "home")
    assert shown.splitlines() == [
        f"{old}: {len(files)} files, {size}",
        f"with --remove this goes: {len(files)} files, {size}, of 1 campaigns",
    ]
    assert files_of(home, old) == files
    assert young not in shown
    assert young in said(tmp_path, "clean", "--home", "home", "--retention", "1d")
    assert "\nremoved: " in said(tmp_path, "clean", "--home", "home", "--remove")
    assert files_of(home, old) == []
    assert not (home / "campaigns" / old).exists()
    assert list((home / "campaigns.bin").iterdir()) == []
    assert {path: path.read_bytes() for path in files_of(home, young)} == before
    assert said(tmp_path, "export-data", old, "--format", "json", "-o", "-", "--home", "home") == table
    assert "nothing is wrong" in said(tmp_path, "db", "check", "--home", "home")
    assert said(tmp_path, "clean", "--home", "home", "--retention", "never") == NOTHING


@pytest.mark.parametrize("state", [state for state in CampaignState if state.active])
def test_an_open_campaign_keeps_all_its_files_however_old(tmp_path, home, state):
    id = ran(tmp_path)
    with Store.open(Home(home).database_url) as store, store._database.writing() as writing:
        writing.execute(text("UPDATE campaigns SET state = :state"), {"state": str(state)})
    age(home, 400, id)
    assert files_of(home, id)
    assert said(tmp_path, "clean", "--home", "home") == NOTHING


def test_a_campaign_with_a_job_that_may_be_out_and_files_that_changed_lately_stay(tmp_path, home):
    id = ran(tmp_path)
    age(home, 400, id)
    again = home / "campaigns" / id / f"{id}-t0000-again-0a1b2c"
    again.mkdir()
    (again / "rank-0.log").write_text("of a trial that is just being measured again")
    (home / "campaigns" / "of-another-database-0a1b2c" / "of-another-database-0a1b2c-t0000-a1").mkdir(parents=True)
    said(tmp_path, "clean", "--home", "home", "--remove")
    assert [path.name for path in (home / "campaigns" / id).iterdir()] == [again.name]
    assert len(list((home / "campaigns").iterdir())) == 2
    age(home, 400, id)
    with Store.open(Home(home).database_url) as store, store._database.writing() as writing:
        writing.execute(text("UPDATE attempts SET state = 'running' WHERE id = (SELECT MAX(id) FROM attempts)"))
    assert said(tmp_path, "clean", "--home", "home") == NOTHING


def test_links_are_removed_and_never_followed(tmp_path, home):
    id = ran(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("x" * 5_000_000)
    folder = home / "campaigns" / id / f"{id}-t0000-a1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data").symlink_to(elsewhere)
    age(home, 400, id)
    shown = said(tmp_path, "clean", "--home", "home")
    assert "MiB" not in shown
    said(tmp_path, "clean", "--home", "home", "--remove")
    assert not folder.exists()
    assert (elsewhere / "precious").stat().st_size == 5_000_000


def test_a_deleted_campaign_leaves_nothing_with_its_runner(tmp_path, home):
    first, second = ran(tmp_path), ran(tmp_path)
    kept = {path for id, path in job_files(Home(home)) if id == second}
    assert kept
    with Store.open(Home(home).database_url) as store:
        Service(store, Home(home)).delete(first)
    assert {path for _, path in job_files(Home(home))} == kept


@pytest.mark.slow
@pytest.mark.parametrize("runner", [{"kind": "local"}, {"kind": "slurm"}, {"kind": "slurm", "mode": "pilot"}], ids=str)
def test_what_a_runner_remembers_of_a_job_goes_with_its_folder(tmp_path, home, runner, request):
    if runner["kind"] == "slurm":
        request.getfixturevalue("slurm")
        runner = {**runner, "partition": "one", "poll_s": 0.2}
    site = Driven(tmp_path)
    spec = tiny(
        cluster={"preset": "local-cpu", "nodes": 1, "devices_per_node": 1},
        workload=site.workload("{micro_batch_size}"),
        runner=runner,
        budget={"trials": 1},
    )
    id = ran(tmp_path, spec)
    (trial,) = site.trials()
    assert trial.verdict is Verdict.OK
    age(home, 31, id)
    assert {path.parent.name for of, path in job_files(Home(home)) if of == id} == {id, "jobs"}
    said(tmp_path, "clean", "--home", "home", "--remove")
    left = [path for path in home.rglob("*") if f"{id}-t" in path.name]
    assert left == []


@pytest.mark.slow
def test_a_service_applies_its_retention_by_itself_and_says_so(tmp_path, home):
    with ServiceLab(tmp_path) as service:
        id = service.completed(SPEC)
        trials = service.call("GET", f"/v1/campaigns/{id}/trials")
        service.kill()
        age(home, 3, id)
        assert files_of(home, id)
        service.start("--retention", "2d", "--log-format", "json")
        service.wait(lambda: not files_of(home, id), 30)
        assert service.call("GET", f"/v1/campaigns/{id}/trials") == trials
        lines = [json.loads(line) for line in service.log.read_text().splitlines() if line.startswith("{")]
    (line,) = (line for line in lines if "removed" in line["message"])
    assert (line["level"], line["campaign"]) == ("info", id)
    assert line["message"].startswith(f"{id}: removed ")


@pytest.mark.slow
def test_folders_in_folders_without_end_go_with_the_others(tmp_path, home):
    deep, flat = ran(tmp_path), ran(tmp_path)
    age(home, 31, deep, flat)
    then = time.time() - 31 * DAY_S
    place = os.open(next((home / "campaigns" / deep).iterdir()), os.O_RDONLY)
    for _ in range(2500):  # no path leads to the last
        os.mkdir("d", dir_fd=place)
        os.utime(place, (then, then))
        place, above = os.open("d", os.O_RDONLY, dir_fd=place), place
        os.close(above)
    os.utime(place, (then, then))
    os.close(place)
    shown = said(tmp_path, "clean", "--home", "home")
    assert (deep in shown, flat in shown) == (True, True)
    with ServiceLab(tmp_path) as service:
        service.kill()
        service.start("--retention", "1d")
        service.wait(lambda: not any((home / "campaigns").iterdir()), 60)
        assert list(Home(home).bin.iterdir()) == []
        service.call("DELETE", f"/v1/campaigns/{deep}")
