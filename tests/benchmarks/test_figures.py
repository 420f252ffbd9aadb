"""The figures that the benchmarks make of small tables, as they were stored.

`pytest tests/benchmarks/test_figures.py --update-figures` stores them anew."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import accuracy
import generalise
import knobs
import pytest
import replay
from knob_landscapes import HELD_OUT, LANDSCAPES
from pydantic import TypeAdapter
from replay_cells import read_cells
from replay_plot import plot
from replay_report import Comparison, document
from replay_runs import Contender, Rules, Run
from reported import GB, Reported, named_cluster, reported
from tables import read_table

from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.constants import DEFAULTS, UNCALIBRATED
from meshtune.search_spaces.physics.estimate import estimate
from meshtune.search_spaces.physics.framework_profiles import NANOTRON

pytestmark = pytest.mark.slow

MakeTable = Callable[..., Path]
Settings = list[dict[str, Any]]
FIGURES = Path(__file__).parent / "figures"
# Of the clock of this machine.
SECONDS = ("ask_s", "ask_seconds_p95")
# Large enough that the devices, not the launching of kernels, decide the time.
LARGE = {"hidden": 8192, "heads": 64, "kv_heads": 64, "ffn": 32768}
LLAMA = {"model": "llama-small", "precision": "bf16", "hardware": "h100_80gb", "vocab": 32768}
MPT = {"model": "mpt-small", "precision": "amp_bf16"}
TOY = {"layers": 12, "hidden": 512, "ffn": 2048}
DEEPSEEK = LLAMA | {"model": "deepseekv2-l4", "layers": 4, "hidden": 5120, "heads": 128, "kv_heads": 128, "ffn": 1536}
DEEPSEEK |= {"vocab": 102400, "experts": 160, "topk": 6}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        yield path, value
        return
    for name, inner in items:
        if name not in SECONDS:
            yield from leaves(inner, f"{path}/{name}")


@pytest.fixture
def check(request: pytest.FixtureRequest) -> Callable[[str, Any], None]:
    """The figures are the stored ones."""

    def check(name: str, figures: Any) -> None:
        file = FIGURES / f"{name}.json"
        found = dict(leaves(figures))
        if request.config.getoption("--update-figures", default=False):
            file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        stored = json.loads(file.read_text(encoding="utf-8"))
        assert list(found) == list(stored)
        assert found == pytest.approx(stored, rel=1e-6, abs=1e-9)

    return check


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts' workers are threads: a process of its own imports for 3 s. `replay` keeps its processes."""
    for script in (accuracy, generalise, knobs):
        monkeypatch.setattr(script, "ProcessPoolExecutor", lambda processes, mp_context: ThreadPoolExecutor(1))


def measured(make_table: MakeTable, settings: Sequence[dict[str, Any]], share: float) -> Settings:
    """The settings with what the physics says of them where matrix products reach `share` of the default."""
    rows = [LARGE | one for one in settings]
    kept, _ = reported(read_table(make_table(*rows, name="plain")))
    constants = replace(DEFAULTS, matmul_efficiency=DEFAULTS.matmul_efficiency * share)
    plans = columns_of([one.plan for one in kept])
    truth = estimate(kept[0].training, plans, replace(UNCALIBRATED, constants=constants))
    told = zip(rows, truth.time.step_s, truth.memory.peak_bytes, strict=True)
    return [row | {"step_time_s": float(time), "mem_gb": float(peak) / GB} for row, time, peak in told]


def test_a_replay(
    make_table: MakeTable, settings: Settings, tmp_path: Path, check: Callable[..., None], capsys: Any
) -> None:
    """Of failed settings, one setting measured more than once, a row that says too little, and past runs."""
    settings[5] |= {"status": "oom", "step_time_s": None}
    settings[6] |= {"status": "fail", "step_time_s": None}
    again = [settings[0], settings[0] | {"step_time_s": 4.0}, settings[6] | {"status": "oom"}]
    half = {"gpus": 4, "gpus_per_node": 4, "tp": 1, "pp": 2, "dp": 2}
    two = {"gpus": 16, "nodes": 2, "tp": 2, "pp": 2, "dp": 4, "grad_accum": 2}
    rows = [*settings, *again, {"layers": None}, half, half | {"micro_batch": 1, "grad_accum": 8}, two]
    tables = [make_table(*rows[::step], name=name) for name, step in (("one", 1), ("two", -1))]
    out, picture = tmp_path / "out.json", tmp_path / "out.svg"
    given = [*map(str, tables), "--search", "random,grid", "--seeds", "3", "--max-trials", "10"]
    given += ["--json", str(out), "--plot", str(picture), "--warm-start", str(tables[0])]

    assert replay.main(given) == 0

    seconds = "ask, 95 %"
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    table = next(at for at, line in enumerate(printed) if seconds in line)
    check("replay", {**json.loads(out.read_text()), "printed": printed[: table - 1]})
    texts = [line for line in picture.read_text().splitlines() if "<text" in line]
    check("replay_picture", texts)


