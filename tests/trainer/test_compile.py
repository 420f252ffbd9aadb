"""Compiled layers train as uncompiled ones do, and whatever is not compiled says so.

Most cases stop before inductor, whose C++ compiler takes minutes on a busy machine: what the trainer adds is in
the graphs. The whole way is one `long` case. Nothing here runs on CUDA."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from meshtune.runners.measuring import COUNTED_STEPS
from meshtune.runners.outcome import RESULT_FILE, read_result
from meshtune.runners.programs.workloads.torch import TorchWorkload
from meshtune.runners.trainer.exact import exact_peak
from meshtune.runners.trainer.job import Measuring, TrainerJob
from meshtune.runners.trainer.model import Transformer
from meshtune.runners.trainer.parallel.mesh import build_mesh
from meshtune.runners.trainer.parallel.sharding import Sharding
from meshtune.runners.trainer.train import build_chunk
from meshtune.search_spaces.recipe import PLAIN, Adapter, Recipe

pytestmark = pytest.mark.slow

TOLERANCE = 1e-4
# The first steps count memory and are not compiled, one compiles, two are timed.
MEASURING = Measuring(max_warmup_steps=0, min_steps=2, max_steps=2, profile_steps=0, loss_steps=COUNTED_STEPS + 3)
# As many steps without compiling.
UNCOMPILED = replace(MEASURING, min_steps=3, max_steps=3)
MIXTURE: dict[str, object] = {"experts": 4, "top_k": 2}
WITHOUT_INDUCTOR = """
import torch
whole_way = torch.compile
torch.compile = lambda run, **options: whole_way(run, backend="aot_eager", **options)
"""
CASES = [
    pytest.param({}, {"dp": 2, "zero_stage": 1, "micro_batch_size": 2}, "", id="zero 1", marks=pytest.mark.long),
    pytest.param(
        {},
        {"dp": 2, "zero_stage": 3, "recompute": "full", "micro_batch_size": 2},
        "",
        id="zero 3, full",
        marks=pytest.mark.long,
    ),
    pytest.param(
        {},
        {"tp": 2, "recompute": "selective", "micro_batch_size": 4},
        "",
        id="tp, selective",
        marks=pytest.mark.long,
    ),
    pytest.param(MIXTURE, {"tp": 2, "micro_batch_size": 4}, "compiled but for the experts", id="mixture"),
    pytest.param(
        {"layers": 4}, {"pp": 2, "vpp": 2, "schedule": "zbv"}, "not compiled: zbv splits", id="split backward passes"
    ),
    pytest.param({}, {"pp": 2, "cp": 2, "context": "ulysses"}, "", id="pipeline and context", marks=pytest.mark.long),
]


def require_alike(model, plan, note, run_job, make_job, recipe):
    one = make_job(model=model, plan={"micro_batch_size": 8}, measuring=UNCOMPILED, recipe=recipe)
    job = make_job(model=model, plan=plan, measuring=MEASURING, compile=True, recipe=recipe)
    compiled = run_job(job, WITHOUT_INDUCTOR)
    pairs = zip(compiled.losses, run_job(one).losses, strict=False)  # what is not compiled takes a step less
    assert max(abs(own - other) for own, other in pairs) < TOLERANCE
    reason = read_result(compiled.directory).reason
    assert note in reason if note else "compiled" not in reason


@pytest.mark.parametrize(("model", "plan", "note"), CASES)
def test_compiled_layers_train_alike(model, plan, note, run_job, make_job):
    require_alike(model, plan, note, run_job, make_job, PLAIN)


@pytest.mark.parametrize(
    "plan",
    [
        {"tp": 2, "micro_batch_size": 4},
        pytest.param({"dp": 2, "zero_stage": 3, "recompute": "selective"}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_compiled_layers_with_adapters_train_alike(plan, run_job, make_job):
    recipe = Recipe(adapter=Adapter(rank=4, targets=("q", "v", "up", "down")), base_bits=32)
    require_alike({}, plan, "", run_job, make_job, recipe)


def test_the_step_that_compiles_is_reported_and_its_limit_is_that_of_the_start(run_job, make_job):
    watch = "import meshtune.runners.trainer.timing.measure as measuring\nlimits = []\ntake = measuring.Steps.take\n"
    watch += "def noted(steps):\n    limits.append('step' if steps._progress.stepping else 'start')\n"
    watch += "    print('limits', *limits)\n    took = take(steps)\n    print('took', took)\n    return took\n"
    watch += "measuring.Steps.take = noted\n"
    finished = run_job(make_job(measuring=MEASURING, compile=True), WITHOUT_INDUCTOR + watch)
    assert finished.status == 0, finished.logs
    said = (finished.directory / "rank-0.log").read_text(encoding="utf-8").splitlines()
    assert [line for line in said if line.startswith("limits")][-1] == "limits start start start step step"
    timed = finished.measurement
    assert timed.compile_s > 3 * max(*timed.warmup_times_s, *timed.step_times_s)
    taken = [line for line in said if line.startswith("took")]
    assert timed.compile_s == pytest.approx(float(taken[COUNTED_STEPS].split()[1]) - timed.step_time_s)
    assert json.loads((finished.directory / RESULT_FILE).read_text(encoding="utf-8"))["compile_s"] == timed.compile_s
    assert f"compile_s: {timed.compile_s}\n" in f"{finished.output}\n"


def test_memory_is_counted_before_compiling(run_job, make_job):
    one, other = (run_job(make_job(measuring=MEASURING, compile=kind), WITHOUT_INDUCTOR) for kind in (False, True))
    assert other.measurement.peak_memory_bytes == one.measurement.peak_memory_bytes


@pytest.mark.long
def test_inductor_itself_trains_alike(run_job, make_job):
    plan = {"tp": 2, "micro_batch_size": 4, "recompute": "selective"}
    one = run_job(make_job(plan={"micro_batch_size": 8}, measuring=UNCOMPILED)).losses
    compiled = run_job(make_job(plan=plan, measuring=MEASURING, compile=True)).losses
    assert max(abs(own - other) for own, other in zip(compiled, one, strict=True)) < TOLERANCE


def test_the_exact_peak_is_that_of_uncompiled_layers(make_job):
    assert exact_peak(make_job(compile=True), 0).peak_bytes == exact_peak(make_job(), 0).peak_bytes


def test_trials_with_other_options_teach_nothing_of_these():
    names = [
        TorchWorkload(options).framework.name
        for options in ({}, {"compile": True}, {"compile": True, "async_tp": True}, {"selective": "attention"})
    ]
    assert len(set(names)) == 4


@contextmanager
def _a_chunk(job: TrainerJob) -> Iterator[Transformer]:
    """On a group that hears nobody."""
    dist.init_process_group("fake", rank=0, world_size=job.plan.world_size, store=FakeStore())
    try:
        yield build_chunk(job, build_mesh(job.plan, "cpu"), torch.device("cpu"), Sharding.FLAT, 0)
    finally:
        dist.destroy_process_group()


def _hidden(job: TrainerJob) -> torch.Tensor:
    shape = (job.plan.micro_batch_size, job.model.seq_len // job.plan.tp, job.model.hidden)
    return torch.zeros(shape, requires_grad=True)


@pytest.fixture
def graphs_of() -> Callable[[TrainerJob], tuple[torch.fx.GraphModule, torch.fx.GraphModule]]:
    """What inductor would get of a job's layers, forward and backward; fails where they are not one graph for all."""
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.post_grad import view_to_reshape

    def capture(job: TrainerJob) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        graphs: list[torch.fx.GraphModule] = []

        def keep(graph: torch.fx.GraphModule, _: object) -> Any:
            graphs.append(graph)
            return make_boxed_func(graph.forward)

        backend = aot_autograd(fw_compiler=keep, bw_compiler=keep, decompositions=select_decomp_table())
        torch._dynamo.reset()
        with _a_chunk(job) as model:
            out = _hidden(job)
            for layer in model.layer_list():
                out = torch.compile(layer.run, backend=backend, fullgraph=True, dynamic=False)(out)
            out.sum().backward()
        for graph in graphs:
            view_to_reshape(graph)  # as inductor has done by then
        forward, backward = graphs
        return forward, backward

    return capture


