"""Reads campaign specs (YAML text or a JSON body) into a CampaignSpec, and tells every mistake at once.

The document may name presets and leave out what has a default; the CampaignSpec that comes back is complete. Sections
are read one by one, so that a mistake in one does not hide those in the next; what must hold between sections is
checked for those that were read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any

from meshtune.runners import registry
from meshtune.runners.documents import merged, read_value
from meshtune.runners.extras import MissingExtra
from meshtune.runners.json_files import shown
from meshtune.runners.programs.transformers.config_json import read_config
from meshtune.runners.programs.workloads.base import Workload
from meshtune.search_spaces.checks import InvalidValue, Problem, did_you_mean, limits_of, problems_as
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.columns import Capabilities, SpaceContext
from meshtune.search_spaces.knobs import KnobSet, sizes_of
from meshtune.search_spaces.model import NO_MODEL, UNKNOWN, ModelSpec
from meshtune.search_spaces.physics.recipes import with_recipe
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import PLAN_FIELDS, Plan
from meshtune.search_spaces.plan_names import in_full
from meshtune.search_spaces.presets import cluster_presets, described, model_presets
from meshtune.search_spaces.recipe import PLAIN, Recipe
from meshtune.search_spaces.space import MAX_COMBINATIONS, Bounds, Space, SpaceTooLarge
from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.campaign.objective import Objective
from meshtune.tuner.campaign.spec import (
    FREE,
    SCALARS,
    Acceptance,
    Backend,
    Budget,
    CampaignSpec,
    StopRule,
    TrialLimits,
    build_space,
    space_of,
)
from meshtune.tuner.prediction.limits import Limits
from meshtune.tuner.prediction.memory_needs import open_recompute
from meshtune.tuner.prediction.predict import Basis
from meshtune.tuner.prediction.quote import Quote, make_limits, make_quote
from meshtune.tuner.search.base import SearchError
from meshtune.tuner.search.registry import create_search, searches
from meshtune.tuner.specs.document import DEFAULTS, InvalidSpec, find_unstorable
from meshtune.tuner.specs.knobs import CATALOGS, KNOBS, read_knobs, with_workload_defaults
from meshtune.tuner.specs.named_files import HF_CONFIG, resolved
from meshtune.tuner.specs.preflight import preflight

# What an import leaves to its user, as texts.
OPEN_QUESTIONS = "open_questions"
DEFAULT_TRIALS = 20
MODEL_MISSING = "is missing: give a preset, hf_config or a description"


def read_spec(document: object, home: Home | None) -> tuple[CampaignSpec, Space]:
    """The spec that a document describes, and its space, in which a plan is legal. Raises InvalidSpec."""
    spec, space = parse_spec(document, home)
    require_legal(space)
    return spec, space


def quoted(document: object, spec: CampaignSpec, space: Space, basis: Basis) -> Quote:
    """The quote of a spec that was read from the document, with the limits that it leaves open. Raises InvalidSpec
    where the time limit of a trial cannot hold the baseline."""
    with problems_as(InvalidSpec):
        return make_quote(spec, space, basis, lifted=_lifted(document))


def limits_left_open(document: object, spec: CampaignSpec, space: Space, basis: Basis) -> Limits:
    """The limits of that quote alone. Raises as `quoted`."""
    with problems_as(InvalidSpec):
        return make_limits(spec, space, basis, lifted=_lifted(document))


def _lifted(document: object) -> bool:
    """True where the document says that there is no limit of device-hours."""
    budget = document.get("budget") if isinstance(document, Mapping) else None
    return isinstance(budget, Mapping) and budget.get("device_hours", 0) is None


def read_model(section: object) -> ModelSpec:
    """The model of a spec's section alone: a preset's name, or a mapping. Raises InvalidSpec."""
    reading = _Reading({"model": {} if section in (None, UNKNOWN) else section}, ())
    reading._preset("model", ModelSpec, model_presets())
    if reading.problems:
        raise InvalidSpec(reading.problems)
    model: ModelSpec = reading.values["model"]
    return model


def legal_space(spec: CampaignSpec) -> Space:
    """The space of a spec that was parsed. Raises InvalidSpec where no plan in it is legal."""
    space = space_of(spec)
    require_legal(space)
    return space


def require_legal(space: Space) -> None:
    """Raises InvalidSpec where no plan is legal, with the rules that reject most, and where they cannot be counted."""
    if len(space) == 0:
        raise InvalidSpec([Problem("space", _why_empty(space))])
    try:
        space.totals  # noqa: B018
    except SpaceTooLarge as error:
        raise InvalidSpec([Problem("knobs", str(error))]) from None


def parse_spec(
    document: object, home: Home | None, max_combinations: int = MAX_COMBINATIONS
) -> tuple[CampaignSpec, Space]:
    """The spec that a document describes, and its space, of which nothing is enumerated. Nothing is started.

    home: lets the runner check that it can run the trials there; None: only the space is wanted, here nothing runs.
    A key with nothing after it counts as left out. Raises InvalidSpec with every problem of every section, but for a
    space without a legal plan.
    """
    if not isinstance(document, Mapping):
        kind = "nothing" if document is None else f"a {type(document).__name__}"
        raise InvalidSpec([Problem("", f"a spec is a mapping of keys, not {kind}")])
    foreign = find_unstorable(document)
    refused = {problem.path.partition(".")[0] for problem in foreign}
    if "" in refused:
        raise InvalidSpec(foreign)
    given = {key: value for key, value in document.items() if value is not None}
    if "runner" not in refused:
        try:
            given = dict(resolved(given, to_run=home is not None))
            from_site = [problem.under("runner") for problem in find_unstorable(given.get("runner"))]
        except InvalidValue as error:
            from_site = list(error.problems)
        if from_site:
            foreign += from_site
            refused |= {"runner"}
    reading = _Reading(given, refused, problems=foreign)
    reading.read()
    space = _check_between(reading, home, max_combinations)
    if reading.problems or space is None:
        raise InvalidSpec(reading.problems)
    return CampaignSpec(**reading.values), space


@dataclass(slots=True)
class _Reading:
    """A document being read: the values so far by CampaignSpec field, and the problems. refused: the keys whose values
    are not plain, which is among the problems already; they are not read."""

    document: Mapping[str, Any]
    refused: Collection[str]
    values: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @contextmanager
    def noting(self, section: str) -> Iterator[None]:
        """Note the problems of a section, and go on."""
        try:
            yield
        except InvalidValue as error:
            self.problems += [problem.under(section) for problem in error.problems]
        except (SearchError, registry.UnknownBackend, MissingExtra) as error:
            self.problems.append(Problem(section, str(error)))

    def section(self, name: str, kind: type, raw: object) -> None:
        """Read one section into `values`, or note its problems."""
        if name in self.refused:
            return
        with self.noting(name):
            if kind is Plan or (kind is Bounds and isinstance(raw, Mapping)):
                raw = in_full(raw, KnobSet(self.values.get("knobs", ())))
            self.values[name] = read_value(kind, raw)

    def read(self) -> None:
        """Read everything but what follows from several sections."""
        self._open_questions()
        known = [entry.name for entry in fields(CampaignSpec)]
        for key in self.document:
            if key not in known and key not in (OPEN_QUESTIONS, CATALOGS):
                self.problems.append(Problem(key, f"is not a known key; {did_you_mean(key, known)}"))
        for name, kind in SCALARS.items():
            if name in self.document:
                self.section(name, kind, self.document[name])
        for name, limit in limits_of(CampaignSpec).items():
            if name in self.values and (unfit := limit.unfit(self.values[name])):
                self.problems.append(Problem(name, unfit))
                del self.values[name]
        batch = self.document.get("global_batch_size")
        if "global_batch_size" in self.refused:
            pass
        elif batch == FREE or (isinstance(batch, int) and not isinstance(batch, bool) and batch >= 1):
            self.values["global_batch_size"] = None if batch == FREE else batch
        else:
            given = "is missing" if batch is None else f"must be at least 1, or {FREE!r}, not {batch!r}"
            self.problems.append(Problem("global_batch_size", given))
        self._preset("model", ModelSpec, model_presets())
        self.section("training", Recipe, self.document.get("training", {}))
        self._preset("cluster", ClusterSpec, cluster_presets())
        self.section("space", Bounds, self.document.get("space", {}))
        self._knobs()
        self.section("budget", Budget, self.document.get("budget", {"trials": DEFAULT_TRIALS}))
        self.section("trial", TrialLimits, self.document.get("trial", {}))
        self.section("stop", StopRule, self.document.get("stop", {}))
        self._backend("workload", registry.WORKLOADS)
        self._backend("search", searches())
        self._backend("runner", registry.runners())
        self.values["baseline"] = None
        if (baseline := self.document.get("baseline")) is not None:
            self.section("baseline", Plan, baseline)

    def _knobs(self) -> None:
        if not {KNOBS, CATALOGS} & {*self.refused}:
            with self.noting(""):
                self.values["knobs"] = read_knobs(self.document)
        accepted = self.document.get("accept", ())
        accepted = [accepted] if isinstance(accepted, str) else accepted
        self.section("accept", tuple[Acceptance, ...], accepted)

    def _open_questions(self) -> None:
        """What `meshtune import` could not read: a spec with one of them is none yet."""
        asked = self.document.get(OPEN_QUESTIONS, [])
        if not isinstance(asked, list) or not all(isinstance(text, str) for text in asked):
            self.problems.append(Problem(OPEN_QUESTIONS, f"must be a list of texts, not {shown(asked)}"))
            return
        for number, text in enumerate(asked):
            message = f"is not answered: {text}. Write the answer into the spec, and delete this line"
            self.problems.append(Problem(f"{OPEN_QUESTIONS}.{number}", message))

    def _preset(self, name: str, kind: type, presets: Mapping[str, Mapping[str, Any]]) -> None:
        """A section that is a preset's name, a preset with overrides, or a whole description."""
        if name in self.refused:
            return
        raw = self.document.get(name)
        if name == "model" and raw in (None, UNKNOWN):
            self.values[name] = NO_MODEL
            return
        if isinstance(raw, str):
            raw = {"preset": raw}
        if name == "model" and isinstance(raw, Mapping) and HF_CONFIG in raw:
            with self.noting(f"{name}.{HF_CONFIG}"):
                self.section(name, kind, _with_config(raw))
            return
        if isinstance(raw, Mapping) and "preset" in raw:
            chosen = raw["preset"]
            if not isinstance(chosen, str) or chosen not in presets:
                hint = did_you_mean(str(chosen), presets)
                self.problems.append(Problem(f"{name}.preset", f"no {name} preset is called {chosen!r}; {hint}"))
                return
            raw = merged(described(presets[chosen]), {key: value for key, value in raw.items() if key != "preset"})
        elif isinstance(raw, Mapping):
            raw = {"name": name, **raw}
        elif raw is None:
            told = f"is missing: give a preset or a description; {did_you_mean('', presets)}"
            self.problems.append(Problem(name, told))
            return
        self.section(name, kind, raw)

    def _backend(self, name: str, known: Collection[str]) -> None:
        """A section that names an implementation: `kind`, and its options beside it."""
        if name in self.refused:
            return
        raw = self.document.get(name, DEFAULTS[name])
        if isinstance(raw, str):
            raw = {"kind": raw}
        if not isinstance(raw, Mapping):
            self.problems.append(Problem(name, f"must be a name or a mapping with `kind`, not {raw!r}"))
            return
        kind = raw.get("kind", DEFAULTS[name])
        if not isinstance(kind, str) or kind not in known:
            hint = did_you_mean(str(kind), known)
            self.problems.append(Problem(f"{name}.kind", f"no {name} is called {kind!r}; {hint}"))
            return
        self.values[name] = Backend(kind=kind, options={key: raw[key] for key in raw if key != "kind"})


