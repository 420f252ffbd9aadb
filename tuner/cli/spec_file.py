"""What a command line says of a campaign to be: the spec's file, and a plan in words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from meshtune.runners.untrusted_text import SLOW_LIMITS, UnreadableText, read_file
from meshtune.search_spaces.checks import InvalidValue, Problem, problems_as, raising
from meshtune.search_spaces.presets import model_presets
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.campaign import DATABASE, Home
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.cli.common import WrongCall, errors
from meshtune.tuner.cli.options import HomePlace
from meshtune.tuner.prediction.predict import Basis
from meshtune.tuner.specs.document import InvalidSpec, parse_yaml
from meshtune.tuner.specs.named_files import HF_CONFIG, with_local_files, with_model_file, with_own_paths
from meshtune.tuner.specs.read import read_spec


def read_spec_file(
    spec: Path, home: Path | None, cluster: Path | None = None, model: str = ""
) -> tuple[Any, CampaignSpec, Space]:
    """The document in a spec's file, what it means, and its space. Creates nothing.

    model: taken in place of the spec's, a preset or a config.json from here.
    cluster: a file whose `cluster` section is taken in place of the spec's. home None: the spec is only looked at, so
    that its runner need not be able to run it here. Raises WrongCall with every mistake, OSError but for a file that is
    not there.
    """
    document = read_document(spec, cluster, model)
    with problems_as(partial(wrong_spec, spec), of=InvalidSpec):
        return document, *read_spec(document, None if home is None else Home(home.absolute()))


def read_document(spec: Path, cluster: Path | None = None, model: str = "") -> object:
    """The document in a spec's file, with what it names in other files, before anything looks at what it means. Raises
    as `read_spec_file`. model: of a config.json, with the sequence length of the spec's."""
    try:
        with raising(WrongCall, f"{spec}", UnreadableText), problems_as(partial(wrong_spec, spec), of=InvalidSpec):
            document = parse_yaml(read_file(spec, SLOW_LIMITS.max_bytes, regular=False))
    except FileNotFoundError as error:
        raise WrongCall(f"{spec}: {error.strerror}; `meshtune examples` lists specs to begin with") from None
    if not isinstance(document, dict):
        return document
    with raising(WrongCall, "", InvalidValue):
        if model.endswith(".json"):
            own = document.get("model")
            own = {"preset": own} if isinstance(own, str) else own if isinstance(own, dict) else {}
            known = {**model_presets().get(str(own.get("preset")), {}), **own}
            length = {"seq_len": known["seq_len"]} if "seq_len" in known else {}
            document = with_model_file({**document, "model": {HF_CONFIG: model, **length}}, Path())
        elif model:
            document = {**document, "model": model}
        whole = with_local_files(document, _folder(spec), lambda told: errors.print(f"{spec}: {told}", soft_wrap=True))
    return whole if cluster is None else {**whole, "cluster": cluster_in(cluster)}


def text_of(spec: Path, document: object) -> str:
    """The text of a spec's file; empty where the document has other parts, or the file can be read once only."""
    if not spec.is_file():
        return ""
    text = read_file(spec, SLOW_LIMITS.max_bytes)
    return text if parse_yaml(text) == document else ""


def yaml_file(file: Path, start: str) -> object:
    """The document in a file that is no spec. start: what a refusal begins with. Raises WrongCall, OSError."""
    try:
        document = parse_yaml(read_file(file, SLOW_LIMITS.max_bytes, regular=False))
        return with_own_paths(document, _folder(file), errors.print) if isinstance(document, dict) else document
    except (UnreadableText, InvalidSpec) as error:
        raise WrongCall(f"{start}{error}") from None


def _folder(file: Path) -> Path:
    """From where paths in it count: those in a pipe from the present folder."""
    return file.parent if file.is_file() else Path()


def wrong_spec(spec: Path, problems: Sequence[Problem]) -> WrongCall:
    return mistaken(f"{spec}: the spec", problems)


def mistaken(what: str, problems: Sequence[Problem]) -> WrongCall:
    lines = [f"  {problem}" for problem in problems]
    mistakes = f"{len(lines)} mistake{'s' if len(lines) > 1 else ''}"
    return WrongCall("\n".join([f"{what} has {mistakes}:", *lines]))


def stored_basis(spec: CampaignSpec, place: HomePlace, trials: Sequence[Trial] = ()) -> Basis:
    """The basis of predictions that the home's database has, see `known_basis`. Without a database none is looked for,
    and nothing of one loaded; one that cannot be read is told, and predictions do without."""
    if not place.db and not (place.home / DATABASE).is_file():
        return Basis()
    from meshtune.tuner.cli.at_home import open_service
    from meshtune.tuner.service.calibrations import known_basis
    from meshtune.tuner.store import StoreError

    try:
        with open_service(place) as service:
            return known_basis(service.store, spec, trials=trials)
    except WrongCall:  # there is none yet
        return Basis()
    except StoreError as error:
        errors.print(f"meshtune: no calibration was looked for: {error}", style="yellow", soft_wrap=True)
        return Basis()


def cluster_in(file: Path) -> object:
    """The `cluster` section of a file, such as `meshtune cluster probe -o` writes. Raises WrongCall."""
    try:
        document = yaml_file(file, f"--cluster {file}: ")
    except FileNotFoundError:
        raise WrongCall(f"--cluster {file}: is not there; `meshtune cluster probe -o {file}` writes it") from None
    if not isinstance(document, dict) or "cluster" not in document:
        raise WrongCall(f"--cluster {file}: has no section `cluster`")
    return document["cluster"]
