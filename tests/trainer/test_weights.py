"""Weights after four steps are those of one process, whatever part of them a rank holds and whichever are trained;
losses and gradient norms of plain recipes are test_matrix.py's. Not looked at are bfloat16 and CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from meshtune.runners.trainer.adapters import is_trained
from meshtune.runners.trainer.model import initial_values
from meshtune.search_spaces.recipe import Adapter, Recipe

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


# Both factors of an adapter are drawn, or the first one's gradient would be 0.
DRAWS_BOTH = """
from meshtune.runners.trainer.parallel import sharding
values = sharding.initial_values
sharding.initial_values = lambda spec, name, *rest: values(spec, name.removesuffix(".b"), *rest)
"""
LONG = pytest.mark.long
SOME = Adapter(rank=4, targets=("q", "v", "o", "up", "down"), copies_inputs=False)
RECIPES = {
    "lora": Recipe(adapter=Adapter(rank=3, copies_inputs=False), base_bits=32),
    "some": Recipe(adapter=SOME, base_bits=32, trained_ends=True),
    "late layers": Recipe(frozen_layers=2, frozen_embedding=True),
    "no ends": Recipe(frozen_embedding=True, frozen_head=True),
    "sgd": Recipe(adapter=SOME, base_bits=32, optimizer="sgd"),
}
SHAPES = {
    "llama": {"layers": 4},
    "one-kv": {"layers": 2, "kv_heads": 1},
    "gpt": {"layers": 4, "norm": "layernorm", "activation": "gelu", "position": "learned"},
    "moe": {"experts": 4, "top_k": 2},
    "tied": {"layers": 4, "tied_head": True},
}


@pytest.mark.parametrize(
    ("recipe", "model", "plan"),
    [
        pytest.param(
            "lora", "llama", {"tp": 2, "dp": 2, "zero_stage": 3, "micro_batch_size": 2}, marks=pytest.mark.slow
        ),
        pytest.param("some", "llama", {"pp": 2, "dp": 2, "zero_stage": 1}, marks=pytest.mark.slow),
        pytest.param("late layers", "llama", {"pp": 2, "dp": 2}, marks=pytest.mark.slow),
        pytest.param("lora", "one-kv", {"tp": 2, "cp": 2, "micro_batch_size": 8}, marks=pytest.mark.slow),
        pytest.param("lora", "llama", {"dp": 2, "zero_stage": 2, "recompute": "full"}, marks=LONG),
        pytest.param("lora", "llama", {"dp": 2, "zero_stage": 3, "recompute": "selective"}, marks=LONG),
        pytest.param("lora", "llama", {"dp": 4, "zero_stage": 1, "zero_group": 2}, marks=LONG),
        pytest.param("lora", "gpt", {"tp": 2, "sequence_parallel": False, "micro_batch_size": 8}, marks=LONG),
        pytest.param("lora", "gpt", {"cp": 2, "context": "ulysses", "micro_batch_size": 8}, marks=LONG),
        pytest.param("lora", "llama", {"cp": 2, "context": "ring", "micro_batch_size": 8}, marks=LONG),
        pytest.param(
            "lora", "llama", {"pp": 2, "vpp": 2, "schedule": "interleaved", "dp": 2, "zero_stage": 3}, marks=LONG
        ),
        pytest.param("lora", "llama", {"pp": 2, "vpp": 2, "schedule": "zbv"}, marks=LONG),
        pytest.param("late layers", "llama", {"pp": 2, "vpp": 2, "schedule": "zbv"}, marks=LONG),
        pytest.param("late layers", "llama", {"pp": 4, "dp": 2, "zero_stage": 2}, marks=LONG),
        pytest.param("late layers", "llama", {"tp": 2, "dp": 2, "zero_stage": 3, "micro_batch_size": 2}, marks=LONG),
        pytest.param("lora", "moe", {"dp": 2, "ep": 2, "zero_stage": 3}, marks=LONG),
        pytest.param(
            "some", "moe", {"tp": 2, "dp": 2, "ep": 4, "etp": 1, "zero_stage": 1, "micro_batch_size": 4}, marks=LONG
        ),
        pytest.param("no ends", "moe", {"dp": 2, "ep": 2, "zero_stage": 1}, marks=LONG),
        pytest.param("some", "tied", {"pp": 2, "tp": 2, "micro_batch_size": 4}, marks=LONG),
        pytest.param("no ends", "tied", {"pp": 2, "dp": 2, "zero_stage": 1}, marks=LONG),
        pytest.param("sgd", "llama", {"tp": 2, "dp": 2, "zero_stage": 1, "micro_batch_size": 2}, marks=LONG),
    ],
    ids=str,
)
def test_what_a_recipe_trains_is_trained_as_by_one_process_and_the_rest_stays(
    recipe, model, plan, run_job, make_job, tmp_path
):
    trained, told = RECIPES[recipe], []
    for folder, layout in (("one", {"micro_batch_size": 8}), ("many", plan)):
        (tmp_path / folder).mkdir()
        job = make_job(model=SHAPES[model], plan=layout, recipe=trained)
        done = run_job(job, DRAWS_BOTH + KEEPS_WEIGHTS.replace("FOLDER", str(tmp_path / folder)))
        told.append((done.losses, done.measurement.first_gradient_norms))
    assert told[1][0] == pytest.approx(told[0][0], abs=1e-4)
    assert told[1][1] == pytest.approx(told[0][1], rel=1e-5)
    (whole,) = weights(tmp_path / "one").values()
    for parts in ({"": whole}, weights(tmp_path / "many")):
        for name, (places, weight) in ((name, part) for held in parts.values() for name, part in held.items()):
            own = name if name in whole else name.replace("head", "embedding")
            if own not in whole:  # query, key and value apart
                assert not is_trained(trained, name)
                continue
            expected = whole[own][1].flatten()[places.flatten()]
            assert torch.allclose(weight.flatten(), expected, rtol=0, atol=5e-4)
            if ".experts." not in name:
                start = initial_values(job.model, name.removesuffix(".b"), whole[own][1].shape, 0, torch.device("cpu"))
                moved = not torch.equal(weight.flatten(), start.flatten()[places.flatten()])
                assert moved == (is_trained(trained, name) and weight.numel() > 0), name
