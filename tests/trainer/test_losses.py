"""Whatever the layout, the losses of the first optimizer steps are those of one process on the same global batch.

Later losses contain the earlier updates, so a wrong gradient, a wrong sum or a wrong shard shows. Speed and
memory are not looked at.
"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

TOLERANCE = 1e-4

LLAMA: dict[str, object] = {}
GPT2: dict[str, object] = {
    "kv_heads": 4,
    "norm": "layernorm",
    "activation": "gelu",
    "position": "learned",
    "tied_head": True,
}
ONE_KV_HEAD: dict[str, object] = {"kv_heads": 1}
ODD_VOCABULARY: dict[str, object] = {"vocab": 127}
TIED: dict[str, object] = {"tied_head": True}
FOUR_LAYERS: dict[str, object] = {"layers": 4}

# Tensor parallelism costs about a second a step over gloo, so those plans use few, large micro-batches.
CASES = [
    pytest.param(LLAMA, {"dp": 2, "zero_stage": 0}, id="dp2 zero0"),
    pytest.param(LLAMA, {"dp": 2, "zero_stage": 1}, id="dp2 zero1"),
    pytest.param(LLAMA, {"dp": 2, "zero_stage": 2}, id="dp2 zero2"),
    pytest.param(LLAMA, {"dp": 2, "zero_stage": 3}, id="dp2 zero3"),
    pytest.param(LLAMA, {"micro_batch_size": 4}, id="accumulation 2"),
    pytest.param(LLAMA, {"micro_batch_size": 2}, id="accumulation 4"),
    pytest.param(LLAMA, {"tp": 2, "micro_batch_size": 8}, id="tp2"),
    pytest.param(LLAMA, {"tp": 2, "micro_batch_size": 4}, id="tp2 accumulation 2"),
    pytest.param(ONE_KV_HEAD, {"tp": 2, "micro_batch_size": 8}, id="tp2, one key-value head"),
    pytest.param(
        ONE_KV_HEAD, {"tp": 2, "dp": 2, "micro_batch_size": 4, "zero_stage": 3}, id="tp2 dp2 zero3, one key-value head"
    ),
    pytest.param(ODD_VOCABULARY, {"tp": 2, "micro_batch_size": 8}, id="tp2, odd vocabulary"),
    pytest.param(LLAMA, {"pp": 2, "schedule": "gpipe"}, id="pp2 gpipe"),
    pytest.param(LLAMA, {"pp": 2, "schedule": "1f1b"}, id="pp2 1f1b"),
    pytest.param(LLAMA, {"pp": 2, "dp": 2, "zero_stage": 0}, id="pp2 dp2 zero0"),
    pytest.param(LLAMA, {"pp": 2, "dp": 2, "zero_stage": 2}, id="pp2 dp2 zero2"),
    pytest.param(LLAMA, {"pp": 2, "dp": 2, "zero_stage": 3}, id="pp2 dp2 zero3"),
    pytest.param(LLAMA, {"tp": 2, "pp": 2, "micro_batch_size": 4}, id="tp2 pp2"),
    pytest.param(LLAMA, {"tp": 2, "pp": 2, "dp": 2, "micro_batch_size": 2, "zero_stage": 1}, id="tp2 pp2 dp2 zero1"),
    pytest.param(LLAMA, {"tp": 2, "pp": 2, "dp": 2, "micro_batch_size": 2, "zero_stage": 3}, id="tp2 pp2 dp2 zero3"),
    pytest.param(FOUR_LAYERS | TIED, {"pp": 4}, id="pp4, tied"),
    pytest.param(GPT2, {"micro_batch_size": 4}, id="gpt2 accumulation 2"),
    pytest.param(GPT2, {"tp": 2, "micro_batch_size": 8}, id="gpt2 tp2"),
    pytest.param(GPT2, {"dp": 2, "zero_stage": 3}, id="gpt2 dp2 zero3"),
    pytest.param(GPT2, {"pp": 2, "dp": 2, "zero_stage": 1}, id="gpt2 pp2 dp2 zero1"),
    pytest.param(GPT2, {"pp": 2, "dp": 2, "zero_stage": 3}, id="gpt2 pp2 dp2 zero3"),
    pytest.param(GPT2, {"tp": 2, "pp": 2, "micro_batch_size": 4}, id="gpt2 tp2 pp2"),
]


@pytest.fixture(scope="session")
def reference(run_job, make_job):
    """The losses of one process and one micro-batch, for a model; each is run once."""
    known: dict[str, tuple[float, ...]] = {}

    def losses(model: dict[str, object]) -> tuple[float, ...]:
        key = repr(sorted(model.items()))
        if key not in known:
            known[key] = run_job(make_job(model=model, plan={"micro_batch_size": 8})).losses
        return known[key]

    return losses


def difference(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(("model", "plan"), CASES)
def test_a_layout_does_not_change_the_losses(model, plan, reference, run_job, make_job):
    losses = run_job(make_job(model=model, plan=plan)).losses
    assert len(losses) == 4
    assert difference(losses, reference(model)) < TOLERANCE


@pytest.mark.parametrize("change", [{"learning_rate": 1.1e-2}, {"seed": 1}], ids=["learning rate", "seed"])
def test_another_training_has_other_losses(change, reference, run_job, make_job):
    losses = run_job(make_job(plan={"micro_batch_size": 8}, **change)).losses
    assert difference(losses, reference(LLAMA)) > 10 * TOLERANCE


def test_the_loss_of_every_step_comes_from_other_data(reference):
    assert len(set(reference(LLAMA))) == 4
