"""requirements.lock has every package that is installed, with the hashes of its files, as constraints.txt has it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
SERVICE = ROOT / "examples" / "service"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def wanted(extra: str) -> list[Requirement]:
    """What the package needs with an extra, and with the extras that it names."""
    needed = [Requirement(text) for text in EXTRAS[extra]]
    inner = [name for each in needed if each.name == "meshtune" for name in each.extras]
    return [each for each in needed if each.name != "meshtune"] + [each for name in inner for each in wanted(name)]


def locked(path: Path) -> dict[str, str]:
    """Version by package; each has hashes."""
    entries = re.findall(r"^(\S+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", path.read_text(), re.MULTILINE)
    assert len(entries) == len(re.findall(r"^\w", path.read_text(), re.MULTILINE))
    return {name: version for name, version, _ in entries}


@pytest.mark.parametrize(
    ("path", "extras"),
    [
        (ROOT / "requirements.lock", ("dev",)),
        (SERVICE / "requirements.lock", ("all",)),
        (ROOT / "examples" / "demo.lock", ("torch", "report")),
    ],
)
def test_the_lock_has_every_dependency_with_hashes_in_the_versions_that_are_tested(path, extras):
    lock = locked(path)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*map(Requirement, project["dependencies"]), *(each for extra in extras for each in wanted(extra))]
    names = {canonicalize_name(each.name): each for each in needed}
    assert {name for name, each in names.items() if not each.specifier.contains(lock.get(name, "0"))} == set()
    pinned = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned
    tested = {canonicalize_name(name): version for name, version in pinned}
    # torch's CPU build has a local version.
    found = {name: version.partition("+")[0] for name, version in lock.items() if name in tested}
    assert found == {name: tested[name] for name in found}
    assert extras != ("dev",) or set(found) == set(tested)


def test_images_that_have_a_digest_have_it_whole():
    compose = yaml.safe_load((SERVICE / "compose.yaml").read_text())
    images = re.findall(r"^FROM (\S+:\S+)", (SERVICE / "Dockerfile").read_text(), re.MULTILINE)
    images += [part["image"] for part in compose["services"].values() if "image" in part]
    assert len(images) == 3
    assert all(re.fullmatch(r"[a-z]+:[\w.-]+(@sha256:[0-9a-f]{64})?", image) for image in images)


def test_the_image_installs_nothing_without_a_hash():
    text = (SERVICE / "Dockerfile").read_text().replace("\\\n", "")
    installs = re.findall(r"pip (?:install|wheel) [^&\n]*", text)
    assert installs
    assert all("--require-hashes" in each or "--no-deps" in each for each in installs)
