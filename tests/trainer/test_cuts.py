"""What a plan says is cut is really cut, and what it says is recomputed is: equal losses alone would not show it."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from meshtune.runners.trainer.model import Transformer
from meshtune.runners.trainer.parallel.recompute import recompute_layers
from meshtune.runners.trainer.parallel.sharding import materialize
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Recompute

SLOW, LONG = pytest.mark.slow, pytest.mark.long
MIXTURE: dict[str, object] = {"experts": 4, "top_k": 2}

# Rank 0 writes down the first activation that enters a layer, its experts, and what its optimizer holds.
WRITE_DOWN = """
import json
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from meshtune.runners.trainer.model import Layer
from meshtune.runners.trainer.parallel.optimizer import Both, FlatAdamW, ShardedAdamW
from meshtune.runners.trainer.train import Trainer

seen = {}
blocks, step = Layer._blocks, Trainer.step

def noted_blocks(layer, x):
    seen.setdefault("activation", list(x.shape))
    experts = getattr(layer.feed_forward, "experts", None)
    seen.setdefault("experts", [] if experts is None else [name for name, _ in experts.named_children()])
    return blocks(layer, x)

def shares(optimizer):
    if isinstance(optimizer, Both):
        return shares(optimizer._dense) + shares(optimizer._experts)
    if isinstance(optimizer, FlatAdamW):
        return [round(len(optimizer._weights) / len(optimizer._master))]
    return [group["params"][0].device_mesh.size() for group in optimizer._adamw.param_groups]

def noted_step(trainer, *batch):
    loss = step(trainer, *batch)
    seen["shares"] = shares(trainer._optimizer)
    if dist.get_rank() == 0:
        open(directory + "/seen.json", "w").write(json.dumps(seen))
    return loss

Layer._blocks, Trainer.step = noted_blocks, noted_step
"""


@pytest.mark.parametrize(
    ("plan", "model", "seen"),
    [
        pytest.param({"tp": 2, "micro_batch_size": 8}, {}, {"activation": [8, 8, 32]}, marks=SLOW),
        pytest.param(
            {"tp": 2, "micro_batch_size": 8, "sequence_parallel": False}, {}, {"activation": [8, 16, 32]}, marks=LONG
        ),
        pytest.param({"cp": 2, "tp": 2, "micro_batch_size": 8}, {}, {"activation": [8, 4, 32]}, marks=LONG),
        pytest.param({"cp": 2, "dp": 2, "zero_stage": 1}, {}, {"shares": [4]}, marks=SLOW),
        pytest.param(
            {"dp": 2, "cp": 2, "ep": 2, "zero_stage": 1}, MIXTURE, {"experts": ["0", "1"], "shares": [4, 2]}, marks=SLOW
        ),
        pytest.param(
            {"dp": 4, "ep": 2, "zero_stage": 3}, MIXTURE, {"experts": ["0", "1"], "shares": [4, 2]}, marks=SLOW
        ),
    ],
    ids=str,
)
def test_ranks_hold_their_part_alone(plan, model, seen, run_job, make_job):
    finished = run_job(make_job(plan=plan, model=model), WRITE_DOWN)
    assert finished.status == 0, finished.output
    found = json.loads((finished.directory / "seen.json").read_text(encoding="utf-8"))
    assert {name: found[name] for name in seen} == seen


class Counting(TorchDispatchMode):
    """Counts the operations that are really computed."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **kwargs or {})


def backward_counts(kind: Recompute, interval: int = 1, **shapes: object) -> Counter[str]:
    sizes = {"layers": 4, "hidden": 16, "heads": 2, "ffn": 24, "vocab": 32, "seq_len": 8}
    with torch.device("meta"):
        model = Transformer(ModelSpec(**{"name": "m"} | sizes | shapes))
    recompute_layers(model, kind, interval)
    materialize(model, torch.device("cpu"), 0)
    with Counting() as counting:
        loss = model(torch.arange(8)[None]).logsumexp(-1).sum()
        counting.counts.clear()
        loss.backward()
    return counting.counts


@pytest.mark.parametrize("interval", [1, 2, 3])
def test_full_recomputation_repeats_every_so_many_th_layer(interval):
    kept, repeated = backward_counts(Recompute.NONE), backward_counts(Recompute.FULL, interval)
    layers = len(range(0, 4, interval))
    # Of seven matrix products of a layer the last one's result is needed by nothing; torch stops before it.
    assert repeated["mm"] - kept["mm"] in (6 * layers, 7 * layers)
    assert repeated["silu"] - kept["silu"] == layers


@pytest.mark.parametrize(("shapes", "activations"), [({}, 1), (MIXTURE, 4)], ids=["dense", "mixture"])
def test_selective_recomputation_repeats_what_is_cheap_alone(shapes, activations):
    kept, repeated = backward_counts(Recompute.NONE, **shapes), backward_counts(Recompute.SELECTIVE, **shapes)
    attention = "_scaled_dot_product_flash_attention_for_cpu"
    assert (repeated["mm"], repeated[attention]) == (kept["mm"], kept[attention])
    assert repeated["silu"] - kept["silu"] == 4 * activations
