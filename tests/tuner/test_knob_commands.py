"""`meshtune knobs`, and knobs in `spaces`, `estimate` and in tables of plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from meshtune.search_spaces.knobs import count_with_knobs
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.presets import knob_catalogs
from meshtune.tuner.cli.main import app
from meshtune.tuner.cli.render.knobs import alike_note, settings
from meshtune.tuner.prediction.predict import Basis
from meshtune.tuner.prediction.quote import explain, make_quote
from meshtune.tuner.specs.document import parse_yaml
from meshtune.tuner.specs.read import read_spec

SPEC = """
model: gpt-micro
cluster:
  preset: local-cpu
  node_link: {latency_s: 1.0e-6, bandwidth_bytes_per_s: 1.0e+10}
  device: {peak_flops: {float32: 1.0e+12}, memory_bandwidth_bytes_per_s: 1.0e+11}
global_batch_size: 8
space: {micro_batch_size: [1, 2], zero_stage: [0, 1], tp: [1], pp: [1], recompute: [none, selective]}
workload: {kind: simulated, framework: trainer}
runner: simulated
baseline: {tp: 1}
budget: {trials: 5}
confirm: 0
knobs:
  fp8: {values: [off, on], env: FP8, omit: off}
  recipe: {values: [row, block, tensor], env: RECIPE, when: fp8 == on}
  ac: {values: [0.5, 1.0], env: AC, when: recompute == selective}
  devices: {values: [2, 4]}
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "spec.yaml").write_text(SPEC)
    return lambda *words: CliRunner().invoke(app, [*words])


def test_every_catalog_is_listed_and_one_is_shown_with_its_sources(command: Any) -> None:
    listed = command("knobs").output
    assert all(name in listed for name in knob_catalogs())
    shown = command("knobs", "nccl").output
    assert "nccl.algo" in shown
    assert "told by: variable NCCL_ALGO" in shown
    assert shown.count("source: https://") == len(knob_catalogs()["nccl"])
    document = json.loads(command("knobs", "nccl", "--json").output)
    (catalog,) = document["catalogs"]
    assert len(catalog["knobs"]) == len(knob_catalogs()["nccl"])
    assert {"values", "default", "when", "way", "numerics", "source", "versions", "risk"} <= catalog["knobs"][0].keys()


def test_an_unknown_catalog_is_refused_with_the_known_ones(command: Any) -> None:
    done = command("knobs", "ncll")
    assert done.exit_code != 0
    assert "no catalog is called 'ncll'; did you mean 'nccl'?" in str(done.exception)


def test_what_each_knob_adds_is_its_plans_with_it_and_without_it() -> None:
    _, space = read_spec(parse_yaml(SPEC), None)
    layouts = len(space)
    counts = {one.knob.name: one for one in count_with_knobs(space)}
    # fp8 off is one way, and on three.
    assert space.plans == layouts // 2 * 4 + layouts // 2 * 4 * 2
    assert (counts["fp8"].without, counts["fp8"].gone) == (layouts // 2 * 3, ("recipe",))
    assert (counts["ac"].layouts, counts["ac"].without) == (layouts // 2, layouts * 4)
    assert (counts["recipe"].layouts, counts["recipe"].without) == (layouts, layouts // 2 * 2 + layouts // 2 * 4)


def test_spaces_count_and_list_plans_with_their_knobs(command: Any) -> None:
    told = command("spaces", "spec.yaml", "--knobs", "--list").output
    _, space = read_spec(parse_yaml(SPEC), None)
    assert f"{space.plans} legal plans: {len(space)} legal layouts" in told
    assert "recipe: row, block, tensor (when fp8 == on)" in told
    assert f"What knobs add: {space.plans} plans of {len(space)} layouts" in told
    listed = [line for line in told.splitlines() if line.startswith("tp1 ")]
    assert len(listed) == len(set(listed)) == space.plans


def test_why_names_what_is_wrong_with_knobs(command: Any) -> None:
    assert "fp8(huge) is not among off, on" in command("spaces", "spec.yaml", "--why", "tp=1,fp8=huge").output
    inactive = command("spaces", "spec.yaml", "--why", "tp=1,recipe=row").output
    assert "recipe(row) is inactive: it needs fp8 == on" in inactive
    assert command("spaces", "spec.yaml", "--why", "tp=1,fp8=on,devices=2").output.strip().endswith("legal")
    estimated = command("estimate", "spec.yaml", "--plan", "tp=1,fp8=on,devices=2", "--home", "h").output
    assert "its knobs are not predicted" in estimated


def test_a_quote_counts_plans_and_devices_of_each_size() -> None:
    spec, space = read_spec(parse_yaml(SPEC), None)
    quote = make_quote(spec, space, Basis())
    assert (quote.space.legal, quote.plans) == (len(space), space.plans)
    # Two devices do more each than four: they come first, and cost less than four would.
    assert quote.best[0].plan.world_size == 2
    assert quote.cost.device_hours.high < quote.cost.trial_s.high * quote.cost.trials * 4 / 3600
    assert quote.cost.device_hours.low >= quote.cost.trial_s.low * quote.cost.trials * 2 / 3600
    small = space.complete(tp=1, knobs={"devices": 2, "fp8": "on"})
    found = explain(spec, space, small, Basis())
    assert (found.legal, found.prediction is not None, found.of) == (True, True, len(space))


def test_tables_show_the_knobs_in_which_their_plans_differ() -> None:
    plans = [Plan(dp=2, knobs={"a": 1, "b": "x"}), Plan(dp=2, knobs={"a": 1, "b": "y", "c": True})]
    assert settings(plans) == ["tp1 pp1 dp2 mbs1 ga1 zero0 b=x", "tp1 pp1 dp2 mbs1 ga1 zero0 b=y c=true"]
    assert alike_note(plans) == "all with a=1"
    assert settings(plans[:1]) == [plans[0].key]
    assert (alike_note(plans[:1]), settings([])) == ("", [])


def test_a_campaign_shows_its_knobs_and_sizes_everywhere(command: Any) -> None:
    assert command("run", "spec.yaml", "--home", "h").exit_code == 0
    best = json.loads(command("best", "last", "--home", "h", "--json").output)
    assert {point["devices"] for point in best["scaling"]} <= {2, 4}
    assert best["scaling"][0]["efficiency"]["value"] == 1
    assert best["best"][0]["changed_numerics"] == []
    assert "Best of each size" in command("best", "last", "--home", "h").output
    shown = command("show", "last", "--trial", "0", "--home", "h").output
    assert "knobs: devices 4, fp8 off" in shown
    analysed = json.loads(command("analyze", "last", "--home", "h", "--json").output)
    assert {one["knob"] for one in analysed["failures"]["by_value"]} == {"fp8", "recipe", "ac", "devices"}
    asked = ("recommend", "--model", "gpt-micro", "--cluster", "local-cpu", "--nodes", "1", "--simulated", "--env")
    told = dict(line.split("=") for line in command(*asked, "--home", "h").output.splitlines())
    assert told["MESHTUNE_KNOB_DEVICES"] == "4"
    assert told["MESHTUNE_KNOB_FP8"] in ("off", "on")