def test_a_run_that_ends_without_the_goal_counts_as_the_most_trials(make_table: MakeTable, settings: Settings) -> None:
    """Two searches in two cells, two runs of each; one run of the second cell ends after 20 trials of 50."""
    (cell,) = read_cells(make_table(*settings)).cells
    ran = [(1, 0), (3, 2), (8, 0), (12, 4), (9, 2), (20, 4), (10, 0), (10, 0)]
    comparison = Comparison(
        cells=(cell, replace(cell, table="other")),
        contenders=(Contender("own", "random", {}), Contender("optuna-tpe", "optuna", {})),
        seeds=2,
        rules=Rules(tolerance=0.05, batch=1, max_trials=50),
        runs=tuple(Run(many != 20, (0.0,) * failed + (0.5,) * (many - failed), (0.1,)) for many, failed in ran),
    )
    told = document(comparison)
    assert [(one["reached"], one["trials_median"]) for one in told["cells"]] == [(1, 2), (1, 10), (0.5, 29.5), (1, 10)]
    assert told["summary"]["own"] == {
        "cells": 2,
        "reached": 0.75,
        "trials_median": (3 + 9) / 2,
        "trials_mean": (1 + 3 + 9 + 50) / 4,
        "trials_p90": pytest.approx(9 + 0.7 * (50 - 9)),
        "failed_median": 2,
        "failed_share": 8 / (1 + 3 + 9 + 20),
        "ask_seconds_p95": pytest.approx(0.1),
    }
    assert "own: 6<" in plot(comparison)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("accuracy", ("--calibrate", "5", "--draws", "4")),
        ("accuracy_hardware", ("--cell", "hardware")),
        ("accuracy_anchor", ("--anchor", "one-node")),
    ],
)
def test_the_accuracy_of_the_physics(
    make_table: MakeTable, settings: Settings, name: str, arguments: tuple[str, ...], check: Any, in_this_process: None
) -> None:
    """On one node with errors and rows that do not fit, and on two, where products reach 70 % of the default."""
    one = measured(make_table, settings, 0.7)
    one[0] |= {"step_time_s": one[0]["step_time_s"] * 2, "mem_gb": one[0]["mem_gb"] * 4}
    over = LARGE | {"layers": 400, "step_time_s": None}
    one += [over | {"status": "oom"}, over | {"status": "fail"}]
    twice = [row | {"nodes": 2, "gpus": 16, "dp": row["dp"] * 2, "global_batch": 32} for row in settings]
    path = make_table(*one, *measured(make_table, twice, 0.7))
    assert accuracy.main([str(path), *arguments, "--json", str(path.with_suffix(".json"))]) == 0
    check(name, json.loads(path.with_suffix(".json").read_text()))


def test_what_the_physics_made_is_predicted_without_error(make_table: MakeTable, settings: Settings) -> None:
    path = make_table(*measured(make_table, settings, 1.0))
    assert accuracy.main([str(path), "--json", str(path.with_suffix(".json"))]) == 0
    found = json.loads(path.with_suffix(".json").read_text())["summary"]
    errors = [found[name] for name in ("time_mape", "time_median_ape", "memory_median_ape")]
    assert (errors, found["spearman"]) == (pytest.approx([0, 0, 0], abs=1e-9), pytest.approx(1))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("generalise", ("--no-search",)),
        pytest.param("generalise_search", ("--seeds", "1", "--sources", "fast"), marks=pytest.mark.long),
    ],
)
def test_sources_left_out(
    make_table: MakeTable, settings: Settings, name: str, arguments: tuple[str, ...], check: Any, in_this_process: None
) -> None:
    sources = [
        make_table(*measured(make_table, settings, share), name=name) for name, share in (("slow", 0.6), ("fast", 1.2))
    ]
    out = sources[0].with_suffix(".json")
    assert generalise.main([*map(str, sources), *arguments, "--json", str(out)]) == 0
    check(name, json.loads(out.read_text()))


