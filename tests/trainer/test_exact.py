"""The exact estimate is what real ranks report, and shortened runs say the same as whole ones."""

from __future__ import annotations

import pytest

from meshtune.runners.trainer import exact
from meshtune.runners.trainer.exact import (
    enough_micro_batches,
    exact_peak,
    representatives,
    require_estimable,
)
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.routing import skewed_shares

# What a plain test run takes of a list, and what it leaves to `make test-long`.
SLOW, LONG = pytest.mark.slow, pytest.mark.long
# Large enough that nothing small decides.
SHAPES: dict[str, object] = {"layers": 4, "hidden": 128, "ffn": 384, "vocab": 1024, "seq_len": 64}


ENDS = {"first_stage_less_layers": 1, "last_stage_less_layers": 1}


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param({"dp": 2, "zero_stage": 1, "grad_accum_steps": 2}, marks=LONG),
        pytest.param({"dp": 2, "zero_stage": 3, "recompute": "full", "grad_accum_steps": 2}, marks=LONG),
        pytest.param({"tp": 2, "micro_batch_size": 4}, marks=LONG),
        pytest.param({"vocab": 1025, "vocab_multiple": 512, "tp": 2, "micro_batch_size": 4}, marks=LONG),
        {"pp": 2, "vpp": 2, "schedule": "interleaved", "grad_accum_steps": 4},
        pytest.param({"pp": 2, "dp": 2, "zero_stage": 2, "schedule": "gpipe"}, marks=LONG),
        {"layers": 7, "pp": 3, **ENDS, "grad_accum_steps": 3},
        pytest.param(
            {"layers": 6, "pp": 2, "vpp": 2, **ENDS, "schedule": "interleaved", "grad_accum_steps": 4}, marks=LONG
        ),
        pytest.param({"cp": 2, "context": "ulysses", "micro_batch_size": 4}, marks=LONG),
        pytest.param({"cp": 2, "micro_batch_size": 4}, marks=LONG),
        pytest.param({"cp": 4, "context": "ring", "recompute": "selective", "micro_batch_size": 4}, marks=LONG),
        pytest.param({"dp": 2, "ep": 2, "zero_stage": 3, "micro_batch_size": 2}, marks=LONG),
        {"dp": 2, "ep": 2, "zero_stage": 1, "micro_batch_size": 2, "imbalance": 2.0},
        pytest.param({"dp": 4, "zero_stage": 1, "zero_group": 2, "grad_accum_steps": 2}, marks=LONG),
        pytest.param({"dp": 4, "zero_stage": 2, "zero_group": 2, "grad_accum_steps": 2}, marks=LONG),
        pytest.param({"dp": 4, "zero_stage": 3, "zero_group": 2, "grad_accum_steps": 2}, marks=LONG),
        pytest.param({"dp": 4, "ep": 2, "zero_stage": 3, "zero_group": 2, "grad_accum_steps": 2}, marks=LONG),
        {"tp": 2, "dp": 2, "ep": 4, "etp": 1, "zero_stage": 1, "micro_batch_size": 4, "imbalance": 1.75},
        pytest.param({"dp": 4, "ep": 2, "etp": 2, "zero_stage": 2, "micro_batch_size": 2}, marks=LONG),
        pytest.param({"cp": 2, "dp": 2, "ep": 2, "etp": 2, "micro_batch_size": 4, "imbalance": 1.75}, marks=LONG),
        pytest.param({"cp": 2, "dp": 2, "ep": 4, "zero_stage": 1, "micro_batch_size": 4, "imbalance": 2.0}, marks=LONG),
    ],
    ids=lambda plan: " ".join(f"{name}={value}" for name, value in plan.items()),
)
def test_every_rank_takes_what_was_estimated(plan, run_job, make_job):
    experts = {"experts": 4, "top_k": 2} if "ep" in plan else {}
    shapes = {name: value for name, value in plan.items() if name in ("layers", "vocab", "vocab_multiple")}
    axes = {name: value for name, value in plan.items() if name != "imbalance" and name not in shapes}
    imbalance = plan.get("imbalance")
    routing = {"router": "skewed" if imbalance else "balanced", "imbalance": imbalance}
    job = make_job(plan=axes, model=SHAPES | experts | shapes, **routing)
    finished = run_job(job)
    assert finished.status == 0, finished.output
    real = finished.measurement.peak_memory_bytes
    assert [exact_peak(job, rank).peak_bytes for rank in range(len(real))] == pytest.approx(real, rel=0.05)


