"""Shapes that one rank has and several cannot share evenly train as on one rank; shapes that the trainer lacks are
refused."""

from __future__ import annotations

import pytest

from meshtune.runners.trainer.job import require_supported
from meshtune.search_spaces.checks import InvalidValue

TOLERANCE = 1e-4


@pytest.mark.parametrize(
    "shapes",
    [
        pytest.param({"vocab": 251}, id="a vocabulary that tp does not divide"),
        pytest.param({"vocab": 251, "tied_head": True}, id="one that head and embedding share"),
        pytest.param({"head_dim": 24}, id="heads that are wider together than the model"),
    ],
)
def test_tensor_parallel_losses_are_those_of_one_rank(shapes, run_job, make_job):
    alone = run_job(make_job(model=shapes, plan={"micro_batch_size": 8})).losses
    split = run_job(make_job(model=shapes, plan={"micro_batch_size": 8, "tp": 2})).losses
    assert max(abs(a - b) for a, b in zip(alone, split, strict=True)) < TOLERANCE


@pytest.mark.parametrize(
    ("shapes", "named"),
    [
        ({"window": 4}, r"^model\.window: the trainer has no such layers"),
        ({"mtp_layers": 1}, r"^model\.mtp_layers: "),
        ({"experts": 4, "top_k": 1, "shared_ffn": 32}, r"^model\.shared_ffn: "),
    ],
)
def test_layers_that_the_trainer_lacks_are_refused(shapes, named, make_job):
    with pytest.raises(InvalidValue, match=named):
        require_supported(make_job(model=shapes))
