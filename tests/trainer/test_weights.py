"""Weights after four steps are those of one process, whatever part of them a rank holds; losses and gradient norms are
test_matrix.py's. Not looked at are bfloat16 and CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

# After the last step each rank writes of every weight the part that it holds, and where it lies in the whole one.
KEEPS_WEIGHTS = """
import torch
import torch.distributed as dist
from meshtune.runners.trainer import train
from meshtune.runners.trainer.mixture import Experts
from meshtune.runners.trainer.parallel.sharding import ShardedAdamW, local, own_part

step, taken = train.Trainer.step, []

def step_and_keep(self, tokens, targets):
    loss = step(self, tokens, targets)
    taken.append(loss)
    if len(taken) == 4:
        self.optimizer.begin_step()  # ZeRO 1 gathers there
        kept = {}
        for model in self._models:
            if not isinstance(self.optimizer, ShardedAdamW):
                for part in model.modules():
                    self.optimizer.await_weights(part)
            numbers = {name: module.numbers for name, module in model.named_modules() if isinstance(module, Experts)}
            for name, weight in model.named_parameters():
                experts = numbers.get(name.rpartition(".")[0])
                shape = list(model.cuts[name].shape if name in model.cuts else weight.shape)
                rows = self._job.model.hidden
                whole = shape if experts is None else [self._job.model.experts * rows, *shape[1:]]
                places = torch.arange(torch.Size(whole).numel()).view(whole)
                if experts is not None:
                    places = places[experts.start * rows : experts.stop * rows]
                places = model.cuts[name].part(places) if name in model.cuts else places
                kept[name] = own_part(places, weight), local(weight.detach()).clone()
        torch.save(kept, f"FOLDER/{dist.get_rank()}.pt")
    return loss

train.Trainer.step = step_and_keep
"""
MODELS = {
    "dense": {"layers": 4, "norm": "layernorm", "activation": "gelu", "position": "learned", "tied_head": True},
    "experts": {"experts": 4, "top_k": 2, "kv_heads": 4, "tied_head": True},
}


def weights(folder: Path) -> dict[str, dict[str, tuple[torch.Tensor, torch.Tensor]]]:
    return {file.name: torch.load(file) for file in sorted(folder.iterdir())}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "plan"),
    [
        ("dense", {"cp": 2, "dp": 2, "zero_stage": 1, "zero_group": 2, "recompute": "full"}),
        ("dense", {"pp": 2, "dp": 4, "zero_stage": 3, "zero_group": 2}),
        ("dense", {"tp": 2, "dp": 4, "zero_stage": 2, "zero_group": 2, "micro_batch_size": 2}),
        ("experts", {"tp": 2, "dp": 4, "ep": 2, "etp": 1, "zero_stage": 1, "zero_group": 2, "micro_batch_size": 2}),
        ("experts", {"cp": 2, "dp": 2, "ep": 2, "etp": 2, "zero_stage": 3, "micro_batch_size": 2}),
        ("experts", {"tp": 4, "ep": 2, "etp": 1, "zero_stage": 1, "micro_batch_size": 8}),
    ],
    ids=str,
)
def test_every_rank_s_part_of_a_weight_is_one_process_s(model, plan, run_job, make_job, tmp_path):
    for folder, layout in (("one", {"micro_batch_size": 8}), ("many", plan)):
        (tmp_path / folder).mkdir()
        done = run_job(
            make_job(model=MODELS[model], plan=layout), KEEPS_WEIGHTS.replace("FOLDER", str(tmp_path / folder))
        )
        assert len(done.losses) == 4
    (whole,) = weights(tmp_path / "one").values()
    seen = {name: torch.zeros(weight.numel(), dtype=torch.bool) for name, (_, weight) in whole.items()}
    for parts in weights(tmp_path / "many").values():
        for name, (places, weight) in parts.items():
            # A tied head of a last stage is the embedding.
            own = name if name in whole else name.replace("head", "embedding")
            assert torch.allclose(weight.flatten(), whole[own][1].flatten()[places.flatten()], rtol=0, atol=5e-4)
            seen[own][places.flatten()] = True
    assert all(held.all() for held in seen.values())