def _check_between(reading: _Reading, home: Home | None, max_combinations: int) -> Space | None:
    """Check what must hold between sections; return the space when it could be built."""
    values, problems = reading.values, reading.problems
    workload = _checked_backends(reading, home)
    if not {"model", "cluster", "space", "knobs", "global_batch_size"} <= values.keys() or workload is None:
        _check_baseline_alone(reading)
        return None
    batch, bounds, cluster = values["global_batch_size"], values["space"], values["cluster"]
    values["knobs"] = with_workload_defaults(values["knobs"], reading.document, workload.option_values)
    knobs = KnobSet(values["knobs"])
    problems += [problem.under(KNOBS) for problem in workload.problems_with_knobs(knobs)]
    if batch is not None and bounds.grad_accum_steps is not None:
        message = f"follows from the global batch; set global_batch_size: {FREE} to search it"
        problems.append(Problem("space.grad_accum_steps", message))
    objective, device = values.get("objective"), cluster.device
    if objective is Objective.MFU and workload.dtype not in device.peak_flops:
        known = ", ".join(sorted(device.peak_flops)) or "none"
        needed = f"mfu needs cluster.device.peak_flops.{workload.dtype}; {device.name} has: {known}"
        problems.append(Problem("objective", needed))
    generates = values.get("training", PLAIN).rollout is not None
    if objective in (Objective.MFU, Objective.TFLOPS_PER_DEVICE) and (generates or not values["model"].known):
        needed = "steps that generate no rows" if generates else "the model's shapes: name the model"
        problems.append(Problem("objective", f"{objective} needs {needed}"))
    if objective is Objective.STEP_TIME and batch is None:
        message = f"step_time with global_batch_size: {FREE} would choose the smallest batch"
        problems.append(Problem("objective", message))
    try:
        with problems_as(InvalidValue, KNOBS):
            sizes_of(knobs, cluster)
        space = build_space(bounds, values["model"], cluster, batch, workload, max_combinations, knobs)
        if values["model"].known and reading.document.get("space", {}).get("recompute") is None:
            recipe = values.get("training", PLAIN)
            code = with_recipe(workload.framework, recipe)
            space, _ = open_recompute(space, Training(values["model"], cluster, code, recipe))
            values["space"] = space.bounds
    except InvalidValue as error:
        problems += error.problems
        return None
    except SpaceTooLarge as error:
        problems.append(Problem("space", str(error)))
        return None
    _complete_baseline(reading, space)
    return space


