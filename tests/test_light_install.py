"""meshtune without its extras: what works, and the command that each missing library is named with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from command_lab import Result, run_meshtune
from specs import simulated

from meshtune.runners.extras import EXTRAS

LIBRARIES = (
    *("torch", "ray", "deephyper", "optuna", "pandas", "sklearn", "scipy", "matplotlib", "psycopg", "kubernetes"),
    *("jinja2", "pyarrow", "mcp", "mcp_types", "jsonschema"),
)
# As `import` sees a module that is not installed.
WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({LIBRARIES!r}));"
COMMAND = f"{WITHOUT} sys.argv[0] = 'meshtune'; from meshtune.tuner.cli.main import main; main()"
# No early end: the analysis grows a forest from 8 measured plans on.
SIMULATED = simulated(
    global_batch_size=32,
    runner={"kind": "simulated", "seconds_per_trial": 0.01},
    search="physics",
    budget={"trials": 20},
    stop={"chance": 0},
    confirm=1,
)
SERVE = """
from pathlib import Path
from fastapi.testclient import TestClient
from meshtune.api.app import create_app
from meshtune.tuner.access.tokens import Scope, Token, digest, new_secret
from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import Store

with Store.open("sqlite://") as store:
    secret = new_secret()
    token = dict(name="light", sha256=digest(secret), scopes=frozenset({Scope.READ}), created_at=0.0, expires_at=None)
    store.access.create(Token(**token))
    app = create_app(Service(store, Home(Path("home"))))
    with TestClient(app, headers={"Authorization": f"Bearer {secret}"}) as client:
        for path in ("campaigns", "registry"):
            print(client.get(f"/v1/{path}").status_code)
"""
TRAINED = {"model": "gpt-micro", "cluster": "local-cpu", "global_batch_size": 8}


def python(code: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Code in a process of its own, in this folder."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=folder, env={**os.environ}, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_spaces_estimates_and_simulated_campaigns_need_no_extra(tmp_path):
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(SIMULATED))
    for command in ("spaces", "estimate", "run"):
        done = python(COMMAND, tmp_path, command, "spec.yaml")
        assert (done.returncode, done.stderr) == (0, "")
    assert "is completed" in done.stdout
    analysis = json.loads(python(COMMAND, tmp_path, "analyze", "last", "--json").stdout)
    needed = "the importance of knobs needs Optuna and scikit-learn: pip install 'meshtune[optuna]'"
    assert analysis["sensitivity"]["nothing"] == needed


@pytest.fixture
def light(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command on the built-in trainer's spec, with changes, in this process, as if no extra were installed."""
    for library in LIBRARIES:
        monkeypatch.setitem(sys.modules, library, None)

    def run(*arguments: str, **over: object) -> Result:
        (tmp_path / "spec.yaml").write_text(yaml.safe_dump({**TRAINED, **over}))
        return run_meshtune(tmp_path, *arguments)

    return run


@pytest.mark.parametrize(
    ("arguments", "over", "words"),
    [
        (["run", "spec.yaml"], {"search": "deephyper"}, "search: the search deephyper needs DeepHyper: {deephyper}"),
        (["run", "spec.yaml"], {"search": "optuna"}, "the search optuna needs Optuna and scikit-learn: {optuna}"),
        (["run", "spec.yaml"], {"runner": "ray"}, "runner: the runner ray needs Ray: {ray}"),
        (
            ["run", "spec.yaml"],
            {"runner": {"kind": "kubernetes", "image": "train:1"}},
            "runner: the runner kubernetes needs the Kubernetes client: {kubernetes}",
        ),
        (["run", "spec.yaml"], {}, "workload: the workload torch needs PyTorch: {torch}"),
        (["estimate", "spec.yaml", "--exact", "--plan", "dp=4"], {}, "the exact estimate needs PyTorch: {torch}"),
        (["cluster", "probe"], {}, "the probe needs PyTorch: {torch}"),
        (["report", "last", "-o", "report.html"], {}, "a report needs Jinja and Matplotlib: {report}"),
        (["export-data", "last", "--format", "parquet"], {}, "writing Parquet needs PyArrow: {parquet}"),
        (["mcp"], {}, "meshtune mcp needs the MCP package: {mcp}"),
        (["show", "--db", "postgresql://host/name"], {}, "a PostgreSQL database needs psycopg: {postgres}"),
    ],
)
def test_a_missing_library_is_named_with_the_command_that_installs_it(light, arguments, over, words):
    done = light(*arguments, **over)
    assert (done.code, done.out) == (2, "")
    assert words.format(**{extra: f"pip install 'meshtune[{extra}]'" for extra in EXTRAS}) in done.err


def test_the_space_of_a_workload_is_known_without_its_library(light):
    assert light("spaces", "spec.yaml").code == 0


@pytest.mark.slow
def test_the_api_serves_without_any_extra(tmp_path):
    done = python(WITHOUT + SERVE, tmp_path)
    assert (done.returncode, done.stdout.split()) == (0, ["200", "200"]), done.stderr


HEAVY = {*LIBRARIES}
TERMINAL = {"rich", "typer", "meshtune.tuner.cli"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("meshtune.tuner.service.service", HEAVY | TERMINAL),
        ("meshtune.api.app", HEAVY | TERMINAL),
        ("meshtune.tuner.cli.main", HEAVY),
        ("meshtune.tuner.client.client", HEAVY | TERMINAL | {"sqlalchemy", "alembic"}),
        (
            "meshtune.tuner.store",
            HEAVY | TERMINAL | {"meshtune.tuner.search", "meshtune.tuner.results", "meshtune.tuner.service"},
        ),
    ],
)
def test_importing_a_part_loads_no_more_than_it_needs(tmp_path, module, unwanted):
    loaded = python(f"import sys, {module}; print(*sys.modules)", tmp_path).stdout.split()
    assert module in loaded
    assert unwanted.isdisjoint(loaded)
