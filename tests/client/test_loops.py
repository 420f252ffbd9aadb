"""The loops of docs/how-to/ask-tell.md, as the page has them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from meshtune.tuner.client import errors

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
