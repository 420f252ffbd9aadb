"""Lets any training loop report its step times to meshtune: copy this file, or import it. Standard library only.

    from meshtune.runners.report import Reporter

    reporter = Reporter()
    for batch in batches:
        loss = train(batch)                       # until the device is done: torch.cuda.synchronize()
        if reporter.step(loss=float(loss)):       # True once enough steps were taken
            break
    reporter.done(peak_memory_bytes=[torch.cuda.max_memory_allocated()])

Every rank may call it; rank 0 writes `result.json` (docs/reference/result.md), outside of a meshtune job nobody does.
Where the service gave its address, the result is sent there too: then no shared disk has to carry it.

Hugging Face's Trainer takes `trainer.add_callback(TrainerReport())`. Any script of torch that stays as it is runs as
`python -m meshtune.runners.report train.py ARGUMENTS`, or that after torchrun's, deepspeed's or accelerate's words:
each Trainer has the callback, and any other loop is timed by the steps of the first optimizer that steps (torch 2.1 or
newer), or of DeepSpeed's engine where one is used, in processes that multiprocessing spawns too. The device is waited
for after each of these steps. Not seen are steps of an optimizer that is compiled or captured in a CUDA graph, or that
is none of torch.optim.Optimizer; a step that GradScaler skips is none.

Under `meshtune.runners.watch` rank 0 tells each step in a line of the log, and the watch decides when there are enough.

Of the spec's knobs the result says by itself what this process sees: variables, and the arguments of its command line.
What the script really runs with it knows best: `reporter.done(knobs={"fp8": recipe})`.
"""

from __future__ import annotations

import json
import math
import os
import re
import runpy
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException
from itertools import takewhile
from pathlib import Path
from typing import Any

# The job's folder, and how many steps it is to take with its warm-up: in the environment of a job.
DIRECTORY = "MESHTUNE_DIRECTORY"
STEPS = "MESHTUNE_STEPS"
# In the environment of what `meshtune.runners.watch` started, and there alone.
WATCHED = "MESHTUNE_WATCHED"
# What its log says once the steps of torch's optimizers are told.
TIMES = "[meshtune] times optimizers"
# Where the result is sent to, and, in the job's folder, what proves that it is this job's.
REPORT_URL = "MESHTUNE_REPORT_URL"
TOKEN_FILE = ".report-token"
# Before each try. The job holds its devices meanwhile.
_PAUSES_S = (0.0, 1.0, 3.0)
_ANSWER_S = 5.0
# No proxies, and a PUT follows no redirect: the token goes to the service that was named, and nowhere else.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
MAX_LOSSES = 4
# The command line as it was, whatever a script made of sys.argv.
_ORIGINAL: Sequence[str] = getattr(sys, "orig_argv", sys.argv)
# A job finds 1 in them unless somebody sets them.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# What each cause of a failure is called in the result file. A hang is late: it would have reached its time limit.
VERDICTS = {
    "oom": "oom",
    "illegal_setting": "illegal",
    "hang": "timed_out",
    "communication": "lost",
    "storage": "lost",
    "user_bug": "crashed",
    "crash": "crashed",
}


class Reporter:
    """Times the steps of a loop: from its own creation, or the last `step`, to the next one."""

    # What one step is called in the log.
    unit = "step"

    def __init__(self) -> None:
        self.steps_wanted = 0 if WATCHED in os.environ else int(os.environ.get(STEPS, "0"))
        self.step_times_s: list[float] = []
        self.losses: list[float] = []
        self.gradient_norms: list[float] = []
        self.step_tokens: list[int] = []
        self._last = time.perf_counter()

    def step(self, loss: float | None = None, gradient_norm: float | None = None, tokens: int | None = None) -> bool:
        """An optimizer step has ended; True once the job has taken as many as it was to take. loss: the mean over the
        global batch. gradient_norm: of the whole gradient, as torch.nn.utils.clip_grad_norm_ returns it. tokens: of the
        step, over all ranks, where steps have different ones, as those that generate their rows; 0 for one that goes on
        with the rows of the one before."""
        now = time.perf_counter()
        self.step_times_s.append(now - self._last)
        self._last = now
        if loss is not None:
            self.losses.append(loss)
        if gradient_norm is not None:
            self.gradient_norms.append(gradient_norm)
        if tokens is not None:
            self.step_tokens.append(tokens)
        self.tell(loss)
        return 0 < self.steps_wanted <= len(self.step_times_s)

    def tell(self, loss: float | None = None) -> None:
        """Say to `meshtune.runners.watch`, where it is there, which step was the last."""
        if WATCHED in os.environ and _rank() == 0:
            loss_words = "" if loss is None else f" loss {loss}"
            # Whole, and past whatever a script made of sys.stderr.
            os.write(2, f"[meshtune] {self.unit} {len(self.step_times_s)}{loss_words}\n".encode())

    def done(self, **more: Any) -> None:
        """Report what was timed. more: as for `report`."""
        # DeepSpeed says -1 where a scaled gradient overflows.
        norms = list(takewhile(lambda norm: 0 <= norm < math.inf, self.gradient_norms[:MAX_LOSSES]))
        told = {"first_losses": self.losses[:MAX_LOSSES], "first_gradient_norms": norms}
        tokens = {"step_tokens": self.step_tokens} if any(self.step_tokens) else {}
        report(self.step_times_s, **{**told, **tokens, **more})


