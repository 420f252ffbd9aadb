"""Products in 8 bits are those of the weights but for rounding, and train alike. On CPUs: no GPU has run them."""

from __future__ import annotations

import pytest
import torch
from counting import Counting
from torch import nn

from meshtune.runners.programs.workloads.torch import TorchWorkload
from meshtune.runners.told_knobs import ToldKnob
from meshtune.runners.trainer.exact import exact_peak
from meshtune.runners.trainer.float8 import Float8Linear, compute_in_float8
from meshtune.runners.trainer.model import Transformer
from meshtune.runners.trainer.parallel.sharding import materialize
from meshtune.runners.trainer.train import recompute_layers
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Recompute, Selective

pytestmark = pytest.mark.slow

KNOB = {"mine": ToldKnob(value=True, way="option", place="float8", text="true")}
# e4m3 has 3 bits after the point, e5m2 2: a value is off by up to a 16th and an 8th, sums of many by less.
ROUNDING = {"out": 1 / 16, "x": 1 / 8, "weight": 1 / 8}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_projection_and_its_gradients_are_those_of_the_weights_but_for_rounding(dtype):
    torch.manual_seed(0)
    x, given = torch.randn(2, 64, 256, dtype=dtype), torch.randn(2, 64, 128, dtype=dtype)
    results = []
    for kind in (nn.Linear, Float8Linear):
        layer = kind(256, 128, bias=False, dtype=dtype)
        torch.nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(1))
        own = x.clone().requires_grad_()
        out = layer(own)
        out.backward(given * 1e-4)  # far below e5m2's usual values: each tensor has a scale of its own
        results.append({"out": out, "x": own.grad, "weight": layer.weight.grad})
    plain, rounded = results
    for name, most in ROUNDING.items():
        assert rounded[name].dtype is dtype
        error = (rounded[name] - plain[name]).float().norm() / plain[name].float().norm()
        assert 1e-3 < error < most, name


# Of halves the output's and down's: what a product in 8 bits keeps for its gradients comes after it, so none is spared.
@pytest.mark.parametrize(("selective", "again"), [(Selective.PRODUCTS, 0), (Selective.HALF_PRODUCTS, 2)])
def test_all_products_of_a_layer_and_no_other_run_in_8_bits(selective, again):
    sizes = {"layers": 1, "hidden": 32, "heads": 2, "ffn": 48, "vocab": 64, "seq_len": 16}
    with torch.device("meta"):
        model = Transformer(ModelSpec(name="m", **sizes))
    compute_in_float8(model, torch.device("cpu"))
    recompute_layers(model, Recompute.SELECTIVE, 1, selective)
    materialize(model, torch.device("cpu"), 0)
    with Counting() as counting:
        model(torch.arange(16)[None]).logsumexp(-1).sum().backward()
    assert (counting.counts["_scaled_mm"], counting.counts["mm"]) == (3 * 4 + again, 3)  # the head's are mm


@pytest.mark.parametrize(
    ("plan", "options"),
    [
        ({"micro_batch_size": 8}, {}),
        ({"dp": 2, "zero_stage": 3, "recompute": "selective", "micro_batch_size": 2}, {"dtype": "bfloat16"}),
        pytest.param({"tp": 2, "micro_batch_size": 8}, {"compile": True}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_layers_in_8_bits_train_alike(plan, options, run_job, make_job):
    model = {"kv_heads": 4}
    without_inductor = "import torch\nwhole = torch.compile\n"
    without_inductor += "torch.compile = lambda run, **more: whole(run, backend='aot_eager', **more)\n"
    expected = run_job(make_job(plan={"micro_batch_size": 8}, model=model)).losses
    finished = run_job(make_job(plan=plan, model=model, float8=True, knobs=KNOB, **options), without_inductor)
    assert finished.measurement.knobs == {"mine": True}
    differences = [abs(own - other) for own, other in zip(finished.losses, expected, strict=True)]
    assert 0 < max(differences) < 0.02 * expected[0]


def test_a_device_without_such_products_is_an_illegal_setting(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(InvalidValue, match=r"float8: needs an NVIDIA device of compute capability 8\.9"):
        compute_in_float8(None, torch.device("cuda"))


def test_memory_is_counted_with_them_and_predictions_take_the_devices_rate(make_job):
    plan = {"micro_batch_size": 8, "recompute": "selective"}
    model = {"hidden": 128, "ffn": 256, "seq_len": 128, "layers": 8}
    in_8_bits, plain = (exact_peak(make_job(float8=kind, plan=plan, model=model), 0) for kind in (True, False))
    assert in_8_bits.peak_bytes == pytest.approx(plain.peak_bytes, rel=0.1)
    profile = TorchWorkload({"dtype": "bfloat16", "float8": True}).framework
    assert profile.product_dtype == "float8"
    assert profile.name != TorchWorkload({"dtype": "bfloat16"}).framework.name
