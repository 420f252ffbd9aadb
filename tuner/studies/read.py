"""Reads a study's folder: `study.yaml` and the specs beside it, and tells every mistake at once, with its path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources.abc import Traversable
from typing import Any

from meshtune.runners.documents import read_value
from meshtune.runners.registry import SIMULATED
from meshtune.runners.untrusted_text import UnreadableText
from meshtune.search_spaces.checks import InvalidValue, Problem, did_you_mean, problems_as
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.specs.document import InvalidSpec, changed_document, parse_yaml
from meshtune.tuner.specs.read import read_spec
from meshtune.tuner.studies.measures import MeasureQuestion, read_question
from meshtune.tuner.studies.study import STUDY_FILE, Study

# Sections with a kind, whose options another kind has not: they are replaced whole; others by a merge patch.
BACKENDS = frozenset({"runner", "workload", "search"})
# What trains where jobs are run, in place of the simulated training code, unless the user names another one.
REAL_WORKLOAD = {"kind": "torch"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One campaign of a study. name: of its row in `campaigns`. seed: None where the spec's own holds."""

    name: str
    seed: int | None
    spec: CampaignSpec
    space: Space

    @property
    def id(self) -> str:
        return self.name if self.seed is None else f"{self.name}-{self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedStudy:
    """A study, checked against its specs. folder: its name. planned: its campaigns in the order of running. texts:
    of its files, by name."""

    folder: str
    study: Study
    planned: tuple[Planned, ...]
    texts: Mapping[str, str]


def read_study(folder: Traversable) -> Study:
    """What `study.yaml` says, without a look at its specs. Raises InvalidValue with every mistake, from the file on."""
    document = _document(folder, STUDY_FILE)
    with problems_as(InvalidValue, STUDY_FILE):
        return read_value(Study, document)


def load_study(folder: Traversable, home: Home | None, sections: Mapping[str, Any] | None = None) -> LoadedStudy:
    """The study with its campaigns. sections: what takes the place of every spec's own, such as another runner;
    where that leaves a simulated training code on a runner that runs jobs, the built-in trainer takes its place. home:
    see `read_spec`.

    Raises InvalidValue with every mistake, by file and path.
    """
    study = read_study(folder)
    problems = [problem.under(STUDY_FILE) for problem in _unknown(study)]
    planned: list[Planned] = []
    wrong: dict[Problem, list[str]] = {}
    for name in study.campaigns:
        try:
            planned += _campaigns(study, name, folder, home, sections or {})
        except InvalidValue as error:
            for problem in error.problems:
                wrong.setdefault(problem, []).append(name)
    problems += _placed(study, wrong)
    if not problems:
        specs = {one.name: one for one in reversed(planned)}
        problems = [problem.under(STUDY_FILE) for problem in _unanswerable(study, specs)]
    if problems:
        raise InvalidValue(problems)
    names = dict.fromkeys([STUDY_FILE, *(given.spec for given in study.campaigns.values())])
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in names}
    return LoadedStudy(folder=folder.name, study=study, planned=tuple(planned), texts=texts)


def _document(folder: Traversable, name: str, place: str = "") -> Any:
    """place: what names the file. Raises InvalidValue."""
    try:
        return parse_yaml((folder / name).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidValue([Problem(place, f"{name}: {error.strerror or error}")]) from None
    except (InvalidSpec, UnreadableText, UnicodeDecodeError) as error:
        raise InvalidValue([Problem(name, str(error))]) from None


def _campaigns(
    study: Study, name: str, folder: Traversable, home: Home | None, sections: Mapping[str, Any]
) -> Iterator[Planned]:
    """Raises InvalidValue."""
    given = study.campaigns[name]
    document = _document(folder, given.spec, f"{STUDY_FILE}.campaigns.{name}.spec")
    document = _for_runner(_changed(_changed(document, given.change), sections))
    try:
        # Seeds change nothing of a space: the first is read, the others follow from it.
        spec, space = read_spec(document, home)
    except InvalidSpec as error:
        raise InvalidValue(
            [Problem(f"{given.spec}: {one.path}" if one.path else given.spec, one.message) for one in error.problems]
        ) from None
    for seed in given.seeds or (None,):
        yield Planned(name=name, seed=seed, spec=spec if seed is None else seeded(spec, seed), space=space)


def _placed(study: Study, wrong: Mapping[Problem, Sequence[str]]) -> Iterator[Problem]:
    """What is wrong with specs, each once; with the campaigns that have it where their changes make it so. wrong: the
    campaigns by what is wrong."""
    for problem, names in wrong.items():
        spec = study.campaigns[names[0]].spec
        alike = [name for name, given in study.campaigns.items() if given.spec == spec]
        changed = (
            f" (as changed by {', '.join(f'campaigns.{name}' for name in names)})" if len(names) < len(alike) else ""
        )
        yield Problem(problem.path, f"{problem.message}{changed}")


def _changed(document: object, changes: Mapping[str, Any]) -> object:
    whole = dict.fromkeys(BACKENDS & changes.keys())  # None removes a section before the new one is put in its place
    return changed_document(changed_document(document, whole), changes)


def _for_runner(document: object) -> object:
    """The document with a training code that its runner can run."""
    if not isinstance(document, Mapping):
        return document
    sections = [document.get(name) for name in ("runner", "workload")]
    runner, workload = (one.get("kind") if isinstance(one, Mapping) else one for one in sections)
    return {**document, "workload": REAL_WORKLOAD} if runner != SIMULATED and workload == SIMULATED else document


def seeded(spec: CampaignSpec, seed: int) -> CampaignSpec:
    """The spec with another seed: of its search, and of the cluster behind the runner `simulated`."""
    runner = spec.runner
    if runner.kind == SIMULATED:
        runner = replace(runner, options={**runner.options, "seed": seed})
    return replace(spec, seed=seed, runner=runner)


def _questions(study: Study) -> Iterator[tuple[str, str, MeasureQuestion | InvalidValue]]:
    """What the rows ask: the path, the row's unit, and the question or why it is none."""
    for number, row in enumerate(study.rows):
        for way in ("predicted", "measured"):
            if (asked := getattr(row, way)) is not None:
                try:
                    yield f"rows.{number}.{way}", row.unit, read_question(asked)
                except InvalidValue as error:
                    yield f"rows.{number}.{way}", row.unit, error


def _unknown(study: Study) -> Iterator[Problem]:
    """What names a campaign, a measure or a drawing that there is not."""
    named = list[tuple[str, str]]()
    for path, unit, question in _questions(study):
        if isinstance(question, InvalidValue):
            yield from (problem.under(path) for problem in question.problems)
            continue
        named += [(f"{path}.{at}", name) for at, name in question.campaigns]
        yield from (one.under(path) for one in question.problems(path.rpartition(".")[2], unit))
    named += [(f"draw.{number}.campaigns", name) for number, one in enumerate(study.draw) for name in one.campaigns]
    for path, name in named:
        if name not in study.campaigns:
            yield Problem(path, f"no campaign is called {name!r}; {did_you_mean(name, study.campaigns)}")


def _unanswerable(study: Study, specs: Mapping[str, Planned]) -> Iterator[Problem]:
    """What a row asks of a campaign that has it not, such as a plan that is not legal in its space."""
    spec_of = {name: one.spec for name, one in specs.items()}
    for path, _, question in _questions(study):
        if not isinstance(question, InvalidValue):
            yield from (one.under(path) for one in question.problems_with(spec_of))
