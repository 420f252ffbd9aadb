"""The spec of a calibration: a few short trials of a spec's workload on one node of its cluster, chosen to tell the
physics' constants apart. Where the model does not fit there, it is cut to fewer layers of the same widths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from meshtune.runners.registry import create_runner, require_library
from meshtune.search_spaces.checks import InvalidValue, Problem, problems_as
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.training import Training, missing
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.calibration import CALIBRATION, LEAST_TRIALS
from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.campaign.spec import Backend, Budget, CampaignSpec, StopRule, build_space, workload_of
from meshtune.tuner.prediction.memory_needs import sure_plans
from meshtune.tuner.prediction.predict import Basis
from meshtune.tuner.prediction.quote import make_limits
from meshtune.tuner.specs.document import InvalidSpec
from meshtune.tuner.specs.preflight import preflight
from meshtune.tuner.specs.read import require_legal

DEFAULT_TRIALS = 8
# The model is cut until so many times more plans than trials likely fit: alike ones tell the constants apart badly.
CHOICE = 4
# The fewest sequences of a step per device: fewer leave no micro-batches to choose from.
SEQUENCES = 8
# Degrees that may be larger on the whole cluster than there are devices here, and the value that goes anywhere.
DEGREES = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "etp": 0, "vpp": 1, "zero_group": 0}


@dataclass(frozen=True, slots=True)
class CalibrationSetup:
    """The campaign's spec and space. notes: how it differs from the spec that it was made of, in words."""

    spec: CampaignSpec
    space: Space
    notes: tuple[str, ...]


def calibration_setup(
    spec: CampaignSpec,
    home: Home | None = None,
    *,
    nodes: int | None = None,
    devices: int | None = None,
    trials: int = DEFAULT_TRIALS,
) -> CalibrationSetup:
    """home: lets the runner check that it can run the trials there, as in `parse_spec`. nodes: of the cluster, 1 by
    default. devices: so many of one node instead.

    Raises InvalidSpec for sizes that the cluster has not, for facts of it that times depend on and that are missing,
    where nothing fits, and where the runner cannot run it; MissingExtra.
    """
    cluster = _part_of(spec.cluster, nodes, devices)
    workload, runner = workload_of(spec), spec.runner
    if home is not None:
        require_library(runner.kind, spec.workload.kind)
        with problems_as(InvalidSpec, "runner"):
            create_runner(runner.kind, home.runner(runner.kind), cluster, runner.options).close()
        if missed := [problem for problem, sure in preflight(spec.workload, runner, home.root) if sure]:
            raise InvalidSpec(missed)
    if trials < LEAST_TRIALS:
        raise InvalidSpec([Problem("trials", f"must be at least {LEAST_TRIALS}, not {trials}")])
    if spec.training.rollout is not None:
        raise InvalidSpec([Problem("training.rollout", "cannot be calibrated: it is of engines, and of rows' lengths")])
    if problems := missing(Training(spec.model, cluster, workload.framework)):
        raise InvalidSpec(problems)
    batch = spec.global_batch_size
    if batch is not None:  # as many sequences per device as the spec's, or SEQUENCES
        batch = cluster.devices * max(SEQUENCES, -(-batch // spec.cluster.devices))
    given = {name: values for name in DEGREES if (values := getattr(spec.space, name)) is not None}
    wider: dict[str, Any] = {name: tuple(sorted({DEGREES[name], *values})) for name, values in given.items()}
    bounds = replace(spec.space, **wider)
    tried: list[tuple[int, ModelSpec, Space]] = []
    for model in _depths(spec.model, cluster.devices):
        space = build_space(bounds, model, cluster, batch, workload)
        sure = sure_plans(space, Training(model, cluster, workload.framework))
        tried.append((sure, model, space))
        if sure >= CHOICE * trials or sure == len(space) > 0:
            break
    sure, model, space = max(tried, key=lambda one: one[0])
    require_legal(space)
    if sure < LEAST_TRIALS:
        problem = f"{sure} of {len(space)} plans likely fit on {cluster.devices} devices, with {model.layers} layers"
        raise InvalidSpec([Problem("model", problem)])
    notes = [f"{cluster.nodes} x {cluster.devices_per_node} devices of {spec.cluster.name}"]
    if model.layers != spec.model.layers:
        notes.append(f"{model.layers} of {model.name}'s {spec.model.layers} layers, since all do not fit there")
    if batch != spec.global_batch_size:
        notes.append(f"global batch {batch} in place of {spec.global_batch_size}")
    chosen = replace(
        spec,
        name=f"calibrate {spec.name}"[:100],
        model=model,
        cluster=cluster,
        global_batch_size=batch,
        space=bounds,
        baseline=None,
        search=Backend(kind=CALIBRATION),
        budget=Budget(trials=trials),
        trial=replace(spec.trial, racing=False),
        stop=StopRule(chance=0.0),
        pareto=False,
        confirm=0,
        warm_start=False,
    )
    chosen = make_limits(chosen, space, Basis()).laid_over(chosen)
    return CalibrationSetup(chosen, space, tuple(notes))


def _part_of(cluster: ClusterSpec, nodes: int | None, devices: int | None) -> ClusterSpec:
    """So many nodes, or so many devices of one node. Raises InvalidSpec."""
    if nodes is not None and devices is not None:
        raise InvalidSpec([Problem("nodes", "goes not with devices, which are of one node")])
    count = 1 if nodes is None else nodes
    if not 1 <= count <= cluster.nodes:
        raise InvalidSpec([Problem("nodes", f"must be 1 to {cluster.nodes}, as the cluster has, not {count}")])
    if devices is None:
        return replace(cluster, nodes=count)
    if not 1 <= devices <= cluster.devices_per_node:
        problem = f"must be 1 to {cluster.devices_per_node}, as a node has, not {devices}"
        raise InvalidSpec([Problem("devices", problem)])
    whole = devices % cluster.devices_per_module == 0
    split: dict[str, Any] = {} if whole else {"devices_per_module": 1, "module_link": None}
    return replace(cluster, nodes=1, devices_per_node=devices, **split)


def _depths(model: ModelSpec, devices: int) -> Iterator[ModelSpec]:
    """The model, then with half of its layers each time, which stages of a pipeline over the devices divide."""
    layers = model.layers
    yield model
    while layers > 1:
        layers //= 2
        if layers > devices:
            layers -= layers % devices
        try:
            yield replace(model, layers=layers)
        except InvalidValue:  # other fields of the model count layers, too
            return