def test_searches_over_knobs(tmp_path: Path, check: Callable[..., None], in_this_process: None) -> None:
    out = tmp_path / "knobs.json"
    given = ["--seeds", "1", "--landscapes", "fsdp,plain,plain+10 idle,held out: bubble", "--most", "6"]
    assert knobs.main([*given, "--searches", "random,one-at-a-time", "--json", str(out)]) == 0
    check("knobs", json.loads(out.read_text()))


def test_the_landscapes(check: Callable[..., None]) -> None:
    """Of each, its plans, and what the baseline and the best plan cost. Of those with a rollout one: all plans of one
    are simulated."""
    chosen = [name for name, landscape in LANDSCAPES.items() if landscape.held_out or not landscape.generates]
    worlds = {name: knobs.world_of(name, 0) for name in chosen}
    check(
        "landscapes",
        {
            name: {
                "plans": world.task.space.plans,
                "baseline": [world.baseline.key, world.observe(world.baseline).step_time_s],
                "best": [world.best.plan.key, world.best.step_s, *world.cost(world.best.plan)],
            }
            for name, world in worlds.items()
        },
    )


def told(one: Reported) -> dict[str, Any]:
    """What was read of a row, and nothing where that is the default."""
    training = one.training
    model = TypeAdapter(ModelSpec).dump_python(training.model, mode="json", exclude_defaults=True)
    framework = training.framework
    return {
        "plan": one.plan.key,
        "model": model,
        "framework": [framework.name, framework.dtype, framework.reduce_bytes, framework.product_dtype],
        "cluster": [training.cluster.name, training.cluster.nodes, training.cluster.devices_per_node],
        "measured": [one.timed, one.peak_memory_bytes],
    }


def test_what_is_read_of_a_row(make_table: MakeTable, check: Callable[..., None]) -> None:
    """By name, shapes, parameters, precision and hardware; of megatron_ci neither times of toys nor memory count."""
    sizes: list[dict[str, object]] = [{"mem_gb": 20}, TOY, TOY | {"layers": 200, "hidden": 1024}]
    changes: list[dict[str, object]] = [
        *sizes,
        {"vpp": 2, "zero_stage": 1, "act_ckpt": "selective"},
        *(LLAMA | {"params_b": size} for size in (0.168, 0.201, None)),
        *({"model": "falcon", "params_b": size} for size in (0.109, 0.143)),
        {"precision": "bf16"},
        *(MPT | {"precision": name} for name in ("bf16", "amp_bf16", "amp_fp8")),
        MPT | {"precision": "amp_fp8", "hardware": "h100_80gb"},
        {"hardware": "H100-80GB", "precision": "bf16"},
        {"hardware": "GH200-96GB", "gpus_per_node": 4, "nodes": 2, "precision": "fp32"},
        {"nodes": 2},
        DEEPSEEK,
        {"hardware": "h100_80gb", "gpu_mem_gb": None},
        {"hardware": "H100-80GB-SXM (AWS p5, EFA)"},
        *({"hardware": "a100_40gb", "gpu_mem_gb": size} for size in (40, None)),
        *({"hardware": f"A100 ({of})", "gpu_mem_gb": None} for of in ("8/node", "8/node), 4xHDR IB 800Gb/s/node")),
        {"hardware": "A100-80GB Jean Zay (8/node, OPA)"},
        {"hardware": "V100-32GB Jean Zay (4/node)", "gpu_mem_gb": 32, "gpus_per_node": 4, "nodes": 2},
        {"hardware": "MI250X", "gpu_mem_gb": 64},
    ]
    rows = [*read_table(make_table(*changes)), *read_table(make_table(*sizes, name="megatron_ci"))]
    kept, left = reported(rows)
    assert left == ()
    check("rows", [told(one) for one in kept])


