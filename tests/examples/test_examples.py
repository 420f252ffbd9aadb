"""The examples are specs as they should be, and a rank that breaks its memory limit is an outcome, not an accident."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_lab import run_campaign

from meshtune.runners.outcome import Verdict
from meshtune.tuner.specs.document import parse_yaml
from meshtune.tuner.specs.read import read_spec

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_a_spec_with_a_space_and_a_legal_baseline(path):
    spec, space = read_spec(parse_yaml(path.read_text(encoding="utf-8")), None)
    assert len(space) > (spec.budget.trials or 0) > 0
    assert spec.baseline is not None
    assert space.explain(spec.baseline, ignore_bounds=True) == []
    assert spec.name in path.stem


def test_the_dense_example_has_every_axis_that_it_speaks_of():
    _, space = read_spec(parse_yaml((ROOT / "examples" / "dense-axes.yaml").read_text(encoding="utf-8")), None)
    plans = list(space)
    assert {str(plan.schedule) for plan in plans} == {"1f1b", "interleaved", "zero_bubble"}
    assert {str(plan.recompute) for plan in plans} == {"none", "selective", "full"}
    assert {plan.tp for plan in plans} == {plan.pp for plan in plans} == {1, 2, 4}
    assert {plan.vpp for plan in plans} == {1, 2}
    assert {plan.zero_stage for plan in plans} == {0, 1, 3}


# A sequence's logits are 4 MB a copy and there are several copies: one sequence at a time fits, eight do not.
TIGHT = {
    "name": "tight",
    "model": {"layers": 1, "hidden": 16, "heads": 2, "ffn": 32, "vocab": 32_000, "seq_len": 32},
    "cluster": {"preset": "local-cpu", "devices_per_node": 2, "device": {"memory_bytes": 96 * 2**20}},
    "global_batch_size": 16,
    "space": {"tp": [1], "pp": [1], "zero_stage": [0], "micro_batch_size": [1, 8]},
    "workload": {"kind": "torch", "measuring": {"max_warmup_steps": 1, "min_steps": 3, "max_steps": 4}},
    "baseline": {"micro_batch_size": 1, "zero_stage": 0},
    "search": "grid",
    "runner": {"kind": "local", "idle_s": 0.5},
    "budget": {"trials": 2},
    "confirm": 0,
}


@pytest.mark.slow
def test_what_breaks_the_memory_limit_ends_oom_with_its_phase_and_rank_and_what_keeps_it_is_recommended(tmp_path):
    finished, _, (fits, breaks) = run_campaign(tmp_path, TIGHT, ROOT)
    assert finished.code == 0, finished.out + finished.err
    assert (fits.plan.micro_batch_size, fits.verdict) == (1, Verdict.OK), finished.out
    assert (breaks.plan.micro_batch_size, breaks.verdict) == (8, Verdict.OOM), finished.out
    outcome = breaks.outcome
    assert outcome.measurement is None
    assert outcome.phase in ("forward", "backward")
    assert outcome.failed_rank in (0, 1)
    assert "you tried to allocate" in outcome.reason.splitlines()[0][:100]
    assert "1 oom" in finished.out
    assert f"Use {fits.plan.key}" in finished.out
