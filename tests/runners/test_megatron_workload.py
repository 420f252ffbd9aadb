"""The megatron workload: a short run that leaves nothing behind, measured by lines that Megatron's own code writes."""

from __future__ import annotations

import shlex

import pytest
from workload_lab import BROKEN, WorkloadLab

from meshtune.runners.base import Start
from meshtune.runners.outcome import Verdict
from meshtune.runners.programs.workloads.base import CONTEXT_FILE
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.routing import Routing

PLAN = Plan(tp=2, pp=2, dp=2, micro_batch_size=2, grad_accum_steps=2, zero_stage=1)
LAB = WorkloadLab("megatron", PLAN, steps=5, warmup_steps=2)
workload, materialize, outcome = LAB.workload, LAB.materialize, LAB.outcome


def lm_line(iteration: int, of: int, seconds: float, loss: float, skipped: int = 0, lr: float | None = 1e-4) -> str:
    """NVIDIA/Megatron-LM at d98e8a64, megatron/training/training.py, training_log: its format strings, in its order."""
    text = " [2026-08-22 15:22:22.123456]"
    text += f" iteration {iteration:8d}/{of:8d} |"
    text += f" consumed samples: {iteration * 8:12d} |"
    text += f" elapsed time per iteration (ms): {seconds * 1000.0:.1f} |"
    text += f" throughput per GPU (TFLOP/s/GPU): {123.4:.1f} |"
    if lr is not None:
        text += f" learning rate: {lr:.6E} |"
    text += f" global batch size: {8:5d} |"
    if loss >= 0.0:
        text += " {}: {:.6E} |".format("lm loss", loss)
    text += f" loss scale: {1.0:.1f} |"
    text += f" grad norm: {2.5:.3f} |"
    text += f" num zeros: {0} |"
    text += f" params norm: {3.25:.3f} |"
    text += f" number of skipped iterations: {skipped:3d} |"
    return text + f" number of nan iterations: {0:3d} |"


def lm_memory(rank: int, iteration: int, mega_bytes: float) -> str:
    """NVIDIA/Megatron-LM at d98e8a64, megatron/training/utils/common_utils.py, report_memory."""
    string = f"(after {iteration} iterations)" + " memory (MB)"
    string += f" | allocated: {mega_bytes / 2:.2f}"
    string += f" | max allocated: {mega_bytes:.2f}"
    string += f" | reserved: {mega_bytes + 512:.2f}"
    string += f" | max reserved: {mega_bytes + 1024:.2f}"
    return f"[Rank {rank}] {string}"


def deepspeed_line(iteration: int, of: int, seconds: float, loss: float, skipped: int = 0) -> str:
    """deepspeedai/Megatron-DeepSpeed at 4efb479d, megatron/training.py, training_log."""
    text = f" iteration {iteration:8d}/{of:8d} |"
    text += f" consumed samples: {iteration * 8:12d} |"
    text += f" consumed tokens: {iteration * 256:12d} |"
    text += f" elapsed time per iteration (ms): {seconds * 1000.0:.1f} |"
    text += f" learning rate: {1e-4:.3E} |"
    text += f" global batch size: {8:5d} |"
    text += " {}: {:.6E} |".format("lm loss", loss)
    text += f" loss scale: {1.0:.1f} |"
    text += f" grad norm: {2.5:.3f} |"
    text += f" actual seqlen: {32:5d} |"
    text += f" number of skipped iterations: {skipped:3d} |"
    text += f" number of nan iterations: {0:3d} |"
    text += f" samples per second: {8 / seconds:.3f} |"
    text += f" tokens per gpu per second (tgs): {32 / seconds:.3f} |"
    return text + f" TFLOPs: {12.3:.2f} |"


def deepspeed_memory(rank: int, iteration: int, mega_bytes: float) -> str:
    """deepspeedai/Megatron-DeepSpeed at 4efb479d, megatron/utils.py, report_memory: numbers as Python prints them."""
    string = f"(after {iteration} iterations)" + " memory (MB)"
    string += f" | allocated: {mega_bytes / 3}"
    string += f" | max allocated: {mega_bytes}"
    string += f" | reserved: {mega_bytes + 512}"
    string += f" | max reserved: {mega_bytes + 1024}"
    return f"[Rank {rank}] {string}"


def arguments(job) -> dict[str, list[str]]:
    lines = [shlex.split(line) for line in job.files["megatron-args.txt"].splitlines()]
    assert len({line[0] for line in lines}) == len(lines)
    return {line[0]: line[1:] for line in lines}


