"""A home on a small disk that is full for a while: its campaign waits, loses nothing, and ends when it has space; its
service and its commands say that trying again may help."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import pytest
import yaml
from service_lab import ServiceLab
from service_process import meshtune
from specs import simulated
from toy import SPEC

from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.campaign import CampaignState, Home
from meshtune.tuner.store import Store, maintenance

TRIALS = 12
FULL_S = 3.0


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Of 3 MB, unless a test names another size."""
    size = getattr(request, "param", "3m")
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.slow
def test_a_campaign_outlives_a_full_disk(small_disk: Path, tmp_path: Path):
    home = Home(small_disk / "home")
    spec = SPEC | {"budget": {"trials": TRIALS}, "confirm": 0, "space": {"micro_batch_size": [1, 2, 4, 8, 16]}}
    spec |= {"runner": {"kind": "simulated", "seed": 1, "seconds_per_trial": 0.1, "slots": 1}}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    command = [sys.executable, "-m", "meshtune.tuner.cli", "run", "spec.yaml", "--home", str(home.root)]
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=output)
    try:
        wait_for(lambda: b"trial 1: " in log.read_bytes() or process.poll() is not None)
        ballast = small_disk / "ballast"
        until = time.monotonic() + FULL_S
        with ballast.open("wb", buffering=0) as file:
            while time.monotonic() < until:  # also what the campaign gives back meanwhile
                try:
                    file.write(bytes(4096))
                except OSError:
                    time.sleep(0.01)
        wait_for(lambda: b"waiting: " in log.read_bytes() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        ballast.unlink()
        assert process.wait(60) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    said = log.read_text()
    assert "Traceback" not in said
    assert "is full, or its disk is" in said or "No space left on device" in said
    assert maintenance.check(home.database_url).troubles == []
    with Store.open(home.database_url) as store:
        (campaign,) = store.campaigns(limit=2)
        trials = store.trials(campaign.id)
    assert campaign.state is CampaignState.COMPLETED
    assert [trial.number for trial in trials] == list(range(TRIALS))
    assert [trial.verdict for trial in trials] == [Verdict.OK] * TRIALS


@pytest.mark.slow
@pytest.mark.parametrize("small_disk", ["40m"], indirect=True)
def test_a_service_on_a_full_disk_asks_to_try_again(small_disk: Path, tmp_path: Path):
    service = ServiceLab(small_disk)
    service.log = tmp_path / "serve.log"
    spec = simulated(budget={"trials": 2}, confirm=0)
    told = {"workload": {"kind": "command", "command": ["train", "{micro_batch_size}", "{grad_accum_steps}"]}}
    try:
        service.start()
        over = service.completed(spec)
        id = service.call("POST", "/v1/campaigns", spec | told | {"runner": "external"})["id"]
        path = f"/v1/campaigns/{id}"
        wait_for(lambda: service.call("GET", path)["trials"].get("submitted"))
        trial = service.call("POST", f"{path}:suggest", {})["suggestions"][0]["trial"]
        completion = f"{path}/trials/{trial}:complete", {"step_times_s": [0.1] * 2000}
        asked = [
            ("POST", "/v1/campaigns", spec),
            ("PATCH", f"/v1/campaigns/{over}", {"notes": "x" * 5000}),
            ("POST", f"/v1/campaigns/{over}/trials/0:rerun", None),
            ("POST", f"{path}:suggest", {}),
            ("POST", *completion),
            ("POST", f"{path}:cancel", None),
            ("DELETE", f"/v1/campaigns/{over}", None),
        ]
        with (small_disk / "ballast").open("wb", buffering=0) as ballast:
            answers = {}
            for method, path, body in asked:
                fill(ballast)
                status, answer = answers[path] = service.ask(method, path, body)
                assert status < 300 or status == 503, (method, path, answer)  # the log may have had some room
            kinds = {answer["type"] for status, answer in answers.values() if status == 503}
            assert kinds <= {"/problems/disk-full", "/problems/runner-unavailable", "/problems/store-unavailable"}
            assert "No space left on device" in answers[completion[0]][1]["detail"]
            fill(ballast)
            changed = subprocess.run(
                meshtune("edit", over, "--notes", "y" * 5000, "--home", str(service.home)), check=False
            )
            assert changed.returncode == os.EX_TEMPFAIL
        (small_disk / "ballast").unlink()
        assert service.call("POST", *completion)["number"] == trial
        service.wait_state(id, "running", "completed")
    finally:
        if service.process is not None:
            service.kill()
    assert "Traceback" not in service.log.read_text()


def fill(ballast: BinaryIO) -> None:
    for size in (65536, 512):
        with suppress(OSError):
            while True:
                ballast.write(bytes(size))


def wait_for(condition, limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
