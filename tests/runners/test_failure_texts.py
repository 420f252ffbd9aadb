"""Every text of the table is known for what it means, and of all that a log says at its end the line that tells why it
failed is found."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from meshtune.runners.base import Cause
from meshtune.runners.failure_texts import (
    FAILURE_TEXTS,
    MAX_BYTES,
    PRECEDENCE,
    LastWords,
    cause_of_line,
    first_in_precedence,
    is_echo,
    phase_of,
    read_last_words,
)
from meshtune.runners.log_lines import split_lines
from meshtune.runners.programs.log_patterns import Found, Patterns
from meshtune.runners.programs.workloads.base import VERDICTS
from meshtune.runners.registry import ADVICE
from meshtune.search_spaces.checks import InvalidValue

OOM, ILLEGAL, HANG, COMMUNICATION = Cause.OOM, Cause.ILLEGAL_SETTING, Cause.HANG, Cause.COMMUNICATION
LINES = [
    (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you",
        OOM,
    ),
    ("RuntimeError: DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes.", OOM),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of", OOM),
    ("torch.OutOfMemoryError: XPU out of memory. Tried to allocate 16.00 GiB", OOM),
    ("RuntimeError: CUDA error: out of memory", OOM),
    ("torch.cuda.OutOfMemoryError: Allocation on device 0 would exceed allowed memory.", OOM),
    ("MemoryError", OOM),
    ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 TiB for an array with shape", OOM),
    ("terminate called after throwing an instance of 'std::bad_alloc'", OOM),
    ("cudaErrorMemoryAllocation: CUDA_ERROR_OUT_OF_MEMORY", OOM),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", OOM),
    ("node1:12:34 [0] misc/cudawrap.cc:36 NCCL WARN Cuda failure 2 'out of memory'", OOM),
    ("RuntimeError: level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", OOM),
    ("RuntimeError: level_zero backend failed with error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)", OOM),
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.", OOM),
    ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.batch.", OOM),
    ("[ 1234.5] Out of memory: Killed process 4242 (python) total-vm:8kB", OOM),
    ("RuntimeError: CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62", OOM),  # vLLM issue 13941
    ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when", OOM),
    (
        "ValueError: To serve at least one request with the models's max seq len (131072), (4.00 GiB KV cache is",
        OOM,
    ),
    (
        "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored "
        "in KV cache (93760). Try increasing `gpu_memory_utilization`",
        OOM,
    ),
    (
        "ValueError: Free memory on device cuda:0 (65.52/119.63 GiB) on startup is less than desired GPU memory "
        "utilization (0.92, 110.06 GiB). Decrease GPU memory utilization",
        OOM,
    ),
    ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", OOM),
    ("Decode out of memory. Try to lower your batch size.", OOM),
    ("train.py: error: argument --zero: invalid choice: 3 (choose from 0, 1)", ILLEGAL),
    ("train.py: error: argument --tp: invalid int value: 'four'", ILLEGAL),
    (
        "[rank0]:[E1218 20:27:21.42 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation timeout: W",
        HANG,
    ),
    ("RuntimeError: Rank 1 timed out in monitoredBarrier after 30000 ms.", HANG),
    ("RuntimeError: [unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete", HANG),
    ("RuntimeError: [pair.cc:525] Read error [127.0.0.1]:1234: Connection reset by peer", COMMUNICATION),
    ("RuntimeError: Connection closed by peer [127.0.0.1]:28642", COMMUNICATION),
    ("node1:12:34 [0] NCCL WARN socketPollConnect: connect returned Connection refused", COMMUNICATION),
    ("OSError: [Errno 28] No space left on device: '/scratch/x'", Cause.STORAGE),
    ("sh: 1: echo: I/O error: Disk quota exceeded", Cause.STORAGE),
    ("OSError: [Errno 30] Read-only file system: 'x'", Cause.STORAGE),
    ("cp: cannot stat 'x': Stale file handle", Cause.STORAGE),
    ("OSError: [Errno 5] Input/output error", Cause.STORAGE),
    ("BrokenPipeError: [Errno 32] Broken pipe", COMMUNICATION),
    (
        "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.",
        COMMUNICATION,
    ),
    ("torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cuda//0", COMMUNICATION),
    ("RuntimeError: Socket Timeout", COMMUNICATION),
    ("RuntimeError: Operation timed out!", COMMUNICATION),
    (
        "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to",
        COMMUNICATION,
    ),
    ("RuntimeError: timed out connecting: SO_ERROR: Connection timed out", COMMUNICATION),
    ("ncclRemoteError: A call failed possibly due to a network error or a remote process exiting", COMMUNICATION),
    ("torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, unhandled system error", COMMUNICATION),
    ("ncclSystemError: System call (e.g. socket, malloc) or external library call failed", COMMUNICATION),
    ("torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1.", COMMUNICATION),
    ("torch.distributed.DistNetworkError: failed to recv, got 0 bytes", COMMUNICATION),
    ("DistNetworkError: The server socket has failed to listen. code: -98, name: EADDRINUSE", COMMUNICATION),
    ("OSError: [Errno 98] Address already in use", COMMUNICATION),
    ("ModuleNotFoundError: No module named 'apex'", Cause.USER_BUG),
    ("ImportError: libcudart.so.12: cannot open shared object file: No such file or directory", Cause.USER_BUG),
    ("SyntaxError: invalid syntax", Cause.USER_BUG),
    ("FileNotFoundError: [Errno 2] No such file or directory: 'tokens.bin'", Cause.USER_BUG),
    ("PermissionError: [Errno 13] Permission denied: '/data'", Cause.USER_BUG),
    ("/usr/bin/python3: can't open file '/home/a/trian.py': [Errno 2] No such file or directory", Cause.USER_BUG),
    ("/opt/venv/bin/python: No module named trainer", Cause.USER_BUG),
    ("sh: 1: trochrun: not found", Cause.USER_BUG),
    ("launch.sh: line 12: torchrun: command not found", Cause.USER_BUG),
    ("/bin/sh: 1: ./train.py: Permission denied", Cause.USER_BUG),
    ("sh: 1: cd: can't cd to /home/a/project", Cause.USER_BUG),
    ("/home/a/project: line 1: cd: /nowhere: No such file or directory", Cause.USER_BUG),
    ("/usr/bin/env: 'pyhton': No such file or directory", Cause.USER_BUG),
    ("train.py: error: unrecognized arguments: --tensor-parallel 2", Cause.USER_BUG),
    ("train.py: error: the following arguments are required: --data", Cause.USER_BUG),
    ("train.py: error: ambiguous option: --z could match --zero, --zloss", Cause.USER_BUG),
    ("train.py: error: argument --tp: expected one argument", Cause.USER_BUG),
    ("Error: No such option: --tensor", Cause.USER_BUG),
    ("AssertionError: Torch not compiled with CUDA enabled", Cause.USER_BUG),
    ("ValueError: heads(3) is odd", Cause.CRASH),
    ("AssertionError", Cause.CRASH),
    ("mypackage.errors.ShapeError: no", Cause.CRASH),
    ("Fatal Python error: Segmentation fault", Cause.CRASH),
]


@pytest.mark.parametrize(("line", "cause"), LINES)
def test_a_line_is_known_for_what_it_means(line, cause):
    assert cause_of_line(line) is cause


@pytest.mark.parametrize(
    "line",
    [
        "",
        "step 12 loss 3.25 time 0.12 s",
        " iteration       10/     100 | elapsed time per iteration (ms): 512.3 | lm loss: 1.0E+01 |",
        "memory (MB) | allocated: 12.5 | max allocated: 99.0",
        "WARNING: could not import apex, falling back to torch: No module named 'apex'",
        '  File "train.py", line 3, in forward',
        "NCCL INFO Connected all rings",
        "loading data from /data/tokens.bin",
        "error rate 0.5",
        # What a launcher says of a child.
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.",
        "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with exit code 1",
    ],
)
def test_other_lines_mean_nothing(line):
    assert cause_of_line(line) is None


def test_what_a_rank_died_of_itself_comes_before_what_its_peers_noticed():
    assert {cause for cause, _ in FAILURE_TEXTS} == set(PRECEDENCE)
    assert first_in_precedence([]) is None
    assert first_in_precedence([COMMUNICATION, Cause.CRASH, OOM]) is OOM
    assert first_in_precedence([COMMUNICATION, HANG]) is HANG
    assert [cause for cause in PRECEDENCE if is_echo(cause)] == [HANG, COMMUNICATION]


def frames(*frames: tuple[str, str]) -> list[str]:
    return ["Traceback (most recent call last):"] + [
        line
        for path, name in frames
        for line in (f'  File "{path}", line 12, in {name}', "    x = f(y)", "        ^^^^")
    ]


@pytest.mark.parametrize(
    ("lines", "phase"),
    [
        ([], None),
        (["torch.OutOfMemoryError: CUDA out of memory"], None),
        (frames(("train.py", "<module>"), ("train.py", "build")), "init"),
        (
            frames(("train.py", "<module>"), ("torch/nn/modules/module.py", "_call_impl"), ("m.py", "forward")),
            "forward",
        ),
        # Recomputation runs a forward pass inside of a backward one.
        (frames(("train.py", "train"), ("torch/_tensor.py", "backward"), ("checkpoint.py", "forward")), "backward"),
        (frames(("train.py", "train"), ("torch/optim/adamw.py", "step")), "optimizer"),
        (frames(("train.py", "train"), ("schedule.py", "step")), "init"),
        (frames(("megatron/core/pipeline_parallel/schedules.py", "backward_step")), "backward"),
        (frames(("a.py", "Engine.forward")), "forward"),
        # verl workers/fsdp_workers.py, actor/dp_actor.py.
        (frames(("verl/workers/fsdp_workers.py", "update_actor"), ("dp_actor.py", "update_policy")), "update"),
        (frames(("dp_actor.py", "update_policy"), ("torch/_tensor.py", "backward")), "backward"),
        (frames(("fsdp_workers.py", "compute_log_prob"), ("module.py", "_call_impl")), "log_probs"),
        (frames(("fsdp_workers.py", "rollout_mode"), ("/x/site-packages/vllm/v1/engine/core.py", "wake_up")), "refit"),
        # TRL: generation, log-probabilities and the loss have a `training_step` around them.
        (frames(("trainer.py", "training_step"), ("trl/generation/vllm_generation.py", "generate")), "generation"),
        (frames(("grpo_trainer.py", "_get_per_token_logps_and_entropies"), ("m.py", "forward")), "log_probs"),
        (
            frames(
                ("grpo_trainer.py", "_compute_loss"),
                ("grpo_trainer.py", "_get_per_token_logps_and_entropies"),
                ("m.py", "forward"),
            ),
            "forward",
        ),
        (frames(("/opt/dist-packages/vllm/worker/worker.py", "load_model"), ("m.py", "forward")), "generation"),
        (frames(("/home/me/vllm/train.py", "main"), ("m.py", "forward")), "forward"),
        # NeMo-RL, OpenRLHF.
        (frames(("nemo_rl/models/policy/workers/dtensor_policy_worker.py", "train")), "update"),
        (["ray::ReferenceModelActor.forward() (pid=7, ip=10.0.0.1)", *frames(("m.py", "forward"))], "log_probs"),
    ],
)
def test_a_traceback_tells_the_phase_by_its_outermost_frame(lines, phase):
    assert phase_of(lines) == phase


def test_the_page_tells_every_cause_and_what_it_teaches():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "failures.md").read_text(encoding="utf-8")
    rows = [line.split(" | ")[:2] for line in page.splitlines() if line.startswith("| `")]
    assert {cause.strip("| `"): verdict.strip("` ") for cause, verdict in rows} == VERDICTS
    assert set(ADVICE) == set(Cause)
    for cause, advice in ADVICE.items():
        assert f"- `{cause}`: {advice.words}\n" in page


# What could make an expression of the table go back and forth: the beginnings of its parts, again and again.
STARTS = (
    *(
        "error: argument x",
        "execexec",
        "python",
        "a: cd: ",
        "Timed out after ",
        "a.",
        "_",
        "A",
        "Error",
        "ash: ",
        "x sh: ",
    ),
    *(
        "env",
        "srun",
        "\x1b[1;",
        "[1,1]<a>: ",
        "[rank1]: ",
        "Timed out waiting 1",
        "Cuda failure 1",
        'File "',
        "Connection was ",
    ),
)


@pytest.mark.parametrize("start", STARTS)
def test_no_text_of_the_table_takes_more_time_than_the_line_is_long(start):
    text = "rror python sh: " + start * (MAX_BYTES // len(start)) + "\n" + (start * 800 + "\n") * 20
    begun = time.monotonic()
    read_last_words(text)
    assert time.monotonic() - begun < 1


PATTERNS = Patterns({"step_time_s": r"step \d+ took ([\d.]+)", "illegal": "is not divisible by"})
TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 80, in <module>
    main()
  File "train.py", line 60, in main
    loss.backward()
  File "torch/_tensor.py", line 623, in backward
    torch.autograd.backward(
"""
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
PEER = "RuntimeError: [pair.cc:537] Read error [127.0.0.1]:4496: Connection reset by peer"


