"""The recipes of docs/how-to/notify.md, as they stand there, at a service."""

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from client_specs import SPEC
from service_lab import ServiceLab

from meshtune import Client

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "notify.md").read_text()
LIMIT_S = 60


@pytest.fixture
def lines(service: ServiceLab) -> Iterator[Callable[[str, list[str]], Iterator[str]]]:
    """What a recipe prints, line by line, while it runs."""
    started = []

    def run(language: str, command: list[str]) -> Iterator[str]:
        [text] = re.findall(rf"(?ms)^```{language}\n(.*?)^```$", PAGE)
        told = {"MESHTUNE_SERVER": service.url, "MESHTUNE_TOKEN": service.token, "EVERY_S": "0.2"}
        process = subprocess.Popen(
            [*command, text], stdout=subprocess.PIPE, text=True, env={**os.environ, **told}, process_group=0
        )
        started.append(process)
        return iter(process.stdout.readline, "")

    yield run
    for process in started:
        os.killpg(process.pid, 9)
        process.communicate(timeout=LIMIT_S)


def streams(service: ServiceLab) -> float:
    """How many are open."""
    asked = urllib.request.Request(f"{service.url}/metrics", headers={"Authorization": f"Bearer {service.token}"})
    with urllib.request.urlopen(asked, timeout=LIMIT_S) as answer:
        return float(re.search(r"(?m)^meshtune_open_streams (\S+)", answer.read().decode())[1])


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("language", ["bash", "python"])
def test_a_recipe_tells_what_is_done_and_not_what_a_person_paused(service, client: Client, lines, language: str):
    command = {"bash": ["bash", "-c"], "python": [sys.executable, "-c"]}[language]
    before = streams(service)
    told = lines(language, command)
    if language == "bash":  # which hears what happens from then on
        service.wait(lambda: streams(service) > before, LIMIT_S)
    paused = client.create({**SPEC, "name": "resting", "budget": {"trials": 1000}})
    paused.pause()
    done = client.create({**SPEC, "name": f"told by {language}"})
    done.wait(limit_s=LIMIT_S)
    if language == "python":
        line = next(line for line in told if line.startswith(f"told by {language}"))
        assert line.startswith("told by python completed: ")
    else:
        line = next(told)
        assert line.startswith("campaign.completed ")
        assert done.id in line
    paused.cancel()
    paused.wait(limit_s=LIMIT_S)
    assert "cancelled" in next(line for line in told if "resting" in line)  # not that it was paused