USERS = [
    *("--lr 3e-4", "--lr-decay-style cosine", "--lr-decay-iters 320000", "--lr-warmup-fraction .01"),
    *("--train-samples 100000", "--save /ckpt", "--save-interval 1000", "--load /ckpt", "--eval-iters 10"),
    *("--log-interval 100", "--tensorboard-dir /tb", "--wandb-project p", "--profile", "--exit-duration-in-mins 230"),
    *("--seed 42", "--rampup-batch-size 8 8 100", "--data-path '/a b/c'", "--tokenizer-type GPT2BPETokenizer"),
]


def test_a_trial_takes_its_steps_tells_each_and_leaves_nothing_behind(tmp_path):
    job = materialize(tmp_path, arguments=USERS)
    told = arguments(job)
    assert {name: told[name] for name in ("--train-iters", "--eval-iters", "--eval-interval", "--log-interval")} == {
        "--train-iters": ["5"],
        "--eval-iters": ["0"],
        "--eval-interval": ["6"],
        "--log-interval": ["1"],
    }
    assert (told["--lr"], told["--lr-decay-style"], told["--seed"]) == (["3e-4"], ["cosine"], ["8"])
    assert (told["--data-path"], told["--log-throughput"]) == (["/a b/c"], [])
    lengths = {"--train-samples", "--lr-decay-iters", "--lr-warmup-fraction", "--exit-duration-in-mins"}
    left_behind = {"--save", "--save-interval", "--load", "--tensorboard-dir", "--wandb-project", "--profile"}
    assert not (lengths | left_behind | {"--rampup-batch-size"}) & set(told)


def test_a_trial_is_one_rank_per_device_that_a_shell_starts(tmp_path):
    job = materialize(tmp_path)
    assert (job.command, job.start, job.devices, job.processes) == (("bash", "launch.sh"), Start.DEVICE, 8, 8)
    assert set(job.files) == {"launch.sh", "megatron-args.txt", CONTEXT_FILE}
    assert arguments(job)["--lr"] == ["1.0e-4"]
    deepspeed = materialize(tmp_path, flavour="megatron-deepspeed")
    assert set(deepspeed.files) == {"launch.sh", "megatron-args.txt", "ds_config.json", CONTEXT_FILE}
    assert "--log-throughput" not in arguments(deepspeed)


def test_an_unknown_flavour_is_refused():
    with pytest.raises(InvalidValue, match="flavour"):
        workload(flavour="nemo")


@pytest.mark.parametrize(
    ("flavour", "line", "memory"),
    [("megatron-lm", lm_line, lm_memory), ("megatron-deepspeed", deepspeed_line, deepspeed_memory)],
)
def test_the_lines_of_megatron_s_own_log_are_the_measurement(tmp_path, flavour, line, memory):
    first = ["using world size: 8, data-parallel size: 2", memory(0, 2, 1000.25), "exiting program"]
    last = [line(step, 5, 2.0 / step, 9.5 - step) for step in range(1, 6)]
    last.insert(2, memory(7, 1, 2000.5))
    last.insert(4, memory(7, 2, 1500.5))
    found = outcome(tmp_path, {0: first, 7: last}, flavour=flavour)
    measured = found.measurement
    assert found.verdict is Verdict.OK
    assert measured.warmup_times_s == (2.0, 1.0)
    assert measured.step_times_s == pytest.approx((0.6667, 0.5, 0.4))
    assert measured.first_losses == (8.5, 7.5, 6.5, 5.5)
    assert measured.first_gradient_norms == (2.5,) * 4
    assert measured.peak_memory_bytes == (round(1000.25 * 2**20), round(2000.5 * 2**20))
    assert (measured.tokens_per_step, measured.devices, measured.peak_flops_per_device) == (8 * 32, 8, 1e15)
    assert measured.model_flops_per_token == LAB.model.flops_per_token


def test_a_skipped_step_measures_nothing(tmp_path):
    lines = [lm_line(step, 5, 0.1 if step == 3 else 1.0, -1.0 if step == 3 else 2.0, step == 3) for step in range(1, 6)]
    found = outcome(tmp_path, {7: lines}, dtype="float16")
    assert found.measurement.step_times_s == (1.0, 1.0)
    assert found.reason == "the log tells 4 of 5 steps"


def test_a_job_whose_brief_is_gone_ended_without_a_word(tmp_path):
    found = workload().read(tmp_path, BROKEN)
    assert found.verdict is Verdict.CRASHED
    assert found.reason.startswith("brief.json cannot be read: ")