def test_an_exception_is_told_with_its_phase():
    found = read_last_words(f"step 1 took 0.5\n{TRACEBACK}{OUT_OF_MEMORY}\n")
    assert found == LastWords(cause=Cause.OOM, line=OUT_OF_MEMORY, phase="backward")


def by_ray(actor: str, words: str) -> str:
    return "".join(f"({actor}) {line}\n" for line in words.splitlines())


def of_method(method: str, *places: tuple[str, str]) -> str:
    """As Ray prints another process's exception (the form of verl's issue 302, EasyR1's issue 9)."""
    head = f"ray.exceptions.RayTaskError(OutOfMemoryError): ray::WorkerDict.{method}() (pid=118848, ip=10.130.71.7, "
    lines = [f'  File "{path}", line 432, in {name}\n    return f()\n' for path, name in places]
    return f"{head}actor_id=b2ba, repr=<WorkerDict object at 0x7b8a>)\n{''.join(lines)}{OUT_OF_MEMORY}\n"


BASE = ("verl/single_controller/ray/base.py", "func")
DRIVER = frames(("verl/trainer/main_ppo.py", "run"), ("verl/trainer/ppo/ray_trainer.py", "fit"), BASE)
CUMEM = "RuntimeError: CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62"


@pytest.mark.parametrize(
    ("method", "places", "phase"),
    [
        ("actor_rollout_ref_update_actor", [BASE], "update"),
        ("actor_rollout_update_actor", [BASE, ("torch/_tensor.py", "backward")], "backward"),
        ("actor_rollout_generate_sequences", [BASE, ("torch/nn/modules/module.py", "_call_impl")], "generation"),
        ("ref_compute_ref_log_prob", [BASE, ("torch/nn/modules/module.py", "_call_impl")], "log_probs"),
        ("actor_rollout_init_model", [BASE], "init"),
    ],
)
def test_rays_driver_tells_the_phase_by_the_method_that_failed(method, places, phase):
    words = "\n".join(DRIVER) + "\n" + of_method(method, *places)
    for text in (words, by_ray("main_task pid=1748945", words)):
        assert read_last_words(text) == LastWords(cause=OOM, line=OUT_OF_MEMORY, phase=phase)


