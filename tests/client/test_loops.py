"""The loops of docs/how-to/ask-tell.md, as the page has them."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from meshtune import AsyncClient
from meshtune.tuner.client import errors
from meshtune.tuner.service.ask_tell import Heartbeat

PAGE = (Path(__file__).parents[2] / "docs/how-to/ask-tell.md").read_text()


def block(language: str) -> str:
    return re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[1]


def outcomes(client, name):
    (campaign,) = client.campaigns(name=name)
    assert campaign.wait(limit_s=30).state == "completed"
    return [(each.verdict, each.step_time_s) for each in campaign.trials()]


@pytest.mark.skipif(shutil.which("jq") is None or shutil.which("curl") is None, reason="the loop needs curl and jq")
def test_the_loop_in_shell(service, client, tmp_path):
    (tmp_path / "loop.yaml").write_text(block("yaml"))
    loop = block("sh").replace("http://127.0.0.1:8000", service.url)
    environment = {**os.environ, "TOKEN": service.token, "no_proxy": "*"}
    done = subprocess.run(
        ["sh", "-c", loop], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    trials = outcomes(client, "own-loop")
    assert len(trials) >= 8
    assert all(trial == ("ok", pytest.approx(0.43)) for trial in trials)


def test_the_loop_in_python(client):
    spec = {**yaml.safe_load(block("yaml")), "name": "own-loop-in-python", "confirm": 0, "trial": {"racing": True}}
    taken = {}

    def steps(plan):
        taken[plan.key] = 0
        for _ in range(20):
            taken[plan.key] += 1
            yield 0.1 if len(taken) == 1 else 0.2

    exec(block("python"), {"client": client, "spec": spec, "steps": steps, "suppress": suppress, "errors": errors})
    (first, *others) = outcomes(client, "own-loop-in-python")
    assert first == ("ok", pytest.approx(0.1))
    assert {verdict for verdict, _ in others} == {"pruned"}
    assert sorted(taken.values()) == [8] * len(others) + [20]


def test_a_worker_of_asyncio_has_its_trial_back_and_hears_of_the_end(service):
    spec = {**yaml.safe_load(block("yaml")), "name": "own-loop-of-asyncio"}

    async def worker():
        async with AsyncClient(service.url, service.token) as client:
            campaign = await client.create(spec)
            (one,) = (await campaign.suggest(worker="w1", lease_s=60)).suggestions
            assert await campaign.heartbeat(one, [1.0]) == Heartbeat(should_stop=False, reason="", lease_s=60.0)
            assert (await campaign.suggest(worker="w1", lease_s=30)).suggestions == [one]
            assert (await campaign.heartbeat(one)).lease_s == 30.0
            with pytest.raises(errors.InvalidRequest, match="/lease_s"):
                await campaign.suggest(worker="w1", lease_s=0)
            await campaign.cancel()
            assert (await campaign.heartbeat(one)).should_stop
            assert (await campaign.wait(limit_s=30)).state == "cancelled"

    asyncio.run(worker())
