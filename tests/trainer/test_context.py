"""Attention: over several ranks, and the kernel that ran, noted under the names that torch's dispatcher has."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention import SDPBackend, sdpa_kernel

from meshtune.runners.outcome import read_result
from meshtune.runners.trainer.exact import exact_peak
from meshtune.runners.trainer.parallel.attention_kernels import AttentionAnswer, Efficient, Flash, FlashOnCpu, merge
from meshtune.runners.trainer.timing.attention import _KERNELS, noting_attention

CONTEXT = "import meshtune.runners.trainer.parallel.context as context\n"
# Keys and values have 2 heads, queries 4 (see make_job): one hidden state of a head is 8 numbers.
COUNTED = (
    CONTEXT
    + """
pass_on = context.RingOfKeys._pass_on

def checked(self, message):
    assert message.shape == (2, 8, 2, 8, 8), message.shape  # key and value, sequences, heads, places, numbers
    return pass_on(self, message)

context.RingOfKeys._pass_on = checked
"""
)
ALONE = (
    CONTEXT
    + """
class Done:
    def wait(self): pass

context.RingOfKeys._pass_on = lambda self, message: context.Arrival(message, message, Done())
"""
)
MATH_ALONE = """
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
forced = sdpa_kernel(SDPBackend.MATH)  # ends when nobody holds it
forced.__enter__()
"""


def make_heads(*shape):
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


def test_answers_over_parts_of_the_keys_merge_to_causal_attention_and_its_gradients():
    torch.manual_seed(0)
    query, key, value = make_heads(2, 4, 6, 8), make_heads(2, 2, 10, 8), make_heads(2, 2, 10, 8)
    mask = torch.ones(6, 10, dtype=torch.bool).tril(diagonal=4)
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    grad = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, (query, key, value), grad)

    kernel, early, late = FlashOnCpu(), slice(0, 4), slice(4, 10)
    with torch.no_grad():
        out, sums, state = kernel.forward(query, key[:, :, early], value[:, :, early], causal=False)
        more, more_sums, _ = kernel.forward(query, key[:, :, late], value[:, :, late], causal=True)
        merge(out, sums, more, more_sums)
        torch.testing.assert_close(out, expected)
        parts = [
            kernel.backward(
                grad, AttentionAnswer(query, key[:, :, of], value[:, :, of], out, sums, state), causal=of is late
            )
            for of in (early, late)
        ]
    torch.testing.assert_close(parts[0][0] + parts[1][0], wanted[0])
    for index in (1, 2):
        torch.testing.assert_close(torch.cat([part[index] for part in parts], 2), wanted[index])


@pytest.mark.parametrize("kernel", [Flash(), Efficient()], ids=lambda kernel: type(kernel).__name__)
def test_the_kernels_of_cuda_take_grouped_heads_and_give_their_shapes_back(kernel):
    query = torch.empty(2, 4, 40, 16, device="meta", dtype=torch.bfloat16)
    key, value = torch.empty(2, 2, 2, 80, 16, device="meta", dtype=torch.bfloat16)
    out, sums, state = kernel.forward(query, key, value, causal=False)
    assert (out.shape, sums.shape, sums.dtype) == (query.shape, query.shape[:3], torch.float32)
    gradients = kernel.backward(out, AttentionAnswer(query, key, value, out, sums, state), causal=False)
    assert [gradient.shape for gradient in gradients] == [query.shape, key.shape, value.shape]


@pytest.mark.parametrize("context", ["all_gather", "ring"])
def test_no_mask_of_queries_by_keys_is_made(context, make_job):
    def peak(**plan):
        shapes = {"seq_len": 4096, "hidden": 16, "kv_heads": 4, "ffn": 16, "vocab": 16}
        return exact_peak(make_job(plan=plan | {"grad_accum_steps": 1}, model=shapes), 3).peak_bytes

    # 1024 queries by 4096 keys take 4 MiB even as booleans.
    assert peak(cp=4, context=context) < peak(cp=4, context="ulysses") + 2 * 2**20


def test_only_key_and_value_heads_go_round_the_ring(run_job, make_job):
    finished = run_job(make_job(plan={"cp": 2, "context": "ring", "micro_batch_size": 8}), COUNTED)
    assert finished.status == 0, finished.logs


def test_without_the_ring_the_losses_differ(run_job, make_job):
    reference = run_job(make_job(plan={"micro_batch_size": 8})).losses
    alone = run_job(make_job(plan={"cp": 2, "context": "ring"}), ALONE).losses
    assert max(abs(one - other) for one, other in zip(alone, reference, strict=True)) > 1e-4


@pytest.mark.parametrize("context", ["all_gather", "ring"])
def test_the_result_names_the_fused_kernel_that_grouped_heads_ran_on(context, run_job, make_job):
    finished = run_job(make_job(plan={"cp": 2, "context": context, "micro_batch_size": 8}))
    assert finished.status == 0, finished.logs
    assert finished.measurement.attention_kernels == ("flash_for_cpu",)
    assert "math" not in read_result(finished.directory).reason


def test_the_result_warns_of_attention_without_a_fused_kernel(run_job, make_job):
    finished = run_job(make_job(plan={"micro_batch_size": 8}), MATH_ALONE)
    assert finished.status == 0, finished.logs
    assert finished.measurement.attention_kernels == ("math",)
    assert "attention ran without a fused kernel (math)" in read_result(finished.directory).reason


class Attention(nn.Module):
    """Causal attention of (2, 8, 16) hidden values, 2 heads; `run` takes the place of the layer's own call."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(16, 16)
        self.run = self.attend

    def attend(self, x: Tensor) -> Tensor:
        heads = self.projection(x).view(2, 8, 2, 8).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)


@pytest.mark.parametrize(("kernel", "name"), [(SDPBackend.FLASH_ATTENTION, "flash_for_cpu"), (SDPBackend.MATH, "math")])
def test_a_compiled_layer_runs_compiled_while_its_kernel_is_noted(kernel, name):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    model, x = Attention(), torch.ones(2, 8, 16)
    with sdpa_kernel(kernel):
        with noting_attention(model) as plain:
            model(x)
        model.run = torch.compile(model.attend, backend=counter, fullgraph=True, dynamic=False)
        model(x)
        with noting_attention(model, compiled=True) as compiled, torch.compiler.set_stance("fail_on_recompile"):
            model(x)
    assert plain == compiled == {name}
    assert counter.frame_count == 1


def test_every_kernel_that_torch_chooses_from_has_its_name():
    operators = {name for name in torch._C._dispatch_get_all_op_names() if "." not in name}
    assert operators >= _KERNELS.keys()
    chosen = {name for name in operators if name.startswith("aten::_scaled_dot_product_")}
    assert {name for name in chosen if not name.endswith(("_backward", "_for_mps"))} == _KERNELS.keys()
    assert _KERNELS["aten::_scaled_dot_product_cudnn_attention"] == "cudnn"
