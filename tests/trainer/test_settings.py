"""The trainer's options that knobs set: layouts train the same with each of them, each changes what it says, and the
result says what the process really had."""

from __future__ import annotations

import pytest
import torch
from torch.backends import cuda as switches

from meshtune.runners.told_knobs import ToldKnob
from meshtune.runners.trainer.job import AttentionKernel, require_supported, unfit_option
from meshtune.runners.trainer.settings import choose_attention
from meshtune.runners.trainer.timing.attention import _KERNELS
from meshtune.search_spaces.checks import InvalidValue

TOLERANCE = 1e-5


def told(**values):
    """The fields of a job that knobs told these options."""
    knobs = {
        f"my_{name}": ToldKnob(value=value, way="option", place=name, text=str(value)) for name, value in values.items()
    }
    return {**values, "knobs": knobs}


# As many replicas of few layers; a global batch of 8.
SHARDED = {"dp": 2, "micro_batch_size": 2}
CASES = [
    ({"tp": 2, "micro_batch_size": 4}, {"threads": 2}),
    ({"dp": 2, "zero_stage": 1, "micro_batch_size": 2}, {"gather_ahead": False}),
    ({**SHARDED, "zero_stage": 2}, {"prefetch": 1}),
    ({**SHARDED, "zero_stage": 3, "recompute": "full"}, {"prefetch": 2}),
    ({"pp": 2, "dp": 2, "zero_stage": 3}, {"prefetch": 1}),
    ({**SHARDED, "zero_stage": 3}, {"prefetch": 1, "attention": "math", "gather_ahead": True}),
    ({"cp": 2, "context": "ulysses", "micro_batch_size": 4}, {"attention": "flash"}),
    ({"cp": 2, "recompute": "selective", "micro_batch_size": 4}, {"selective": "attention"}),
    ({"tp": 2, "recompute": "selective", "micro_batch_size": 4}, {"selective": "half_products"}),
    ({"micro_batch_size": 8}, {"loss_chunks": 2}),
]


@pytest.fixture(scope="module")
def expected(run_job, make_job):
    return run_job(make_job(plan={"micro_batch_size": 8}, model={"layers": 4})).losses


@pytest.mark.parametrize(("plan", "options"), CASES, ids=lambda each: "-".join(map(str, each.values())))
def test_layouts_train_the_same_with_options_and_say_them(plan, options, expected, run_job, make_job):
    finished = run_job(make_job(plan=plan, model={"layers": 4}, **told(**options)))
    assert max(abs(one - other) for one, other in zip(finished.losses, expected, strict=True)) < TOLERANCE
    assert finished.measurement.knobs == {f"my_{name}": value for name, value in options.items()}


def test_the_number_format_is_that_of_the_products(run_job, make_job):
    for stage in (0, 3):
        finished = run_job(make_job(plan={**SHARDED, "zero_stage": stage}, **told(dtype="bfloat16")))
        assert finished.status == 0, finished.logs
        assert finished.measurement.knobs == {"my_dtype": "bfloat16"}


def test_variables_are_said_as_the_process_found_them(run_job, make_job):
    variables = {"A": ToldKnob(value=2, way="env", place="MESHLESS_A", text="two", texts={"two": 2, "one": 1})}
    found = run_job(make_job(knobs=variables), "import os; os.environ['MESHLESS_A'] = 'one'")
    # A rank gets the environment of its job, and nothing of what was set where it was started.
    assert found.measurement.knobs == {"A": None}, found.logs
    plain = {"B": ToldKnob(value="auto", way="env", place="GLOO_SOCKET_IFNAME", texts={"eth0": "eth0"})}
    assert run_job(make_job(plan={"dp": 2}, knobs=plain)).measurement.knobs == {"B": "auto"}


SELECTIVELY = {"recompute": "selective"}
LOST = [
    ("settings.choose_attention", "lambda kernel: None", {"attention": "math"}, "flash"),
    ("torch.set_num_threads", "lambda count: None", {"threads": 3}, 1),
    (
        "train._CONTEXTS",
        "dict.fromkeys(train.Selective, train._CONTEXTS['products'])",
        {"selective": "half_products"},
        "products",
    ),
    (
        "train.build_chunk",
        "lambda *arguments: whole(replace(arguments[0], loss_chunks=8), *arguments[1:])",
        {"loss_chunks": 2},
        8,
    ),
    ("FSDPModule.set_modules_to_forward_prefetch", "lambda self, modules: None", {"prefetch": 1}, 0),
]
IMPORTS = """
import torch
from dataclasses import replace
import meshtune.runners.trainer.main as settings
import meshtune.runners.trainer.train as train
from torch.distributed.fsdp import FSDPModule
torch.set_num_threads(1)
whole = train.build_chunk
"""