def test_the_physics_knows_what_the_user_s_arguments_overlap():
    plain = workload().framework
    overlapped = workload(arguments=["--overlap-grad-reduce", "--hidden-dropout 0.0"]).framework
    assert (plain.overlapped_gradients, plain.kept.dropout) == (False, True)
    assert (overlapped.overlapped_gradients, overlapped.kept.dropout) == (True, False)
    # megatron/training/theoretical_memory_usage.py: 18 bytes per weight, 12 of them sharded.
    assert plain.weight_bytes + plain.gradient_bytes + plain.optimizer_bytes == 18
    assert workload(arguments=["--optimizer-cpu-offload"]).framework.host_optimizer
    arguments = ["--overlap-moe-expert-parallel-comm", "--moe-enable-deepep", "--fp8-format hybrid"]
    exchanged = workload(arguments=[*arguments, "--no-overlap-p2p-communication"]).framework
    assert (exchanged.overlaps_experts, exchanged.dispatches_by_node, exchanged.product_dtype) == (True, True, "float8")
    assert (plain.overlaps_experts, plain.dispatches_by_node, plain.product_dtype) == (False, False, "")
    assert (plain.overlaps_sends, exchanged.overlaps_sends) == (True, False)
    assert workload(arguments=["--fp4-format e2m1"]).framework.product_dtype == "float4"
    assert (plain.overlaps_tensor_forward, plain.gather_bytes, plain.reduce_bytes) == (False, 2, 4)
    lean = workload(arguments=["--tp-comm-overlap", "--fp8-param-gather", "--grad-reduce-in-bf16"]).framework
    assert (lean.overlaps_tensor_forward, lean.gather_bytes, lean.reduce_bytes) == (True, 1, 2)
    # As in float16: gradients of 2 bytes, and a float32 copy that is sharded.
    assert (lean.gradient_bytes, lean.optimizer_bytes) == (2, 16)


@pytest.mark.parametrize(
    ("words", "routing", "capacity"),
    [
        ("", Routing.UNCHECKED, 0),
        ("--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2", Routing.LEARNED, 0),
        ("--moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff 0.0", Routing.UNCHECKED, 0),
        ("--moe-router-load-balancing-type none --moe-aux-loss-coeff 1e-2", Routing.UNCHECKED, 0),
        ("--moe-router-load-balancing-type none --moe-router-enable-expert-bias", Routing.LEARNED, 0),
        ("--moe-router-load-balancing-type sinkhorn", Routing.LEARNED, 0),
        ("--moe-aux-loss-coeff 1e-2 --moe-router-force-load-balancing", Routing.RANDOM, 0),
        ("--moe-aux-loss-coeff 1e-2 --moe-expert-capacity-factor 1.25", Routing.LEARNED, 1.25),
        ("--moe-aux-loss-coeff 1e-2 --moe-expert-capacity-factor -1.0", Routing.LEARNED, 0),
        ("--moe-aux-loss-coeff $WEIGHT --moe-expert-capacity-factor $CAPACITY", Routing.LEARNED, 0),
    ],
)
def test_the_physics_knows_what_balances_the_router(words, routing, capacity):
    found = workload(arguments=[words] if words else []).framework
    assert (found.routing, found.capacity_factor, found.pads_to_capacity) == (routing, capacity, False)
    assert workload(arguments=["--moe-pad-expert-input-to-capacity"]).framework.pads_to_capacity


@pytest.mark.parametrize(("dtype", "bytes_"), [("bfloat16", (2, 6, 12, 4)), ("float16", (2, 2, 12, 2))])
def test_the_physics_of_deepspeed_s_megatron_goes_by_its_optimizer_and_attention(dtype, bytes_):
    plain = workload(flavour="megatron-deepspeed", dtype=dtype).framework
    sizes = (plain.weight_bytes, plain.gradient_bytes, plain.optimizer_bytes, plain.reduce_bytes)
    assert (plain.dtype, sizes, plain.fused_attention) == (dtype, bytes_, False)
    flash = workload(flavour="megatron-deepspeed", dtype=dtype, arguments=["--use-flash-attn-v2"]).framework
    assert (flash.fused_attention, flash.attention_kernels) == (True, ("flash2",))


@pytest.mark.parametrize("flavour", ["megatron-lm", "megatron-deepspeed"])
@pytest.mark.parametrize(
    ("argument", "multiple"),
    [
        ("--log-throughput", 128),
        ("--make-vocab-size-divisible-by 64", 64),
        ("--padded-vocab-size 50264", 1),
    ],
)
def test_predictions_pad_the_vocabulary_as_the_user_s_arguments_say(flavour, argument, multiple):
    assert workload(flavour=flavour, arguments=[argument]).framework.vocab_multiple == multiple