class TrainerReport:
    """A callback of transformers.Trainer (4.30 to 5.23): times its optimizer steps, and ends the training once the job
    has taken as many as it was to take. A callback by its methods, so that this file needs no transformers."""

    # Of any in this process.
    trains = False

    def __init__(self) -> None:
        self._reporter = Reporter()
        self._logged = self._tokens = 0

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *_, **__: None

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        TrainerReport.trains = True
        self._reporter = Reporter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        torch = sys.modules["torch"]
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        # TRL counts those that it generates there; the Trainer those of samples, where it is to.
        plain = getattr(args, "include_num_input_tokens_seen", "no") in (False, "no")
        before, self._tokens = self._tokens, getattr(state, "num_input_tokens_seen", 0) if plain else 0
        if self._reporter.step(tokens=self._tokens - before):
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        # Of several steps the Trainer logs the mean.
        if "loss" in (logs or {}) and state.global_step == self._logged + 1:
            self._reporter.losses.append(float(logs["loss"]))
            self._reporter.tell(self._reporter.losses[-1])
            # Since 4.38, in 4.x where gradients are clipped: before that, and without a loss scale.
            if logs.get("grad_norm") is not None:
                self._reporter.gradient_norms.append(float(logs["grad_norm"]))
            self._logged += 1

    def on_train_end(self, *_: Any, **__: Any) -> None:
        names = ("torch", "transformers", "accelerate", "deepspeed")
        software = {name: sys.modules[name].__version__ for name in names if name in sys.modules}
        self._reporter.done(peak_memory_bytes=_peaks(sys.modules["torch"]), software=software)


class _LoopReport:
    """Times the steps of the first optimizer that steps, where no Trainer does, and ends the process once the job has
    taken as many as it was to take. DeepSpeed calls optimizers several times a step: its engine counts in their place.
    """

    def __init__(self) -> None:
        self._report = TrainerReport()
        # A script's own Reporter counts more.
        self._report._reporter.unit = "optimizer step"
        self._timed: Any = None
        self._has_engine = False
        self.should_training_stop = False

    def watch_optimizers(self, module: Any) -> None:
        if register := getattr(module, "register_optimizer_step_post_hook", None):
            register(lambda optimizer, *_: None if self._has_engine else self._stepped(optimizer))
            if WATCHED in os.environ and _rank() == 0:
                os.write(2, f"{TIMES}\n".encode())

    def watch_engines(self, module: Any) -> None:
        step = module.DeepSpeedEngine._take_model_step

        def timed(engine: Any, *args: Any, **more: Any) -> None:
            self._has_engine = True
            step(engine, *args, **more)
            self._stepped(engine)

        module.DeepSpeedEngine._take_model_step = timed

    def _stepped(self, optimizer: Any) -> None:
        torch = sys.modules["torch"]
        is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", bool)  # torch 2.1 has none
        if is_compiling() or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
            return
        self._timed = self._timed or optimizer
        if optimizer is self._timed and not TrainerReport.trains:
            self._report.on_step_end(None, None, self)
            if self.should_training_stop:
                self._report.on_train_end()
                raise SystemExit(0)


