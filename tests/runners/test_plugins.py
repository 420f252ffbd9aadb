"""Schedulers of other packages: an installed one is found, listed and run as a built-in one is, and a broken one breaks
its own name alone. Packages are written by hand into a folder of the Python path, as an installer would leave them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from places import cluster

from meshtune.runners import registry
from meshtune.runners.registry import UnknownBackend, check_options, create_runner, load_part, runners, schedulers
from meshtune.search_spaces.checks import InvalidValue
from meshtune.tuner.results.export_options import options_of

CLUSTER = cluster(1, 2)
# A scheduler that is the local runner by another name, and one that imports what is not there.
PLACE = """
from dataclasses import dataclass

from meshtune.runners.registry import Scheduler

PLACE = Scheduler(
    runner="meshtune.runners.schedulers.local.runner:create",
    script="{module}:render",
    words="a script for the site's own scheduler",
    script_file="job.site",
    send="site-submit",
    question=("true",),
    allocation="SITE_JOB",
    harmless=frozenset({{"slots"}}),
)
HALF = Scheduler(runner="{module}_missing:create", script="{module}_missing:render")
PLAIN = Scheduler(script="{module}:render", options="{module}:Options")
ODD = Scheduler(script="{module}:render", options="{module}:OddOptions")


@dataclass
class Options:
    queue: str = ""


class OddOptions(Options):
    form = dict(queue="where it waits", gone="no field")


def render(job, options):
    return f"#!/bin/sh\\n# {{job.name}} {{sorted(options)}}\\n"
"""


def install(folder: Path, package: str, points: dict[str, str], text: str = "", version: str = "1.2") -> None:
    """A module and its metadata. points: entry points by name."""
    module = package.replace("-", "_")
    (folder / f"{module}.py").write_text(text or PLACE.format(module=module))
    metadata = folder / f"{module}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    (metadata / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{lines}")


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path, for packages that are installed before `schedulers` is first asked."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    schedulers.cache_clear()
    yield folder
    schedulers.cache_clear()
    for name in [name for name in sys.modules if name.startswith("plugin_")]:
        del sys.modules[name]


def test_a_package_adds_a_scheduler_by_an_entry_point(packages, tmp_path):
    install(packages, "plugin-site", {"site": "plugin_site:PLACE"})
    assert schedulers()["site"].package == "plugin-site 1.2"
    assert "site" in runners()
    runner = create_runner("site", tmp_path / "root", CLUSTER, {"slots": 2})
    runner.close()
    assert load_part("site", "script").__module__ == "plugin_site"
    assert set(runners()) - {"site"} == set(registry.RUNNERS)


def test_the_options_that_a_package_declares_are_checked_where_its_runner_cannot_run(packages):
    text = PLACE.replace('words="a script', 'options="{module}:Limited", words="a script', 1)
    text += "\n\n@dataclass\nclass Limited(Closed):\n    queue: str = str()\n"
    text = text.replace("from dataclasses", "from meshtune.search_spaces.checks import Closed\nfrom dataclasses", 1)
    install(packages, "plugin-site", {"site": "plugin_site:PLACE"}, text.format(module="plugin_site"))
    check_options("site", {"queue": "debug"})
    with pytest.raises(InvalidValue, match=r"^queues: is not a known key; did you mean 'queue'"):
        check_options("site", {"queues": "debug"})


def test_a_form_of_options_that_a_package_leaves_out_or_gets_wrong_breaks_no_list_of_formats(packages):
    install(packages, "plugin-site", {"plain": "plugin_site:PLAIN", "odd": "plugin_site:ODD"})
    assert options_of("plain") == ()
    assert [(each.name, each.meaning) for each in options_of("odd")] == [("queue", "where it waits")]


@pytest.mark.parametrize(
    ("point", "text", "told"),
    [
        ("plugin_bad:PLACE", "import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("plugin_bad:PLACE", "1 / 0", "ZeroDivisionError: division by zero"),
        ("plugin_bad:NONE", "", "AttributeError: module 'plugin_bad' has no attribute 'NONE'"),
        ("plugin_bad:PLACE", "PLACE = 3", "TypeError: plugin_bad:PLACE is a int, not a Scheduler"),
    ],
)
def test_a_broken_package_breaks_its_own_name_alone_and_is_named_with_its_version(
    packages, tmp_path, caplog, point, text, told
):
    install(packages, "plugin-bad", {"bad": point}, text, version="0.9")
    install(packages, "plugin-site", {"site": "plugin_site:PLACE"})
    words = f"the scheduler bad of plugin-bad 0.9 cannot be loaded: {told}"
    assert schedulers()["bad"].trouble == words
    assert caplog.messages == [words]
    assert {"bad", "site", "local"} <= set(runners())
    with pytest.raises(UnknownBackend) as raised:
        create_runner("bad", tmp_path, CLUSTER, {})
    assert str(raised.value) == words
    create_runner("site", tmp_path, CLUSTER, {}).close()


def test_what_a_scheduler_names_is_imported_when_it_is_used_and_told_when_it_is_missing(packages, tmp_path):
    install(packages, "plugin-half", {"half": "plugin_half:HALF"})
    assert schedulers()["half"].trouble == ""
    told = "^the scheduler half of plugin-half 1.2 cannot be loaded: ModuleNotFoundError: .*plugin_half_missing"
    with pytest.raises(UnknownBackend, match=told):
        create_runner("half", tmp_path, CLUSTER, {})
    with pytest.raises(UnknownBackend, match=told):
        load_part("half", "script")


def test_no_package_takes_over_a_name(packages, caplog):
    install(packages, "plugin-a", {"slurm": "plugin_a:PLACE", "site": "plugin_a:PLACE", "../up": "plugin_a:PLACE"})
    install(packages, "plugin-b", {"site": "plugin_b:PLACE"})
    assert schedulers()["slurm"] is registry.SCHEDULERS["slurm"]
    assert schedulers()["site"].package == "plugin-a 1.2"
    assert caplog.messages == [
        "the scheduler slurm of plugin-a 1.2 is not used: it is the name of one of meshtune itself",
        "the scheduler '../up' of plugin-a 1.2 is not used: a name is as [a-z][a-z0-9-]{0,39}",
        "the scheduler site of plugin-b 1.2 is not used: it is the name of one of plugin-a 1.2",
    ]


SPEC = {
    "name": "plugged",
    "model": "gpt-micro",
    "cluster": {"preset": "local-cpu", "devices_per_node": 1},
    "global_batch_size": 4,
    "space": {"micro_batch_size": [1, 2]},
    "workload": {
        "kind": "command",
        "command": [sys.executable, "train.py", "{micro_batch_size}", "{grad_accum_steps}"],
        "working_directory": ".",
        "steps": 12,
        "warmup_steps": 2,
    },
    "search": "grid",
    "runner": {"kind": "site", "idle_s": 1},
    "budget": {"trials": 1},
    "confirm": 0,
}
TRAIN = """
import time
from meshtune.runners.report import Reporter