def test_processes_of_ray_that_write_at_once_keep_their_tracebacks():
    engine = "\n".join([*frames(("/x/dist-packages/vllm/device_allocator/cumem.py", "wake_up")), CUMEM])
    other = "\n".join([*frames(("train.py", "main"), ("m.py", "forward")), "KeyError: 3"])
    pairs = zip(by_ray("LLMRayActor pid=1", engine).splitlines(), by_ray("X pid=2", other).splitlines(), strict=False)
    mixed = "\n".join(line for pair in pairs for line in pair)
    rest = f"\n(LLMRayActor pid=1) {CUMEM}\n"
    assert read_last_words(mixed + rest) == LastWords(cause=OOM, line=CUMEM, phase="generation")


def test_an_engine_tells_its_lack_of_memory_through_its_logger():
    words = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"
    traceback = "\n".join([*frames(("/x/dist-packages/vllm/v1/core/kv_cache_utils.py", "check")), words])
    logged = "".join(f"ERROR 08-24 01:02:00 [core.py:1349] {line}\n" for line in traceback.splitlines())
    for text in (
        words,
        logged,
        by_ray("EngineCore pid=959359", logged),
        f"(Worker pid=3) {words} [repeated 7x across cluster]",
    ):
        found = read_last_words(text)
        assert (found.cause, found.phase, found.line.startswith(words)) == (OOM, "generation", True)


