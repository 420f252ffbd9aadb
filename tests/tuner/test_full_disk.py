"""A home on a disk of 3 MB that is full for a while: its campaign waits, loses nothing, and ends when it has space."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from toy import SPEC

from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.campaign import CampaignState, Home
from meshtune.tuner.store import Store, maintenance

TRIALS = 12
FULL_S = 3.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", place], capture_output=True, text=True, check=False
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


def wait_for(condition, limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
