"""The unit, the compose file and the page on operating the service name options, variables and files that exist."""

import re
from dataclasses import fields
from pathlib import Path

import typer
import yaml

from meshtune.api.settings import ServiceSettings, variable_of
from meshtune.tuner.access.tokens import DATABASE_FILE
from meshtune.tuner.cli.main import app

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "service"
PAGE = ROOT / "docs" / "how-to" / "service.md"
serve = typer.main.get_command(app).commands["serve"]
KNOWN = {variable_of(field.name) for field in fields(ServiceSettings)} | {DATABASE_FILE, "MESHTUNE_TOKEN"}
KNOWN |= {option.envvar for option in serve.params if option.envvar}


def test_every_variable_that_is_named_is_read():
    for file in (*FOLDER.iterdir(), PAGE):
        if file.is_file():
            named = set(re.findall(r"MESHTUNE_[A-Z_]*[A-Z]", file.read_text())) - {"MESHTUNE_NAME"}
            assert named <= KNOWN, (file, named - KNOWN)


def test_every_option_of_serve_is_on_the_page():
    page = PAGE.read_text()
    options = {name for option in serve.params for name in option.opts if name != "--help"}
    assert {name for name in options if f"`{name}`" not in page} == set()
    assert {option.envvar for option in serve.params if option.envvar and f"`{option.envvar}`" not in page} == set()


def test_the_compose_file_keeps_secrets_in_files_and_the_service_to_this_machine():
    document = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    service, database = document["services"]["meshtune"], document["services"]["db"]
    assert (FOLDER / service["build"]["context"] / service["build"]["dockerfile"]).resolve() == FOLDER / "Dockerfile"
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert "ports" not in database
    for part in (service, database):
        assert not any(
            "password" in str(value).lower() for name, value in part["environment"].items() if "FILE" not in name
        )
        assert part["healthcheck"]
        assert set(part["secrets"]) <= set(document["secrets"])


def test_the_unit_gains_nothing_and_reads_its_secret_from_a_credential():
    unit = (FOLDER / "meshtune.service").read_text()
    for line in ("NoNewPrivileges=yes", "ProtectSystem=strict", "StateDirectory=meshtune", "LoadCredential=db:"):
        assert f"\n{line}" in unit
    assert "://" not in unit


def test_every_test_and_module_that_the_threat_model_names_exists():
    named = re.findall(
        r"`((?:tests|benchmarks|runners|docs)/[\w./-]+)`", (ROOT / "docs/explanation/security.md").read_text()
    )
    assert len(named) > 15
    assert {path for path in named if not (ROOT / path).exists()} == set()