def test_in_a_log_of_all_ranks_the_one_that_fails_is_told_from_those_that_notice_it():
    tagged = "".join(f"[rank3]: {line}\n" for line in (TRACEBACK + OUT_OF_MEMORY).splitlines())
    found = read_last_words(f"[rank0]: {PEER}\n{tagged}[rank1]: {PEER}\n")
    assert found == LastWords(cause=Cause.OOM, line=OUT_OF_MEMORY, rank=3, phase="backward")
    assert read_last_words(f"[rank0]: {PEER}\n[rank1]: {PEER}\n").cause is Cause.COMMUNICATION


@pytest.mark.parametrize(
    ("after", "cause"),
    [
        ("", Cause.USER_BUG),
        # The missing module was got over: what came later is the reason.
        ("ValueError: heads(3) is odd\n", Cause.CRASH),
        ("step 1 took 0.5\n", None),
        (f"{OUT_OF_MEMORY}\n", Cause.OOM),
        (f"{PEER}\n", Cause.USER_BUG),
    ],
)
def test_a_missing_module_is_the_reason_only_where_the_program_ends_with_it(after, cause):
    found = read_last_words(f"ModuleNotFoundError: No module named 'apex'\n{after}", PATTERNS)
    assert (None if found is None else found.cause) == cause


