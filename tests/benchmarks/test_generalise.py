"""Sources left out, on tables that the physics made with constants of their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from generalise import PREDICTED, SEARCHED, hypotheses_of, main, read_source
from left_out import PRIOR, fit_source, over_sources
from reported import GB, reported
from tables import read_table

from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.physics.constants import CONSTANTS, UNCALIBRATED
from meshtune.search_spaces.physics.estimate import estimate
from meshtune.tuner.search.physics.speed import Expects

MakeTable = Callable[..., Path]
LARGE = {"layers": 24, "hidden": 2048, "heads": 16, "kv_heads": 16, "ffn": 8192}


@pytest.fixture
def make_source(make_table: MakeTable, settings: list[dict[str, object]]) -> Callable[[str, float], Path]:
    """A table of what the physics says where matrix products reach `share` of their best rate."""

    def make(name: str, share: float) -> Path:
        rows = [LARGE | setting for setting in settings]
        kept, _ = reported(read_table(make_table(*rows, name="plain")))
        constants = replace(PRIOR.constants, matmul_efficiency=share)
        plans = columns_of([one.plan for one in kept])
        truth = estimate(kept[0].training, plans, replace(UNCALIBRATED, constants=constants))
        told = zip(rows, truth.time.step_s, truth.memory.peak_bytes, strict=True)
        measured = [row | {"step_time_s": float(time), "mem_gb": float(peak) / GB} for row, time, peak in told]
        return make_table(*measured, name=name)

    return make


def test_a_source_is_judged_by_what_the_others_say(
    make_source: Callable[[str, float], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [make_source(name, share) for name, share in (("slow", 0.45), ("slower", 0.4), ("fast", 0.9))]
    out = tmp_path / "figures.json"
    arguments = [*map(str, paths), "--no-search", "--json", str(out)]

    assert main(arguments) == 0

    found = json.loads(out.read_text())
    assert set(found["summary"]) == set(PREDICTED)
    assert set(found["sources"]) == {"slow", "slower", "fast"}
    errors = {name: figures["time_uncalibrated"] for name, figures in found["sources"].items()}
    # The two slow ones say that the fast one is slow.
    assert errors["fast"] > 0.1 > 0.05 > found["sources"]["fast"]["time_after_5"]
    assert all(figures["spearman_cell"] > 0.7 for figures in found["sources"].values())
    assert found["summary"]["interval_90_holds"] == 1
    assert "slower" in capsys.readouterr().out


def test_constants_on_which_sources_differ_are_doubted_as_much(make_source: Callable[[str, float], Path]) -> None:
    fitted = [
        fit_source(name, reported(read_table(make_source(name, share)))[0])
        for name, share in (("half", 0.45), ("whole", 0.9))
    ]
    place = CONSTANTS.index("matmul_efficiency")
    both, one = over_sources(fitted), over_sources(fitted[1:])
    assert 0.5 < both.constants.matmul_efficiency < 0.85
    assert both.covariance[place, place] > 1.5 * one.covariance[place, place]


def test_hypotheses_weigh_what_the_other_sources_say(make_source: Callable[[str, float], Path]) -> None:
    sources = [read_source(make_source(name, share)) for name, share in (("one", 0.7), ("two", 0.8), ("three", 0.75))]
    fitted = [fit_source(source.name, source.reports) for source in sources]
    held = hypotheses_of(sources, fitted, without="one").speeds
    assert sum(one.weight for one in held) == pytest.approx(1)
    # The physics made these tables: what distrusts it keeps little more than its share of the prior.
    assert held[0].weight > 0.5
    assert sum(one.weight for one in held if one.expects is Expects.ALIKE) < 0.25


@pytest.mark.long
def test_searches_start_from_the_others_constants(make_source: Callable[[str, float], Path], tmp_path: Path) -> None:
    paths = [make_source(name, share) for name, share in (("slow", 0.45), ("fast", 0.9))]
    out = tmp_path / "figures.json"
    assert main([*map(str, paths), "--seeds", "1", "--sources", "fast", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert set(found["summary"]) == {*SEARCHED, *PREDICTED}
    assert found["sources"]["fast"]["trials_median"] == 1


def test_one_table_leaves_no_other_to_learn_from(make_source: Callable[[str, float], Path]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(make_source("alone", 0.9))])
    assert ended.value.code == 2
