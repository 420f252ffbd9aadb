"""The examples are specs as they should be, and a rank that breaks its memory limit is an outcome, not an accident."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.home import Home
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.specs.document import parse_yaml
from meshtune.tuner.specs.read import read_spec
from meshtune.tuner.store import Store

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def test_there_are_examples():
    assert len(EXAMPLES) >= 4


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


def test_the_mixture_example_spreads_its_experts():
    spec, space = read_spec(parse_yaml((ROOT / "examples" / "moe-ep.yaml").read_text(encoding="utf-8")), None)
    assert (spec.model.experts, spec.model.top_k) == (8, 2)
    assert spec.workload.options["router"] == "balanced"
    assert {plan.ep for plan in space} == {1, 2, 4}


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


def await_end_of_server(root: Path, limit_s: float = 60.0) -> None:
    """The local server ends by itself once it is idle; nothing of the campaign runs after it."""
    wanted, deadline = str(root).encode(), time.monotonic() + limit_s
    while any(wanted in _command(folder) for folder in Path("/proc").glob("[0-9]*")):
        assert time.monotonic() < deadline, "the local server goes on"
        time.sleep(0.05)


def _command(folder: Path) -> bytes:
    try:
        return (folder / "cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.slow
def test_what_breaks_the_memory_limit_ends_oom_with_its_phase_and_rank_and_what_keeps_it_is_recommended(tmp_path):
    (tmp_path / "tight.yaml").write_text(yaml.safe_dump(TIGHT))
    home = Home(tmp_path / "home")
    finished = subprocess.run(
        [
            sys.executable,
            "-m",
            "meshtune.tuner.cli.main",
            "run",
            str(tmp_path / "tight.yaml"),
            "--home",
            str(home.root),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    await_end_of_server(home.root)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    with Store.open(home.database_url) as store:
        (campaign,) = store.campaigns(limit=9)
        fits, breaks = store.trials(campaign.id)
    assert (fits.plan.micro_batch_size, fits.verdict) == (1, Verdict.OK), finished.stdout
    assert (breaks.plan.micro_batch_size, breaks.verdict) == (8, Verdict.OOM), finished.stdout
    assert_says_where_it_failed(breaks)
    assert "1 oom" in finished.stdout
    assert f"Use {fits.plan.key}" in finished.stdout


def assert_says_where_it_failed(trial: Trial) -> None:
    outcome = trial.outcome
    assert outcome is not None
    assert outcome.measurement is None
    assert outcome.phase in ("forward", "backward")
    assert outcome.failed_rank in (0, 1)
    assert "you tried to allocate" in outcome.reason.splitlines()[0][:100]
