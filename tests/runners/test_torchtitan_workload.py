"""The torchtitan workload: a short run that leaves nothing behind, measured by lines that its own code writes."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest
from workload_lab import MODEL, WorkloadLab

from meshtune.runners.base import Start
from meshtune.runners.outcome import Verdict
from meshtune.runners.programs.workloads.base import CONTEXT_FILE
from meshtune.runners.registry import create_workload
from meshtune.search_spaces.physics.framework_profiles import (
    TORCHTITAN,
    TORCHTITAN_COMPILED,
    TRAINER_BFLOAT16,
    compiled,
)
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.routing import Routing

PLAN = Plan(tp=2, dp=4, micro_batch_size=2, grad_accum_steps=2, zero_stage=3)
LAB = WorkloadLab("torchtitan", PLAN, replace(MODEL, seq_len=2048), steps=5, warmup_steps=2)
materialize, outcome = LAB.materialize, LAB.outcome


class Colour:
    """torchtitan/tools/utils.py, Color and NoColor."""

    def __init__(self, on: bool) -> None:
        for number, name in enumerate(("red", "green", "yellow", "blue", "magenta", "cyan"), 31):
            setattr(self, name, f"\033[{number}m" if on else "")
        self.orange = "\033[38;2;180;60;0m" if on else ""
        self.turquoise = "\033[38;2;54;234;195m" if on else ""
        self.reset = "\033[39m" if on else ""


# torchtitan/tools/logging.py, init_logger.
PREFIX = "[titan] 2026-08-22 10:00:00,123 - root - INFO - "


def line_0_3(step: int, tps: float, loss: float, gib: float, colour: bool = False, mfu: float | None = 41.5) -> str:
    """torchtitan 0.3.0, torchtitan/components/metrics.py, MetricsProcessor.log."""
    color = Colour(colour)
    mfu_str = f"{mfu:.2f}%" if mfu is not None else "N/A"
    return PREFIX + (
        f"{color.red}step: {step:2}  "
        f"{color.green}loss: {loss:8.5f}  "
        f"{color.orange}grad_norm: {1.25:7.4f}  "
        f"{color.turquoise}memory: {gib:5.2f}GiB"
        f"({gib / 80 * 100:.2f}%)  "
        f"{color.blue}tps: {round(tps):,}  "
        f"{color.cyan}tflops: {1234.5:,.2f}  "
        f"{color.magenta}mfu: {mfu_str}{color.reset}"
    )


def line_0_2(step: int, tps: float, loss: float, gib: float, colour: bool = False) -> str:
    """torchtitan v0.2.2, torchtitan/components/metrics.py, MetricsProcessor.log: as 0.3.0, but that mfu is a number."""
    return line_0_3(step, tps, loss, gib, colour, mfu=7.0)


def validation(step: int) -> str:
    """torchtitan 0.3.0, torchtitan/components/metrics.py, MetricsProcessor.log_validation."""
    return PREFIX + f"validate step: {step:2}  loss: {3.5:7.4f}  memory: {70.0:5.2f}GiB({87.5:.2f}%)  tps: {99:,}"


def rate(seconds: float, plan: Plan = PLAN) -> float:
    """torchtitan's tps: the tokens of this rank's batches, over the time and over the ranks that share them."""
    tokens_of_rank = plan.micro_batch_size * plan.grad_accum_steps * LAB.model.seq_len
    return tokens_of_rank / (seconds * plan.tp * plan.pp * plan.cp)


def test_a_trial_of_0_3_is_flags_that_take_its_steps_and_leave_nothing_behind(tmp_path):
    job = materialize(tmp_path, arguments=["--module llama3", "--config llama3_8b", "--training.steps 9", "--x 'a b'"])
    assert job.command[:8] == (
        *("python3", "-m", "torchtitan.train", "--module", "llama3", "--config", "llama3_8b", "--x"),
    )
    assert (job.command[8], job.command[-1]) == ("a b", "activation-checkpoint:none")
    told = {name: value for name, value in zip(job.command, job.command[1:], strict=False) if name.startswith("--")}
    assert (told["--training.steps"], told["--metrics.log_freq"], told["--debug.seed"]) == ("5", "1", "7")
    assert told["--dump_folder"] == str(tmp_path)
    off = ("checkpoint.no_enable", "validator.no_enable", "profiler.no_enable_profiling", "metrics.no_enable_wandb")
    assert {f"--{name}" for name in off} <= set(told)
    assert (job.start, job.processes, set(job.files)) == (Start.DEVICE, 8, {"torchtitan.args", CONTEXT_FILE})
    assert list(tmp_path.iterdir()) == []


def test_a_trial_of_0_2_is_a_toml_file_over_the_users(tmp_path):
    own = {"model": {"name": "llama3"}, "checkpoint": {"enable": True, "folder": "c"}, "training": {"steps": 9}}
    job = materialize(tmp_path, release="v0.2", config=own, env={"A": "1"}, directory="/opt/torchtitan")
    said = tomllib.loads(job.files["torchtitan.toml"])
    assert job.command[3:] == (
        *("/opt/torchtitan", "python3", "-m", "torchtitan.train"),
        *("--job.config_file", str(tmp_path / "torchtitan.toml")),
    )
    assert (said["training"]["steps"], said["metrics"]["log_freq"], said["job"]) == (
        5,
        1,
        {"dump_folder": str(tmp_path)},
    )
    assert said["checkpoint"] == {"enable": False, "folder": "c"}
    assert (said["profiling"], said["validation"]) == ({"enable_profiling": False}, {"enable": False})
    assert (said["debug"], said["model"], dict(job.env)) == ({"seed": 7}, {"name": "llama3"}, {"A": "1"})


def test_flags_of_the_users_that_a_trial_sets_do_not_lie_over_its_file(tmp_path):
    """torchtitan's flags count more than its file, and so they took the plan's place."""
    own = ["--training.local_batch_size 9", "--training.steps=1000", "--metrics.log-freq 50", "--compile.enable"]
    own += ["--parallelism.tensor-parallel-degree 4", "--profiling.enable_profiling", "--job.config_file mine.toml"]
    job = materialize(tmp_path, release="v0.2", arguments=own)
    assert job.command[3:] == ("--job.config_file", str(tmp_path / "torchtitan.toml"), "--compile.enable")
    flags = materialize(tmp_path, arguments=own).command
    assert "--parallelism.tensor-parallel-degree" not in flags
    assert flags.count("--parallelism.tensor_parallel_degree") == 1


@pytest.mark.parametrize(("release", "training", "debug"), [("v0.2.0", {"seed": 7}, None), ("v0.2", {}, {"seed": 7})])
def test_the_seed_stands_where_the_release_has_it(tmp_path, release, training, debug):
    """0.2.0 refuses a section `debug`, and 0.2.1 the key `training.seed`."""
    said = tomllib.loads(materialize(tmp_path, release=release).files["torchtitan.toml"])
    assert training.items() <= said["training"].items()
    assert said.get("debug") == debug


@pytest.mark.parametrize("line", [line_0_2, line_0_3])
@pytest.mark.parametrize("colour", [False, True])
def test_the_tokens_per_second_of_each_step_are_its_time(tmp_path, line, colour):
    times = [2.0, 0.5, 0.3, 0.4, 0.35]
    lines = [line(step, rate(time), 12.0 - step, 20.0 + step, colour) for step, time in enumerate(times, 1)]
    other = [line(step, rate(time) / 2, 12.0 - step, 30.0, colour) for step, time in enumerate(times, 1)]
    found = outcome(tmp_path, {0: ["noise", *lines[:3], validation(3), *lines[3:]], 1: other})
    measured = found.measurement
    assert (found.verdict, found.reason) == (Verdict.OK, "")
    # tps is rounded to a whole number: to 1 in 20,000 and better here.
    assert measured.step_times_s == pytest.approx([0.3, 0.4, 0.35], rel=1 / rate(0.3))
    assert measured.warmup_times_s == pytest.approx([2.0, 0.5], rel=1 / rate(2.0))
    assert measured.tokens_per_step == 16 * 2048
    assert measured.first_losses == (11.0, 10.0, 9.0, 8.0)
    assert measured.first_gradient_norms == (1.25,) * 4
    # What the allocator holds, of each rank the most.
    assert (measured.peak_memory_bytes, measured.peak_held_bytes) == ((), (25 * 2**30, 30 * 2**30))


def test_ranks_of_a_pipelines_first_stages_see_no_loss_and_tell_none(tmp_path):
    plan = Plan(pp=2, dp=4, micro_batch_size=2, grad_accum_steps=2, zero_stage=3)
    lines = [line_0_3(step, rate(0.25, plan), -1.0, 20.0, mfu=None) for step in range(1, 6)]
    measured = outcome(tmp_path, {0: lines}, plan=plan).measurement
    assert measured.step_times_s == pytest.approx([0.25] * 3, rel=1e-4)
    assert measured.first_losses == ()
    last = [line_0_3(step, rate(0.25, plan), 9.0 - step, 20.0, mfu=None) for step in range(1, 6)]
    assert outcome(tmp_path, {0: lines, 4: last}, plan=plan).measurement.first_losses == (8.0, 7.0, 6.0, 5.0)


@pytest.mark.parametrize(
    ("options", "framework"),
    [
        ({}, TORCHTITAN),
        ({"arguments": ["--compile.enable"]}, TORCHTITAN_COMPILED),
        ({"arguments": ["--compile.no-enable"]}, TORCHTITAN),
        ({"release": "v0.2", "config": {"compile": {"enable": True}}}, TORCHTITAN_COMPILED),
        ({"release": "v0.2", "config": {"training": {"compile": True}}}, TORCHTITAN_COMPILED),
        ({"release": "v0.2", "config": {"compile": {"enable": False}}}, TORCHTITAN),
    ],
)
def test_the_physics_knows_what_is_compiled(options, framework):
    assert create_workload("torchtitan", options).framework == framework
    as_the_trainer = framework.hidden_passes == compiled(TRAINER_BFLOAT16).hidden_passes
    assert as_the_trainer == (framework is TORCHTITAN_COMPILED)


@pytest.mark.parametrize(
    ("options", "bits", "beside"),
    [
        ({"config": {"model": {"converters": ["quantize.linear.float8"]}}}, "float8", False),
        ({"config": {"model": {"converters": ["quantize.grouped_mm.float8"]}}}, "", False),
        ({"arguments": ["--model.converters float8"]}, "float8", False),
        ({"config": {"parallelism": {"enable_async_tensor_parallel": True}}}, "", True),
        ({"arguments": ["--parallelism.enable_async_tensor_parallel"]}, "", True),
        ({"arguments": ["--parallelism.no_enable_async_tensor_parallel"]}, "", False),
    ],
)
def test_the_physics_knows_8_bits_and_tensor_parallelism_beside_products(options, bits, beside):
    framework = create_workload("torchtitan", {"release": "v0.2", **options}).framework
    assert (framework.product_dtype, framework.overlaps_tensor) == (bits, beside)
    assert framework.overlaps_tensor_forward == beside


@pytest.mark.parametrize(
    ("options", "routing"),
    [
        ({}, Routing.LEARNED),
        ({"arguments": ["--debug.moe_force_load_balance"]}, Routing.EVEN),
        ({"release": "v0.2", "config": {"debug": {"moe_force_load_balance": True}}}, Routing.EVEN),
        ({"release": "v0.2.0", "config": {"training": {"debug_moe_force_load_balance": True}}}, Routing.EVEN),
        ({"release": "v0.2", "config": {"debug": {"moe_force_load_balance": False}}}, Routing.LEARNED),
    ],
)
def test_the_physics_knows_a_forced_balance(options, routing):
    assert create_workload("torchtitan", options).framework.routing is routing