def _checked_backends(reading: _Reading, home: Home | None) -> Workload | None:
    """Let each backend check its options; return the workload when it is usable."""
    values = reading.values
    runner, chosen, search = (values.get(section) for section in ("runner", "workload", "search"))
    workload: Workload | None = None
    fit: dict[str, Backend] = {}
    with reading.noting("workload"):
        if chosen is not None:
            if "cluster" in values:
                options = registry.complete_workload(chosen.kind, chosen.options, values["cluster"])
                chosen = values["workload"] = replace(chosen, options=options)
            workload = registry.create_workload(chosen.kind, chosen.options)
        if home is not None and chosen is not None and runner is not None:
            registry.require_library(runner.kind, chosen.kind)
    model = values.get("model")
    if workload is not None and model is not None and (model.known or workload.told_shapes == frozenset()):
        reading.problems += [problem.under("workload") for problem in workload.problems_with(model)]
        recipe = values.get("training", PLAIN)
        unmet = [*recipe.problems_with(model), *workload.problems_with_recipe(recipe, model)]
        reading.problems += [problem.under("training") for problem in unmet]
    elif workload is not None and model is not None:
        told = f"is told {', '.join(sorted(workload.told_shapes))}" if workload.told_shapes else "needs its shapes"
        reading.problems.append(Problem("model", f"{MODEL_MISSING}; the workload {told}"))
        del values["model"]
    if workload is not None and "knobs" in values:
        unknown = workload.problems_with_names(KnobSet(values["knobs"]))
        reading.problems += [problem.under("workload") for problem in unknown]
    if chosen is not None and runner is not None:
        reading.problems += registry.check_pair(runner.kind, chosen.kind)
    with reading.noting("runner"):
        if runner is not None and home is not None and "cluster" in values:
            registry.create_runner(runner.kind, home.runner(runner.kind), values["cluster"], runner.options).close()
        elif runner is not None:
            registry.check_options(runner.kind, runner.options)
    if home is not None and chosen is not None and runner is not None:
        unfit = {tuple(problem.path.split(".")[:2]) for problem in reading.problems}
        for name, part in (("workload", chosen), ("runner", runner)):
            fit[name] = replace(part, options={k: part.options[k] for k in part.options if (name, k) not in unfit})
        with suppress(InvalidValue, registry.UnknownBackend):  # told above
            reading.problems += [problem for problem, sure in preflight(**fit, home=home.root) if sure]
    with reading.noting("search"):
        if search is not None:
            create_search(search.kind, seed=values.get("seed", 0), options=search.options)
    return workload