@pytest.mark.parametrize(
    ("plan", "layers"),
    [
        pytest.param({"dp": 2, "zero_stage": 3, "recompute": "full", "grad_accum_steps": 2}, 6, marks=LONG),
        pytest.param({"pp": 2, "dp": 2, "zero_stage": 1, "grad_accum_steps": 2}, 10, marks=LONG),
        pytest.param({"pp": 3, **ENDS, "grad_accum_steps": 3}, 25, marks=LONG),
    ],
    ids=str,
)
def test_a_few_layers_tell_of_many(plan, layers, make_job):
    job = make_job(plan=plan, model=SHAPES | {"layers": layers})
    few, all_layers = (exact_peak(job, 0, extrapolate=way) for way in (True, False))
    assert (few.extrapolated, all_layers.extrapolated) == (True, False)
    assert few.peak_bytes == pytest.approx(all_layers.peak_bytes, rel=0.01)
    assert few.lasting_bytes == pytest.approx(all_layers.lasting_bytes, rel=0.01)
    assert few.parameters == all_layers.parameters


@pytest.mark.parametrize(
    ("plan", "layers"),
    [
        pytest.param({"dp": 2, "zero_stage": 2}, 2, marks=LONG),
        pytest.param({"pp": 2}, 2, marks=SLOW),
        pytest.param({"pp": 2, "schedule": "gpipe"}, 2, marks=LONG),
        pytest.param({"pp": 2, "vpp": 2, "schedule": "interleaved"}, 4, marks=LONG),
        pytest.param({"pp": 2, "vpp": 2, "schedule": "zbv"}, 4, marks=LONG),
    ],
    ids=str,
)
def test_a_few_micro_batches_tell_of_many(plan, layers, make_job, monkeypatch):
    job = make_job(plan=plan | {"grad_accum_steps": 12}, model=SHAPES | {"layers": layers})
    ranks = sorted({0, job.plan.pp - 1})
    few = [exact_peak(job, rank) for rank in ranks]
    monkeypatch.setattr(exact, "enough_micro_batches", lambda plan: (plan.grad_accum_steps, 1))
    all_of_them = [exact_peak(job, rank) for rank in ranks]
    assert all(peak.micro_batches == enough_micro_batches(job.plan)[0] < 12 for peak in few)
    assert all(peak.micro_batches == 12 for peak in all_of_them)
    assert [peak.peak_bytes for peak in few] == pytest.approx([peak.peak_bytes for peak in all_of_them], rel=0.01)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"plan": {"tp": 3}}, r"tp\(3\) does not divide heads\(4\)"),
        ({"model": {"experts": 5, "top_k": 1}, "router": "balanced"}, r"experts\(5\) do not share seq_len\(16\)"),
    ],
)
def test_what_cannot_be_estimated_is_refused_with_the_reason(changes, told, make_job):
    with pytest.raises(InvalidValue, match=told):
        require_estimable(make_job(**changes))


@LONG
def test_experts_that_do_not_divide_the_copies_of_tokens_take_what_a_router_next_to_even_gives_them(make_job):
    shapes = SHAPES | {"experts": 6, "top_k": 2}  # of 256 copies four experts get 43, two 42
    axes = {"dp": 2, "ep": 2, "zero_stage": 1, "micro_batch_size": 2}
    learned = make_job(plan=axes, model=shapes)
    even = make_job(plan=axes, model=shapes, router="skewed", imbalance=1.001)
    peaks = [max(exact_peak(job, rank).peak_bytes for rank in range(2)) for job in (learned, even)]
    assert peaks[0] == pytest.approx(peaks[1], rel=0.02)


def test_representatives_stand_for_the_first_second_middle_and_last_stage(make_job):
    def chosen(**plan):
        return representatives(make_job(plan=plan, model={"layers": 8}))

    assert chosen(tp=2, pp=8, dp=2, grad_accum_steps=8) == [0, 4, 16, 28]
    assert chosen(tp=2, pp=2, grad_accum_steps=8) == [0, 2]
    assert chosen(dp=4) == [0]


def test_with_skewed_routing_the_rank_with_the_most_tokens_stands_for_a_stage(make_job):
    routing = {"router": "skewed", "imbalance": 2.0, "model": {"experts": 4, "top_k": 2}}
    job = make_job(plan={"tp": 2, "dp": 4, "ep": 4, "pp": 2, "grad_accum_steps": 4}, **routing)
    shares = skewed_shares(4, 2.0)
    busiest = shares.index(max(shares))
    assert representatives(job) == [2 * busiest, 8 + 2 * busiest]
    folded = make_job(plan={"tp": 2, "dp": 2, "ep": 4, "etp": 1}, **routing)
    assert representatives(folded) == [busiest]
