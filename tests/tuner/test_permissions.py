"""What of a spec needs the scope `command`: all that is not known to be harmless."""

from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from meshtune.runners.registry import RUNNERS, WORKLOADS
from meshtune.runners.schedulers.kubernetes.options import KubernetesOptions
from meshtune.runners.schedulers.pbs.runner import PbsOptions
from meshtune.runners.schedulers.ray.runner import RayOptions
from meshtune.runners.schedulers.slurm.script import SlurmOptions
from meshtune.runners.trainer.job import Measuring
from meshtune.search_spaces.cluster import ClusterSpec, DeviceSpec, LinkSpec
from meshtune.search_spaces.layer_shapes import LatentAttention
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Bounds
from meshtune.tuner.campaign.spec import Budget, CampaignSpec, StopRule, TrialLimits
from meshtune.tuner.search.registry import SEARCHES
from meshtune.tuner.specs.document import DEFAULTS, HARMLESS, PLAIN, commands_named
from meshtune.tuner.specs.knobs import CATALOGS, KNOBS
from meshtune.tuner.specs.read import OPEN_QUESTIONS

MADE_BY = {name: search.made_by for name, search in SEARCHES.items()}
KNOWN = {"workload": WORKLOADS, "runner": RUNNERS, "search": MADE_BY}
PLAINEST = {"model": "gpt-micro", "cluster": "local-cpu", "global_batch_size": 8}


def paths(**sections: Any) -> list[str]:
    return [problem.path for problem in commands_named({**PLAINEST, **sections})]


def options_of(section: str, kind: str) -> set[str]:
    """The fields of a backend's options, by the annotated type that its module reads."""
    module = import_module(KNOWN[section][kind].partition(":")[0])
    [options] = [
        found
        for name, found in vars(module).items()
        if name.endswith("Options")
        and name.lower().startswith(("no", "trainer" if kind == "torch" else kind[:4]))
        and hasattr(found, "__dataclass_fields__")
    ]
    return {field.name for field in fields(options)}


def test_a_plain_spec_names_no_command():
    assert paths() == []
    assert paths(workload="torch", runner="local", search="physics") == []
    assert paths(workload={"kind": "torch", "dtype": "bfloat16"}, runner={"kind": "slurm", "partition": "gpu"}) == []


@pytest.mark.parametrize("kind", sorted(set(WORKLOADS) - {"torch", "simulated"}))
def test_workloads_that_run_somebodys_program_are_refused_by_name_and_as_a_section(kind):
    assert paths(workload=kind) == ["workload.kind"]
    assert paths(workload={"kind": kind, "script": "x.py"}) == ["workload.kind"]


@pytest.mark.parametrize(
    ("runner", "option"),
    [
        ("slurm", "setup"),
        ("slurm", "extra_lines"),
        ("pbs", "setup"),
        ("pbs", "extra_lines"),
        ("pbs", "mpiexec"),
        ("ray", "address"),
        ("kubernetes", "image"),
        ("kubernetes", "pod"),
        ("kubernetes", "container"),
        ("kubernetes", "service_account"),
    ],
)
def test_options_that_name_commands_files_or_places_are_refused_by_their_path(runner, option):
    assert paths(runner={"kind": runner, option: "x"}) == [f"runner.{option}"]


def test_every_part_is_told_at_once():
    found = commands_named({"workload": "command", "runner": {"kind": "pbs", "setup": ["x"], "mpiexec": "y"}})
    assert [problem.path for problem in found] == ["workload.kind", "runner.setup", "runner.mpiexec"]
    assert "'command' runs what the spec names" in found[0].message
    assert "options of pbs that do not: call_limit_s" in found[1].message


@pytest.mark.parametrize("section", sorted(DEFAULTS))
@pytest.mark.parametrize(
    "odd", [{"kind": "new"}, {"kind": 3}, {"kind": None}, {"kind": ["torch"]}, "new", 7, ["local"]]
)
def test_what_is_not_listed_is_refused(section, odd):
    assert paths(**{section: odd}) == [f"{section}.kind"]


def test_an_option_of_the_default_kind_is_looked_at_without_a_kind():
    assert paths(runner={"python": "/x"}) == ["runner.python"]
    assert paths(runner={"slots": 4}) == []
    assert paths(workload=None, runner=None, search=None) == []


@pytest.mark.parametrize("document", [None, 3, "x", [], [{"workload": "command"}]])
def test_what_is_no_spec_names_nothing(document):
    assert commands_named(document) == []


def test_a_new_section_of_a_spec_is_refused_until_it_is_listed():
    plain = PLAIN - {OPEN_QUESTIONS, CATALOGS}
    assert {field.name for field in fields(CampaignSpec)} == plain | DEFAULTS.keys() | {KNOBS}


def test_what_is_listed_exists():
    for section, kinds in HARMLESS.items():
        assert kinds.keys() <= KNOWN[section].keys()
    assert HARMLESS["runner"]["slurm"] < {field.name for field in fields(SlurmOptions)}
    assert HARMLESS["runner"]["pbs"] < {field.name for field in fields(PbsOptions)}
    assert HARMLESS["runner"]["kubernetes"] < {field.name for field in fields(KubernetesOptions)}
    assert HARMLESS["runner"]["ray"] < {field.name for field in fields(RayOptions)}
    for section, kind in (
        ("runner", "local"),
        ("runner", "simulated"),
        ("workload", "torch"),
        ("workload", "simulated"),
    ):
        assert HARMLESS[section][kind] == options_of(section, kind)


# What a plain section may hold: a new field has to be looked at, and then added here.
PLAIN_FIELDS = {
    ModelSpec: {
        *("name", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len", "activation", "norm"),
        *("position", "tied_head", "experts", "top_k", "head_dim", "latent_attention", "shared_ffn", "dense_layers"),
        *("dense_ffn", "moe_every", "window", "full_attention_every", "mtp_layers", "vocab_multiple"),
    },
    Measuring: {
        *("max_warmup_steps", "min_steps", "max_steps", "max_seconds", "precision", "profile_steps", "loss_steps"),
        *("min_seconds", "start_limit_s", "stall_s"),
    },
    Budget: {"trials", "wall_time_s", "device_hours"},
    TrialLimits: {"time_limit_s", "attempts", "racing", "queue_limit_s"},
    StopRule: {"tolerance", "chance"},
}


PLAIN_KINDS = [
    ModelSpec,
    LatentAttention,
    ClusterSpec,
    DeviceSpec,
    LinkSpec,
    Bounds,
    Plan,
    Budget,
    TrialLimits,
    StopRule,
]


@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_plain_sections_hold_numbers_choices_and_names_of_things(kind):
    texts = {name for name, hint in get_type_hints(kind).items() if hint in (str, str | None, Path)}
    assert texts <= {"name"}
    if kind in PLAIN_FIELDS:
        assert {field.name for field in fields(kind)} == PLAIN_FIELDS[kind]