def _counts(graph: torch.fx.GraphModule) -> Counter[str]:
    return Counter(node.target._opname for node in graph.graph.nodes if isinstance(node.target, torch._ops.OpOverload))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit, by inductor's own modules
def test_one_graph_serves_all_layers_and_inductor_sees_what_it_can_overlap(make_job, graphs_of):
    from torch._inductor.fx_passes import micro_pipeline_tp as overlap

    forward, backward = graphs_of(make_job(model={"layers": 3}, plan={"tp": 2, "micro_batch_size": 2}))
    gathers, sums = overlap.find_all_gather_patterns(forward.graph), overlap.find_reduce_scatter_patterns(forward.graph)
    # Query, key and value are one product; gate and up another.
    assert [len(overlap._find_consumer_matmuls(gather.res_node)) for gather in gathers] == [1, 1]
    assert [overlap._find_producer_matmul(one.input_node) is not None for one in sums] == [True, True]
    gathers, sums = (
        find(backward.graph) for find in (overlap.find_all_gather_patterns, overlap.find_reduce_scatter_patterns)
    )
    assert [overlap._find_producer_matmul(one.input_node) is not None for one in sums] == [True, True]
    assert [len(overlap._find_consumer_matmuls(gather.res_node)) for gather in gathers] == [1, 1]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit, by inductor's own modules