@pytest.mark.parametrize(("name", "nothing", "options", "seen"), LOST, ids=[name for name, *_ in LOST])
def test_an_option_that_is_lost_on_the_way_is_seen(name, nothing, options, seen, run_job, make_job):
    job = make_job(
        plan={**SHARDED, "zero_stage": 3, **(SELECTIVELY if "selective" in options else {})}, **told(**options)
    )
    finished = run_job(job, f"{IMPORTS}{name} = {nothing}\n")
    assert finished.status == 0, finished.logs
    assert list(finished.measurement.knobs.values()) == [seen]


# Fails unless, where the first part of the model asks for its weights, nothing is under way any more.
GATHERS_BEFORE = """
import meshtune.runners.trainer.parallel.sharding as sharding
sharding.BUCKET_ELEMENTS = 1000
wait, seen = sharding.FlatAdamW.await_weights, []

def noted(self, part):
    assert not any(bucket.gathering for bucket in self._buckets)
    wait(self, part)

sharding.FlatAdamW.await_weights = noted
"""


def test_without_gathering_ahead_nothing_is_under_way_in_the_forward_pass(run_job, make_job):
    job = {"plan": {"dp": 2, "zero_stage": 1, "micro_batch_size": 2}}
    assert run_job(make_job(**job, **told(gather_ahead=False)), GATHERS_BEFORE).status == 0
    assert run_job(make_job(**job), GATHERS_BEFORE).status == 1


# Fails unless the weights of the next layer are on their way, not yet there, while a layer but the last computes.
GATHERS_BESIDE = """
import meshtune.runners.trainer.model as model
run = model.Layer.run

def noted(self, x):
    state = self._get_fsdp_state()
    for other in state._states_to_forward_prefetch:
        (group,) = other._fsdp_param_groups
        assert group._all_gather_result.all_gather_work is not None
        print("on its way", flush=True)
    return run(self, x)

model.Layer.run = noted
"""


def test_prefetched_weights_come_while_a_layer_computes(run_job, make_job):
    finished = run_job(make_job(plan={**SHARDED, "zero_stage": 3}, **told(prefetch=1)), GATHERS_BESIDE)
    assert finished.status == 0, finished.logs
    assert "on its way" in (finished.directory / "rank-0.log").read_text(encoding="utf-8")


def test_what_the_spec_lets_be_compiled_need_not_be(make_job):
    require_supported(make_job(plan={"cp": 2}, compile=True, selective="attention"))


@pytest.mark.parametrize("kernel", ["flash", "cudnn"])
def test_a_kernel_of_16_bits_needs_them_on_cuda(kernel, make_job):
    require_supported(make_job(device="cuda", dtype="bfloat16", attention=kernel))
    with pytest.raises(InvalidValue, match=f"{kernel} on cuda takes 16 bits, not float32"):
        require_supported(make_job(device="cuda", attention=kernel))


# torch's switches, by the kernel that each lets run.
SWITCHES = {"flash": "flash", "efficient": "mem_efficient", "cudnn": "cudnn", "math": "math"}


@pytest.mark.parametrize("kernel", AttentionKernel)
def test_a_kernel_that_is_asked_for_is_the_only_one_let_run(kernel):
    before = {name: getattr(switches, f"{name}_sdp_enabled")() for name in SWITCHES.values()}
    try:
        choose_attention(kernel)
        on = {own for own, name in SWITCHES.items() if getattr(switches, f"{name}_sdp_enabled")()}
    finally:
        for name, value in before.items():
            getattr(switches, f"enable_{name}_sdp")(value)
    assert on == (set(SWITCHES) if kernel is AttentionKernel.AUTO else {kernel})


def test_every_kernel_that_can_be_asked_for_has_an_operator_by_which_it_is_seen():
    for operator in _KERNELS:
        assert hasattr(torch.ops.aten, operator.removeprefix("aten::")), operator
    assert set(_KERNELS.values()) >= set(SWITCHES)


def test_a_number_of_threads_is_a_whole_one(make_job):
    assert not any(unfit_option("threads", value) for value in (1, 1024))
    assert all(unfit_option("threads", value) for value in (0, 1025, 1.0, True))
    with pytest.raises(InvalidValue, match="threads: must be at least 1, not 0"):
        make_job(threads=0)