class _ImportHook:
    """Calls a function with each of these modules once it is imported: a script that never does runs without them."""

    def __init__(self, functions: dict[str, Callable[[Any], None]]) -> None:
        self._functions = functions

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if (function := self._functions.pop(name, None)) is None:
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((spec for spec in others if spec is not None), None)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                load(module)
                function(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def time_steps() -> None:
    """Have this process time the steps of its Trainer, optimizer or engine, and those that multiprocessing spawns from
    it; once, however often it is called."""
    if hasattr(sys, "_meshtune_times_steps"):
        return
    sys._meshtune_times_steps = True  # type: ignore[attr-defined]
    loop = _LoopReport()
    functions = {
        # Trainer.__init__ adds them to the callbacks that it is given (transformers/trainer.py, since 4.0).
        "transformers.trainer": lambda module: module.DEFAULT_CALLBACKS.append(TrainerReport),
        "torch.optim.optimizer": loop.watch_optimizers,
        "deepspeed.runtime.engine": loop.watch_engines,
        "multiprocessing.spawn": _time_spawned,
    }
    sys.meta_path.insert(0, _ImportHook(functions))  # type: ignore[arg-type]


def _time_spawned(module: Any) -> None:
    """Have what multiprocessing spawns begin like this process."""
    line = module.get_command_line

    def timed(**more: Any) -> Any:
        words = line(**more)
        at = words.index("-c") + 1 if "-c" in words else 0
        return [*words[:at], f"{TIME_STEPS}; {words[at]}", *words[at + 1 :]] if at else words

    module.get_command_line = timed


# A line of Python that has a process, of any interpreter, time its steps.
TIME_STEPS = (
    "import importlib.util as u; s = u.spec_from_file_location('_meshtune_report', "
    f"{os.path.abspath(__file__)!r}); m = u.module_from_spec(s); s.loader.exec_module(m); m.time_steps(); del u, s, m"
)


def _peaks(torch: Any) -> list[int]:
    """Each rank's peak of allocated memory; none on a CPU. Every rank must ask."""
    if not torch.cuda.is_available():
        return []
    own = torch.cuda.max_memory_allocated()
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [own]
    peaks = [0] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(peaks, own)
    return peaks


def report(step_times_s: Sequence[float], **more: Any) -> None:
    """Write the result file: the seconds of every optimizer step in order, warm-up included, which is cut off here.

    more: first_losses, first_gradient_norms, step_tokens (as of Reporter.step), peak_memory_bytes and peak_held_bytes
    (a list of a number per rank), software (versions by name), knobs (the values that the script runs with, by the
    knob's name). Raises ValueError where no step is left after the warm-up, a loss is no number, or tokens are not
    those of every step. Does nothing but in rank 0 of a meshtune job."""
    context = _context()
    if context is not None and _rank() == 0:
        write_measurement(context, step_times_s, context["warmup_steps"], os.replace, **more)


def write_measurement(
    context: Any, step_times_s: Sequence[float], warmup: int, publish: Any, reason: str = "", **more: Any
) -> None:
    """As `report`, of any rank. context: of the job, as in its folder. publish: see `_write`."""
    if len(step_times_s) <= warmup:
        raise ValueError(f"{len(step_times_s)} steps were taken, and the first {warmup} are warm-up")
    if wrong := [loss for loss in more.get("first_losses", ()) if not math.isfinite(loss)]:
        raise ValueError(f"a loss of the first steps is {wrong[0]}")
    if "step_tokens" in more:
        tokens = list(more["step_tokens"])
        if len(tokens) != len(step_times_s):
            raise ValueError(f"step_tokens: are of {len(tokens)} steps, and {len(step_times_s)} were taken")
        more["step_tokens"] = tokens[warmup:]
    known = ("tokens_per_step", "devices", "model_flops_per_token", "peak_flops_per_device")
    measurement = {
        **{key: context[key] for key in known if context[key] is not None},
        "step_times_s": list(step_times_s[warmup:]),
        "warmup_times_s": list(step_times_s[:warmup]),
        **more,
    }
    # Of the knobs that the job was told, what this process can look at.
    seen = {name: value for name, knob in context.get("knobs", {}).items() for value in _seen(knob, context)}
    if seen := seen | {name: _plain(value) for name, value in dict(more.get("knobs") or {}).items()}:
        measurement["knobs"] = seen
    _write({"verdict": "ok", "reason": reason, "measurement": measurement}, publish)


def report_failure(cause: str, reason: str, phase: str | None = None) -> None:
    """Say why this rank fails, where it knows better than its last words: a key of VERDICTS, and a sentence.

    The first rank that says so is heard. For an exception that ends the program no call is needed: its text is read."""
    if _context() is None:
        return
    place = {} if phase is None else {"phase": phase}
    document = {"verdict": VERDICTS[cause], "cause": cause, "reason": reason, "failed_rank": _rank(), **place}
    with suppress(FileExistsError):
        _write(document, os.link)


def seen_variable(knob: Any, environment: Mapping[str, str]) -> Any:
    """What the environment has for a knob that is told by a variable; None where it did not arrive."""
    text = environment.get(knob["place"])
    if knob["text"] is None and knob["place"] in _THREADS and text == "1":
        return knob["value"]
    return _value(knob, text)


def _seen(knob: Any, context: Any) -> list[Any]:
    """What this process sees of one knob: its value, None where it did not arrive; empty where it cannot look."""
    if knob["way"] == "env":
        return [seen_variable(knob, os.environ)]
    if knob["way"] == "argument":
        lines = (sys.argv, _ORIGINAL)
        text = next((value for line in lines if (value := _argument(knob["place"], line)) is not None), None)
        if text is not None or _is_of(context.get("command", ())):
            return [_value(knob, text)]
    return [knob["value"]] if knob["text"] is None else []


def _value(knob: Any, text: str | None) -> Any:
    """The knob's value that is told so. Without a text it is the one of which nothing is told, if that was asked."""
    if text is None:
        return knob["value"] if knob["text"] is None else None
    return knob["texts"].get(text, text)


def _argument(argument: str, line: Sequence[str]) -> str | None:
    """What stands in a command line for {value} in an argument, of the last one; empty for one without it. None: it
    does not stand there. `--name value` and `--name=value` are the same."""
    words = "\0".join(argument.split())
    pattern = r"([^\0]*)".join(map(re.escape, words.split("{value}")))
    if named := re.fullmatch(r"([^\0]+?)[=\0]\{value\}", words):
        pattern = rf"{re.escape(named[1])}[=\0]([^\0]*)"
    places = re.finditer(rf"(?<![^\0]){pattern}(?![^\0])", "\0".join(line))
    values = [place[1] if place.re.groups else "" for place in places]
    return values[-1] if values else None


def _is_of(command: Sequence[str]) -> bool:
    """Whether this process is the program of the job's command, and none that the program started: by its name or an
    option. Else it says nothing that an argument is not here."""
    options = [word.partition("=")[0] for word in (*sys.argv[1:], *_ORIGINAL[1:]) if word.startswith("--")]
    names = {Path(word).name for word in command} | {word.partition("=")[0] for word in command}
    return Path(sys.argv[0]).name in names or any(option in names for option in options)


def _plain(value: Any) -> Any:
    """A value that a result file can hold: what is none of a knob is told by its word."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _context() -> Any:
    """What a step of this job is; None outside of one."""
    try:
        # Ours; users copy this file alone.
        return json.loads((_directory() / "brief.json").read_text(encoding="utf-8"))  # noqa: TID251
    except OSError:
        return None


def _write(document: dict[str, Any], publish: Any) -> None:
    """Write the result file so that a reader sees all of it or nothing. publish: os.replace, or os.link, which leaves
    one that is there as it is."""
    draft = _directory() / f".result.json.{os.getpid()}"
    try:
        with draft.open("w", encoding="utf-8") as file:
            json.dump({"version": 1, **document}, file, indent=1, allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        publish(draft, _directory() / "result.json")
        send(_directory() / "result.json")
    finally:
        draft.unlink(missing_ok=True)


def send(result: Path) -> bool:
    """Send a result file to the service; False where nobody wants it or takes it: the file stays the truth."""
    url = os.environ.get(REPORT_URL, "")
    try:
        token = result.with_name(TOKEN_FILE).read_text(encoding="ascii").strip()
        content = result.read_bytes()
    except OSError:
        return False
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    for pause_s in _PAUSES_S if url else ():
        time.sleep(pause_s)
        try:
            with _DIRECT.open(urllib.request.Request(url, content, headers, method="PUT"), timeout=_ANSWER_S):
                return True
        except urllib.error.HTTPError as error:
            error.close()
            if error.code < 500 and error.code != 429:
                return False
        except (OSError, HTTPException):
            continue
    return False


def _directory() -> Path:
    return Path(os.environ.get(DIRECTORY, "."))


def _rank() -> int:
    """This process's number, by torch where its processes have met; else as its innermost launcher counts: torchrun, or
    whatever a script starts inside of its job (MPI, PBS, Slurm), whose processes inherit our own RANK; else that."""
    launchers = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PALS_RANKID", "SLURM_PROCID")
    groups = getattr(sys.modules.get("torch"), "distributed", None)
    if groups is not None and groups.is_available() and groups.is_initialized():
        return int(groups.get_rank())
    names = ("RANK",) if "TORCHELASTIC_RUN_ID" in os.environ else (*launchers, "RANK")
    return int(next((os.environ[name] for name in names if name in os.environ), "0"))


def _run(program: Sequence[str]) -> None:
    """Run a script as it stands, or a module after -m, with its steps timed."""
    time_steps()
    if program[0] == "-m":
        sys.argv = list(program[1:])
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = list(program)
    sys.path[0] = str(Path(program[0]).resolve().parent)
    runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    if not sys.argv[1:] or sys.argv[1:] == ["-m"]:
        raise SystemExit("usage: python -m meshtune.runners.report SCRIPT ARGUMENTS, or -m MODULE ARGUMENTS")
    _run(sys.argv[1:])
