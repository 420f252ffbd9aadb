"""What of a spec needs the scope `command`: all that is not known to be harmless."""

from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from meshtune.runners.programs.workloads.simulated import SimulatedOptions
from meshtune.runners.registry import RUNNERS, SCHEDULERS, WORKLOADS, load
from meshtune.runners.trainer.job import Measuring, TrainerOptions
from meshtune.search_spaces.cluster import ClusterSpec, DeviceSpec, LinkSpec
from meshtune.search_spaces.layer_shapes import LatentAttention
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Bounds
from meshtune.tuner.campaign.spec import Budget, CampaignSpec, StopRule, TrialLimits
from meshtune.tuner.search.registry import SEARCHES
from meshtune.tuner.specs.document import DEFAULTS, PLAIN, commands_named, harmless
from meshtune.tuner.specs.knobs import CATALOGS, KNOBS
from meshtune.tuner.specs.read import OPEN_QUESTIONS

KNOWN = {"workload": WORKLOADS, "runner": RUNNERS, "search": SEARCHES}
PLAINEST = {"model": "gpt-micro", "cluster": "local-cpu", "global_batch_size": 8}


def paths(**sections: Any) -> list[str]:
    return [problem.path for problem in commands_named({**PLAINEST, **sections})]


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


# Kinds of which every option is harmless: a new one has to be looked at too.
HARMLESS_KINDS = {"local", "simulated", "external"}


@pytest.mark.parametrize("kind", RUNNERS)
def test_what_a_scheduler_lists_exists(kind):
    row = SCHEDULERS[kind]
    options = {field.name for field in fields(load(row.options))}
    assert row.harmless == options if kind in HARMLESS_KINDS else row.harmless < options


def test_what_else_is_listed_exists():
    assert all(kinds.keys() <= KNOWN[section].keys() for section, kinds in harmless().items())
    for kind, options in (("torch", TrainerOptions), ("simulated", SimulatedOptions)):
        assert WORKLOADS[kind].harmless == {field.name for field in fields(options)}


# What a plain section may hold: a new field has to be looked at, and then added here.
PLAIN_FIELDS = {
    ModelSpec: {
        *("name", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len", "activation", "norm"),
        *("position", "tied_head", "experts", "top_k", "head_dim", "latent_attention", "shared_ffn", "dense_layers"),
        *("dense_ffn", "moe_every", "window", "full_attention_every", "mtp_layers", "vocab_multiple"),
        "tower_parameters",
    },
    Measuring: {
        *("max_warmup_steps", "min_steps", "max_steps", "max_seconds", "precision", "profile_steps", "loss_steps"),
        *("min_seconds", "start_limit_s", "stall_s"),
    },
    Budget: {"trials", "wall_time_s", "device_hours", "device_hours_follow"},
    TrialLimits: {
        "time_limit_s",
        "time_limit_follow",
        "time_limit_cap_s",
        "start_s",
        "attempts",
        "racing",
        "queue_limit_s",
    },
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