def test_what_is_left_out_is_counted_by_reason(make_table: MakeTable, check: Callable[..., None]) -> None:
    changes: list[dict[str, object]] = [
        {"layers": None, "hidden": None},
        {"nodes": None},
        {"nodes": 3},
        {"dp": 4},
        {"grad_accum": 3},
        {"grad_accum": None, "global_batch": 18},
        {"heads": 7},
        {"zero_stage": 5},
        {"layers": 1},
        {"params_b": 2.0},
        {"precision": "int4"},
        {"act_ckpt": "some"},
        {"model": "deepseek-r1-distill"},
        DEEPSEEK | {"ffn": 1024},
        DEEPSEEK | {"model": "deepseek-9"},
    ]
    kept, left = reported(read_table(make_table({}, *changes)))
    assert len(kept) == 1
    assert sum(reason.rows for reason in left) == len(changes)
    check("left_out", [[reason.kind, reason.rows, reason.first] for reason in left])


def test_a_search_is_told_the_settings_and_the_training_but_no_outcome(
    make_table: MakeTable, settings: Settings
) -> None:
    (cell,) = read_cells(make_table(*settings)).cells
    slower = [row | {"step_time_s": 99.0 - at} for at, row in enumerate(settings)]
    (other,) = read_cells(make_table(*slower[::-1])).cells
    task, same = cell.task(0.05), other.task(0.05)
    assert set(task.space) == set(cell.outcomes)
    assert list(task.space) == list(same.space)
    assert (task.training, task.tolerance, task.past) == (cell.training, 0.05, ())


# Simulated knobs of a few hundred plans, of which all are costed.
@pytest.mark.parametrize("name", ["fsdp", "plain", "wrong declarations", "tensor", *HELD_OUT])
def test_the_best_plan_of_a_landscape_is_the_best_of_all(name: str) -> None:
    world = knobs.world_of(name, 0)
    listing = world.task.space.listing(400_000)
    assert listing is not None
    step_s, peak_bytes = world.costs(*listing)
    assert world.best.step_s == pytest.approx(step_s[peak_bytes <= world.memory_bytes].min())
    assert world.best.plan in world.task.space
    assert world.cost(world.best.plan)[0] == pytest.approx(world.best.step_s)


@pytest.mark.parametrize(
    ("script", "arguments", "told"),
    [
        (replay, ["--search", "random"], "--latency"),
        (replay, ["table.csv", "--latency"], "--latency"),
        (replay, ["table.csv", "--seeds", "0"], "at least 1, not '0'"),
        (replay, ["table.csv", "--tolerance", "a twentieth"], "below 1, not 'a twentieth'"),
        (replay, ["table.csv", "--search", "randam"], "no search 'randam': did you mean 'random'?"),
        (replay, ["table.csv", "--search", "random:speed=3"], "search random: unknown option 'speed'"),
        (replay, ["table.csv", "--search", "deephyper:n_initial=0"], "search deephyper: option 'n_initial' is 0"),
        (replay, ["table.csv", "--search", "deephyper:n_initial"], "write NAME:option=value"),
        (replay, ["table.csv", "--search", "deephyper:n_initial=["], "'[' is no YAML value"),
        (replay, ["table.csv", "--search", "random,grid,random"], "search random is named twice"),
        (accuracy, ["table.csv", "--cluster", "dgx"], "dgx-h100"),
        (accuracy, ["table.csv"], "line 2, column hardware: "),
        (generalise, ["table.csv"], "needs two tables"),
        (knobs, ["--landscapes", "nowhere"], "nowhere"),
        (knobs, ["--searches", "physisc"], "physisc"),
    ],
)
def test_a_wrong_argument_or_table_ends_with_status_2_and_the_reason(
    make_table: MakeTable, script: Any, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table = str(make_table({"hardware": "Abacus 9000"}))
    try:
        status = script.main([table if word == "table.csv" else word for word in arguments])
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert told in capsys.readouterr().err


def test_cluster_and_family_of_all_rows_may_be_named(make_table: MakeTable, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    device = "{name: fast, kind: cuda, memory_bytes: 100000000000, peak_flops: {bfloat16: 1.0e+15}}"
    file.write_text(f"cluster: {{name: mine, nodes: 1, devices_per_node: 8, device: {device}}}\n")
    (kept,), _ = reported(read_table(make_table({})), named_cluster(str(file)), guess=True, family="nanotron")
    assert (kept.training.cluster.device.name, kept.training.framework) == ("fast", NANOTRON)