def test_a_message_that_goes_on_with_what_peers_did_is_an_echo():
    head = "RuntimeError: rank 0 could not finish\n"
    assert read_last_words(head + "ncclRemoteError: remote process exited\n").cause is Cause.COMMUNICATION
    assert read_last_words(head + "a line\nncclRemoteError: remote process exited\n").cause is Cause.CRASH


def test_the_programs_own_refusal_is_an_illegal_setting():
    text = f"{TRACEBACK}AssertionError: heads (3) is not divisible by tp (2)\n"
    assert read_last_words(text, PATTERNS).cause is Cause.ILLEGAL_SETTING
    assert read_last_words(text).cause is Cause.CRASH


def test_source_code_in_a_traceback_says_nothing():
    text = TRACEBACK + "    assert h % tp == 0, 'is not divisible by, CUDA out of memory, Broken pipe'\nKeyError: 'x'\n"
    assert read_last_words(text, PATTERNS) == LastWords(cause=Cause.CRASH, line="KeyError: 'x'")
    # Without a traceback before it, an indented line is the program's own.
    assert read_last_words(" heads is not divisible by tp\n", PATTERNS).cause is Cause.ILLEGAL_SETTING


# Named patterns find the numbers in a program's lines, and wrong ones are told by name.


@pytest.mark.parametrize(
    ("pattern", "line", "value"),
    [
        (r"took ([\d.]+)", "step 3 took 0.25 s", 0.25),
        (r"tps: ([\d,]+)", "tps: 12,345  mfu: 1.2%", 12345.0),
        (r"loss ([\d.eE+-]+)", "loss 1.5E-02", 0.015),
        # An older and a newer form of one line: whichever group took part.
        (r"old (\d+)|new (\d+)", "new 7", 7.0),
        (r"took ([\d.]+)", "nothing of the kind", None),
        (r"took (\S+)", "took ages", None),
        (r"(?P<rank>\d+): (\d+)", "3: 9", 9.0),
        (r"took(?: (\d+))?", "took", None),
    ],
)
def test_the_first_group_that_took_part_is_the_number(pattern, line, value):
    found = Patterns({"step_time_s": pattern}).find("step_time_s", line)
    assert (None if found is None else found.value) == value