reporter = Reporter()
for step in range(12):
    time.sleep(0.002)
    reporter.step(loss=1.0)
reporter.done()
"""
# One process, as loading everything takes most of the time: commands of the command line, and what is listed.
CALLS = """
import contextlib, io, json, os, sys
from meshtune.tuner.cli.main import main

said = []
def call(*words):
    sys.argv = ["meshtune", *words]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
    said.append([code, " ".join(out.getvalue().split())])

call("run", "wrong.yaml", "--home", "home")
call("run", "campaign.yaml", "--home", "home")
[campaign] = os.listdir("home/campaigns")
call("export", campaign, "--home", "home", "--trial", "best", "--format", "site", "-o", "out")

from meshtune.api.openapi import SPEC_SCHEMA
from meshtune.runners.machine import read_schedulers
from meshtune.runners.registry import schedulers as rows
from meshtune.tuner.results.export import FORMATS
from meshtune.tuner.specs.document import commands_named

spec = {"model": "gpt-micro", "cluster": "local-cpu", "global_batch_size": 8}
named = {kind: [problem.path for problem in commands_named({**spec, "runner": {"kind": kind, "slots": 2, "setup": []}})]
         for kind in ("site", "bad")}
facts = read_schedulers({"PATH": "/usr/bin:/bin", "SITE_JOB": "7"})
print(json.dumps({
    "said": said,
    "schema": json.dumps(SPEC_SCHEMA["properties"]["runner"]),
    "formats": {name: FORMATS[name].words for name in ("site", "json")},
    "needs_command": named,
    "asked": [fact.name for fact in facts if fact.allocation == "7"],
    "broken": [each.trouble for each in rows().values() if each.trouble],
}))
"""


@pytest.mark.slow
def test_the_command_line_the_schema_and_the_doctor_know_a_packages_scheduler(tmp_path):
    packages = tmp_path / "packages"
    packages.mkdir()
    install(packages, "plugin-site", {"site": "plugin_site:PLACE", "json": "plugin_site:PLACE"})
    install(packages, "plugin-bad", {"bad": "plugin_bad:PLACE"}, "import no_such_module")
    (tmp_path / "campaign.yaml").write_text(yaml.safe_dump(SPEC))
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump({**SPEC, "runner": "bad"}))
    (tmp_path / "train.py").write_text(TRAIN)
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    command = [sys.executable, "-c", CALLS]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    told = "the scheduler bad of plugin-bad 1.2 cannot be loaded: ModuleNotFoundError"
    refused, ran, exported = found["said"]
    assert refused[0] == 2
    # A warning before it.
    assert refused[1].startswith(told)
    assert f"runner: {told}" in refused[1]
    assert [ran[0], exported[0]] == [0, 0], found["said"]
    assert (tmp_path / "out" / "job.site").read_text().endswith("['idle_s']\n")
    assert '"site"' in found["schema"]
    assert found["formats"] == {
        "site": "a script for the site's own scheduler",
        "json": "the plan with its measurement, for programs",
    }
    assert found["needs_command"] == {"site": ["runner.setup"], "bad": ["runner.kind"]}
    assert found["asked"] == ["site", "json"]
    assert found["broken"][0].startswith(told)
