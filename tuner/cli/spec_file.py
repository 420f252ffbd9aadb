"""What a command line says of a campaign to be: the spec's file, and a plan in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshtune.runners.documents import read_value
from meshtune.runners.untrusted_text import SLOW_LIMITS, UnreadableText, read_file
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.cli.common import Refused
from meshtune.tuner.specs.document import InvalidSpec, parse_yaml
from meshtune.tuner.specs.read import read_spec


def read_spec_file(spec: Path, home: Path | None, cluster: Path | None = None) -> tuple[object, CampaignSpec, Space]:
    """The document in a spec's file, what it means, and its space. Creates nothing.

    cluster: a file whose `cluster` section is taken in place of the spec's. home None: the spec is only looked at, so
    that its runner need not be able to run it here. Raises Refused with every mistake, OSError but for a file that is
    not there.
    """
    try:
        document = parse_yaml(read_file(spec, SLOW_LIMITS.max_bytes, regular=False))
        if cluster is not None and isinstance(document, dict):
            document = {**document, "cluster": _cluster_in(cluster)}
        return document, *read_spec(document, None if home is None else Home(home.absolute()))
    except FileNotFoundError as error:
        raise Refused(f"{spec}: {error.strerror}; `meshtune examples` lists specs to begin with") from None
    except UnreadableText as error:
        raise Refused(f"{spec}: {error}") from None
    except InvalidSpec as error:
        lines = [f"  {problem}" for problem in error.problems]
        mistakes = f"{len(lines)} mistake{'s' if len(lines) > 1 else ''}"
        raise Refused("\n".join([f"{spec}: the spec has {mistakes}:", *lines])) from None


def _cluster_in(file: Path) -> object:
    """The `cluster` section of a file, such as `meshtune cluster probe -o` writes. Raises Refused."""
    try:
        document = parse_yaml(read_file(file, SLOW_LIMITS.max_bytes, regular=False))
    except FileNotFoundError:
        raise Refused(f"--cluster {file}: is not there; `meshtune cluster probe -o {file}` writes it") from None
    except (UnreadableText, InvalidSpec) as error:
        raise Refused(f"--cluster {file}: {error}") from None
    if not isinstance(document, dict) or "cluster" not in document:
        raise Refused(f"--cluster {file}: has no section `cluster`")
    return document["cluster"]


def plan_fields(option: str, text: str) -> dict[str, Any]:
    """Plan fields from the `name=value,name=value` of an option. Raises Refused."""
    given = dict(part.partition("=")[::2] for part in text.replace(",", " ").split())
    try:
        plan = read_value(Plan, given)
    except InvalidValue as error:
        raise Refused(f"{option}: {error}") from None
    return {name: getattr(plan, name) for name in given}