def test_a_group_called_rank_says_whose_number_it_is():
    patterns = Patterns({"step_time_s": "x(1)", "memory_mb": r"\[Rank (?P<rank>\d+)\] max: ([\d.]+)"})
    assert patterns.find("memory_mb", "[Rank 12] max: 99.5") == Found(99.5, rank=12)
    assert patterns.find("loss", "loss 1") is None
    assert (patterns.timing, patterns.memory, patterns.source) == ("step_time_s", "memory_mb", "x(1)")


def test_a_program_has_its_own_words_for_a_setting_that_it_refuses():
    patterns = Patterns({"steps_per_s": r"([\d.]+)it/s", "illegal": "must be divisible"})
    assert patterns.refuses("AssertionError: heads must be divisible by tp")
    assert not patterns.refuses("all is well")
    assert not Patterns({"steps_per_s": r"([\d.]+)it/s"}).refuses("must be divisible")


@pytest.mark.parametrize(
    ("patterns", "problems"),
    [
        ({"step_time": "(1)"}, {"step_time: is no name of a pattern; did you mean 'step_time_s'?"}),
        (
            {"step_time_s": "(1"},
            {"step_time_s: is no regular expression that RE2 takes: missing ): (1"},
        ),
        (
            {"step_time_s": r"(?<=took )(\d+)", "loss": r"(\d)\1"},
            {
                "step_time_s: is no regular expression that RE2 takes: invalid perl operator: (?<= "
                "(it has neither look-around nor back-references)",
                r"loss: is no regular expression that RE2 takes: invalid escape sequence: \1 "
                "(it has neither look-around nor back-references)",
            },
        ),
        ({"step_time_s": "(.{0,900})"}, {"step_time_s: is too large: 8106 instructions of at most 2000"}),
        ({"step_time_s": "1"}, {"step_time_s: has no group around the number: '1'"}),
        ({"step_time_s": "(?P<rank>1)"}, {"step_time_s: has no group around the number: '(?P<rank>1)'"}),
        ({"loss": "(1)"}, "not none"),
        ({"step_time_s": "(1)", "tokens_per_s": "(1)"}, "not step_time_s, tokens_per_s"),
        ({"step_time_s": "(1)", "memory_mb": "(1)", "memory_gib": "(1)"}, "not memory_mb, memory_gib"),
    ],
)
def test_wrong_patterns_are_told_by_name(patterns, problems):
    with pytest.raises(InvalidValue) as caught:
        Patterns(patterns)
    told = {str(problem) for problem in caught.value.problems}
    assert told == problems if isinstance(problems, set) else next(iter(told)).endswith(problems)


def test_no_pattern_takes_more_time_than_the_line_is_long():
    patterns = Patterns({"step_time_s": "^(a+)+$"})
    begun = time.monotonic()
    for line in split_lines([b"a" * 10_000_000 + b"!\n", b"a" * 5000 + b"!\n" * 100], whole=False):
        assert patterns.find("step_time_s", line) is None
    assert time.monotonic() - begun < 1
