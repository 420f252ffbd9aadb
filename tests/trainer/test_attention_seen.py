"""The attention kernel that ran is noted, compiled or not, under the names that torch's dispatcher has."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention import SDPBackend, sdpa_kernel

from meshtune.runners.trainer.timing.attention import _KERNELS, noting_attention


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