def _check_baseline_alone(reading: _Reading) -> None:
    """Note what no training code can make of the baseline, where its space is not known for other mistakes."""
    values = reading.values
    if values["baseline"] is None or values.get("knobs", True) or not {"model", "cluster"} <= values.keys():
        return
    context = SpaceContext(
        model=values["model"],
        cluster=values["cluster"],
        global_batch_size=values.get("global_batch_size"),
        capabilities=Capabilities(kv_replication=True, uneven_vocab=True),
        tp_across_nodes="space" not in values or values["space"].tp_across_nodes,
    )
    _complete_baseline(reading, Space.listed([values["baseline"]], context), unknown=("zero", "trainer-"))


def _complete_baseline(reading: _Reading, space: Space, unknown: tuple[str, ...] = ()) -> None:
    """Fill in the dp and grad_accum_steps that the document leaves out, and check the whole plan, but for rules whose
    names begin with those that are unknown."""
    given = reading.values.get("baseline")
    if given is None:
        return
    written = in_full(reading.document["baseline"], space.knobs)
    named = {name: getattr(given, name) for name in PLAN_FIELDS if name in written}
    plan = space.complete(**named, knobs=given.knobs)
    broken = [one for one in space.explain(plan, ignore_bounds=True) if not one.constraint.startswith(unknown)]
    reading.problems.extend(Problem("baseline", violation.message) for violation in broken)
    reading.values["baseline"] = plan


def _why_empty(space: Space) -> str:
    """Which rules leave no plan, those that reject most first."""
    counts = space.counts
    ranked = sorted(counts.rejected.items(), key=lambda item: -item[1])[:4]
    shares = "; ".join(f"{name} rejects {count}" for name, count in ranked)
    first = space.complete(**{name: values[0] for name, values in space.dimensions.items() if name in PLAN_FIELDS})
    example = next((f"; the first, {first.key}: {broken.message}" for broken in space.explain(first)), "")
    return f"no legal plan among {counts.combinations} combinations: {shares}{example}"


def _with_config(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The shapes of a config.json, and over them those beside it. Raises InvalidValue."""
    config = raw[HF_CONFIG]
    if isinstance(config, str):
        raise InvalidValue([Problem("", f"{config!r} is a path, which only the command line reads; give the content")])
    own = {key: value for key, value in raw.items() if key != HF_CONFIG}
    return {"name": "model", **read_config(config), **own}