def test_a_compiled_layer_reads_its_rotary_tables_and_copies_no_heads_but_the_value(make_job, graphs_of):
    copies = []
    for graph in graphs_of(make_job(plan={"micro_batch_size": 2})):
        counts = _counts(graph)
        assert counts["mm"]
        assert not counts.keys() & {"cos", "sin", "arange"}, counts
        copies.append(counts["clone"])
    assert copies == [1, 0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit, by inductor's own modules
def test_a_compiled_layer_keeps_no_part_of_a_product_that_would_keep_all_of_it(make_job, graphs_of):
    forward, _ = graphs_of(make_job(plan={"micro_batch_size": 2}))
    read: Counter[Any] = Counter()
    for node in forward.graph.output_node().args[0]:
        value = node.meta["val"]
        read[value.untyped_storage()] += value.numel() * value.itemsize
    assert len(read) > 1
    assert [storage.nbytes() for storage, bytes_ in read.items() if bytes_ < storage.nbytes()] == []


# Attention kernels and products with weights that the compiled backward pass of a layer computes again. Without
# recomputation it has two products for each of four weights.
AGAIN = {"products": (0, 0), "attention": (1, 0), "half_products": (0, 1)}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # dynamo makes an instance of an autograd function
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
@pytest.mark.parametrize("selective", AGAIN)
def test_a_compiled_layer_repeats_what_selective_recomputation_says(selective, make_job):
    counted: list[Counter[str]] = []

    def keep(graph: torch.fx.GraphModule, _: object) -> Any:
        # A kernel that may draw random numbers is an argument of what repeats their state.
        called = [target for node in graph.graph.nodes for target in (node.target, *node.args)]
        counted.append(Counter(getattr(target, "_opname", "") for target in called))
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep, partition_fn=min_cut_rematerialization_partition)
    torch._dynamo.reset()
    with _a_chunk(make_job(plan={"recompute": "selective", "micro_batch_size": 2}, selective=selective)) as model:
        layer = model.layer_list()[0]
        hidden = torch.zeros(2, 16, 32, requires_grad=True)
        torch.compile(layer.run, backend=backend, fullgraph=True, dynamic=False)(hidden).sum().backward()
    _, backward = counted
    assert (backward["_scaled_dot_product_flash_attention_for_cpu"], backward["mm"] - 8) == AGAIN[selective]


class _Collectives(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "_c10d_functional":
            self.counts[func._opname] += 1
        return func(*args, **(kwargs or {}))


def test_a_layer_communicates_at_the_ends_of_its_blocks_alone(make_job):
    job = make_job(plan={"tp": 2, "micro_batch_size": 2})
    with _a_chunk(job) as model, _Collectives() as seen:
        model.layer_list()[0](_hidden(job)).sum().backward()
    assert seen.counts == {"all_gather_into_tensor": 4, "reduce_scatter_tensor": 4, "wait_tensor": 8}
