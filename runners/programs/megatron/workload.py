"""The megatron workload: pretrain_gpt.py of Megatron-LM or Megatron-DeepSpeed for a few steps, measured by its own log.

One rank per device; Megatron reads RANK, WORLD_SIZE and MASTER_ADDR itself. `launch.sh` is whole: where RANK is set it
is one of the ranks that somebody started, else it starts a node's ranks. `megatron-args.txt` has the same arguments for
people, one in a line."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from meshtune.runners.base import JobSpec, JobStatus
from meshtune.runners.documents import read_value
from meshtune.runners.outcome import Outcome
from meshtune.runners.programs.dialects.base import (
    Arguments,
    Files,
    read_arguments,
    render_lines,
    require_words,
    without,
)
from meshtune.runners.programs.dialects.config_import import flat, placed
from meshtune.runners.programs.log_patterns import Patterns
from meshtune.runners.programs.log_reader import outcome_from_log
from meshtune.runners.programs.megatron.options import (
    DS_CONFIG_FILE,
    FROM_MODEL,
    FROM_PLAN,
    FROM_SHAPES,
    LEARNING_RATE,
    TABLE,
    Dtype,
    MegatronOptions,
    left_out_of_trials,
)
from meshtune.runners.programs.megatron.rules import capabilities_of
from meshtune.runners.programs.megatron.special import facts
from meshtune.runners.programs.rows import holds
from meshtune.runners.programs.table import lines
from meshtune.runners.programs.workloads.base import JobRequest, ProgramWorkload, context_file
from meshtune.runners.programs.workloads.knobs import Telling, keys, problems, variables
from meshtune.runners.programs.workloads.knobs import arguments as knob_arguments
from meshtune.runners.untrusted_text import read_words
from meshtune.search_spaces.checks import Problem
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.knobs import KnobSet
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.framework_profiles import (
    MEGATRON_CORE,
    MEGATRON_DEEPSPEED,
    MEGATRON_DEEPSPEED_BF16,
    FrameworkProfile,
)
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.routing import Routing

ARGUMENTS_FILE = "megatron-args.txt"
LAUNCH_FILE = "launch.sh"
# In place of the steps of a training that nobody told: Megatron refuses it.
NO_STEPS = "STEPS"
_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
PATTERNS = Patterns(TABLE.lists["log"])
# Megatron's default is 0.1.
_NO_DROPOUT = (("0",), ("0.0",))
# Kinds of load balancing that need no loss.
_BALANCING = frozenset({"sinkhorn", "quantile_balancing"})
# DeepSpeed's default; Megatron-LM's is 2^32, which it would spend all of a trial's steps on halving.
_LOSS_SCALE = "65536"


def arguments_of(model: ModelSpec, plan: Plan, options: MegatronOptions) -> Arguments:
    """Everything after the script's name: what follows from model and plan, then what the user gives."""
    return {**dict(lines(options.table.write(facts(model, plan, options)))), **_useful(plan, options)}


def _useful(plan: Plan, options: MegatronOptions) -> Arguments:
    """The user's arguments but for those that Megatron refuses with this plan."""
    given, plain = options.given, plan.axes_as_dict()
    refused = {
        name
        for rule in TABLE.lists["refused"]
        if options.flavour in rule.get("of", [options.flavour]) and holds(rule.get("when", "tp >= 1"), plain)
        for name in rule["names"]
    }
    if given.get("--ckpt-format") == ("fsdp_dtensor",):
        refused.add("--ckpt-format")
    return without(given, refused)


def filled_in(options: MegatronOptions, steps: object) -> Arguments:
    """What Megatron starts without only to fail, where the user does not say it: a learning rate, and so many steps
    (megatron/training/training.py, get_optimizer_param_scheduler, d98e8a64: float(args.lr), and "either train-iters or
    train-samples should be provided"; megatron/training.py of Megatron-DeepSpeed alike)."""
    given = options.given
    length = {} if {"--train-iters", "--train-samples"} & given.keys() else {"--train-iters": (str(steps),)}
    return {**({} if "--lr" in given else {"--lr": (LEARNING_RATE,)}), **length}


def ds_config_of(plan: Plan, options: MegatronOptions) -> Mapping[str, Any]:
    """DeepSpeed's settings: the user's, with what follows from plan and number format in its place."""
    given, dtypes = options.ds_config, {"bf16": Dtype.BFLOAT16, "fp16": Dtype.FLOAT16}
    own = {
        **{
            f"{key}.enabled": dtypes[key] is options.dtype
            for key in dtypes
            if dtypes[key] is options.dtype or key in given
        },
        "train_batch_size": plan.global_batch_size,
        "train_micro_batch_size_per_gpu": plan.micro_batch_size,
        "gradient_accumulation_steps": plan.grad_accum_steps,
        "zero_optimization.stage": plan.zero_stage,
    }
    return placed({"steps_per_print": 1, **given}, own)


def _environment_of(plan: Plan, options: MegatronOptions) -> Mapping[str, str]:
    """What the ranks must find in their environment. Tensor and context parallelism want one queue of kernels, and
    Megatron-FSDP refuses it (arguments.py, validate_args)."""
    fsdp = plan.zero_stage >= 2 and not options.through_deepspeed
    given = {name: value for name, value in options.env.items() if not (fsdp and name == _QUEUES)}
    return given if fsdp else {_QUEUES: "1", **given}


def render(model: ModelSpec, plan: Plan, cluster: ClusterSpec, extra: Mapping[str, Any]) -> Files:
    """The files that train `model` under `plan`, with all that Megatron needs to start; what the user did not say of it
    is named in a comment. extra: MegatronOptions. Raises CannotExpress, InvalidValue."""
    options = read_value(MegatronOptions, dict(extra))
    added = filled_in(options, extra.get("steps", NO_STEPS))
    arguments = {**arguments_of(model, plan, options), **added}
    told, comments = "# Fill in before a training:", list[str]()
    if unsaid := without(added, ["--train-iters"] * ("steps" in extra)):
        comments.append(f"{told} {', '.join(render_lines(unsaid))}.")
    if not options.has_data:
        made_up = "Megatron-DeepSpeed makes none up" if options.through_deepspeed else "--mock-data is made up"
        comments.append(f"{told} your data and tokenizer (--data-path, --tokenizer-type ...); {made_up}.")
    return render_files(model, plan, cluster, options, arguments, comments)


def render_files(
    model: ModelSpec,
    plan: Plan,
    cluster: ClusterSpec,
    options: MegatronOptions,
    arguments: Arguments,
    comments: Sequence[str] = (),
) -> Files:
    """The files of a run with these arguments. comments: lines for the script's head. Raises CannotExpress."""
    require_words(str(options.flavour), model, plan, cluster, capabilities_of(options))
    files = {
        ARGUMENTS_FILE: "".join(f"{line}\n" for line in render_lines(arguments)),
        LAUNCH_FILE: _launch_script(plan, cluster, options, arguments, comments),
    }
    if options.through_deepspeed:
        files[DS_CONFIG_FILE] = json.dumps(ds_config_of(plan, options), indent=1) + "\n"
    return files


def _launch_script(
    plan: Plan, cluster: ClusterSpec, options: MegatronOptions, arguments: Arguments, comments: Iterable[str]
) -> str:
    """See `[launch]` in table.toml."""
    lines = [f"    {line}" for line in render_lines(without(arguments, {"--deepspeed_config"}))]
    if options.through_deepspeed:
        lines.append(f'    --deepspeed_config "$HERE/{DS_CONFIG_FILE}"')
    exports = [f"export {name}={shlex.quote(value)}" for name, value in _environment_of(plan, options).items()]
    folder = [f"cd {shlex.quote(options.directory)}"] if options.directory else []

    def block(*parts: str) -> str:
        return "".join(f"{part}\n" for part in parts)

    script: str = TABLE.lists["launch"]["script"]
    return script.format(
        key=plan.key,
        flavour=options.flavour,
        comments=block(*comments),
        environment=block(*exports, *options.setup, *folder),
        arguments=block(*lines),
        python=shlex.quote(options.python),
        script=shlex.quote(options.script),
        devices=cluster.devices_per_node,
        nodes=cluster.nodes,
    )


def _routing(given: Arguments) -> Routing:
    """Of a router (core/transformer/transformer_config.py at d98e8a64): a loss needs a weight, whose default is 0."""
    if "--moe-router-force-load-balancing" in given:
        return Routing.RANDOM
    kinds = given.get("--moe-router-load-balancing-type", ("aux_loss",))
    weights = given.get("--moe-aux-loss-coeff", ("0",))
    balanced = "--moe-router-enable-expert-bias" in given or not _BALANCING.isdisjoint(kinds)
    by_loss = "none" not in kinds and any(weight.strip("0.") for weight in weights)
    return Routing.LEARNED if balanced or by_loss else Routing.UNCHECKED


def _capacity(given: Arguments) -> float:
    """Of each expert, over the mean; 0 where no token is dropped, as with one below 0."""
    try:
        return max(0.0, float(*given.get("--moe-expert-capacity-factor", ("0",))))
    except (TypeError, ValueError):  # a variable of the shell
        return 0.0


class MegatronWorkload(ProgramWorkload[MegatronOptions]):
    """Profiles Megatron. Raises InvalidValue for wrong options."""

    kind = MegatronOptions
    able = staticmethod(capabilities_of)

    @property
    def framework(self) -> FrameworkProfile:
        """The physics of this Megatron with these arguments; what overlaps is asked for by them."""
        given, dtype = self._options.given, str(self._options.dtype)
        multiple = self._options.vocab_multiple or MEGATRON_DEEPSPEED.vocab_multiple
        if self._options.through_deepspeed:
            known = MEGATRON_DEEPSPEED_BF16 if dtype == "bfloat16" else MEGATRON_DEEPSPEED
            fused = any(name.startswith("--use-flash-attn") for name in given)
            known = replace(known, fused_attention=fused, attention_kernels=("flash2",))
            return replace(known, name=f"Megatron-DeepSpeed, {dtype}", dtype=dtype, vocab_multiple=multiple)
        known, bits = MEGATRON_CORE[dtype], TABLE.lists["trial"]["bits"]
        if "--grad-reduce-in-bf16" in given:
            # The optimizer then has a float32 copy of its part (core/optimizer/distrib_optimizer.py), as in float16.
            known = replace(known, gradient_bytes=2, reduce_bytes=2, optimizer_bytes=16)
        return replace(
            known,
            overlapped_gradients="--overlap-grad-reduce" in given,
            gather_bytes=1 if "--fp8-param-gather" in given else known.gather_bytes,
            overlapped_gathers="--overlap-param-gather" in given,
            overlaps_tensor_forward="--tp-comm-overlap" in given,
            overlaps_experts="--overlap-moe-expert-parallel-comm" in given,
            dispatches_by_node="--moe-enable-deepep" in given,
            # One kernel each (TransformerEngine): a token is read once for all of its copies.
            copy_passes=1.5 if "--moe-permute-fusion" in given else known.copy_passes,
            routing=_routing(given),
            capacity_factor=_capacity(given),
            pads_to_capacity="--moe-pad-expert-input-to-capacity" in given,
            overlaps_sends="--no-overlap-p2p-communication" not in given,
            host_optimizer="--optimizer-cpu-offload" in given,
            product_dtype=next((name for name, words in bits.items() if given.keys() & words.split()), ""),
            vocab_multiple=multiple,
            kept=replace(known.kept, dropout=given.get("--hidden-dropout") not in _NO_DROPOUT),
        )

    @property
    def program(self) -> str:
        return PurePath(self._options.script).name

    def problems_with_knobs(self, knobs: KnobSet) -> list[Problem]:
        options = self._options
        shown = _short({}, options, 0).keys() - {"--lr", "--initial-loss-scale"}
        standing = {
            **dict.fromkeys(options.given, "workload.arguments"),
            **dict.fromkeys(FROM_MODEL | FROM_SHAPES, "what follows from the model"),
            **dict.fromkeys(FROM_PLAN, "what follows from the plan"),
            **dict.fromkeys(shown, "every trial"),
        }
        by_plan = dict.fromkeys(flat(ds_config_of(Plan(), replace(options, ds_config={}))), "the plan")
        telling = Telling(
            workload="megatron",
            example="--recompute-num-layers",
            variables=dict.fromkeys(options.env, "workload.env"),
            arguments=standing,
            files={DS_CONFIG_FILE: by_plan} if options.through_deepspeed else {},
        )
        return problems(knobs, telling)

    def job(self, request: JobRequest) -> JobSpec:
        """Megatron cannot give up by itself, so incumbent_step_time_s changes nothing. Raises CannotExpress."""
        told = variables(request.knobs, request.plan)
        config = placed(self._options.ds_config, keys(request.knobs, request.plan, DS_CONFIG_FILE))
        # launch.sh exports them, which counts more than what its job finds.
        options = replace(self._options, env={**self._options.env, **told}, ds_config=config)
        arguments = _short(arguments_of(request.model, request.plan, options), options, request.seed)
        arguments = {**arguments, **read_arguments(knob_arguments(request.knobs, request.plan))[0]}
        files = render_files(request.model, request.plan, request.cluster, options, arguments)
        words = [word for line in render_lines(arguments) for word in read_words(line)]
        command = (PurePath(options.script).name, *words)
        context = context_file(request, dtype=self.dtype, warmup_steps=options.warmup_steps, command=command)
        return request.job(("bash", LAUNCH_FILE), {**files, **context}, told)

    def read_without_result(self, directory: Path, status: JobStatus) -> Outcome:
        return outcome_from_log(directory, status, PATTERNS, steps=self._options.steps)


def _short(arguments: Arguments, options: MegatronOptions, seed: int) -> Arguments:
    """The arguments of a run that takes its steps, tells each, and leaves nothing behind."""
    kept = without(arguments, left_out_of_trials(arguments))
    throughput: dict[str, tuple[str, ...]] = {} if options.through_deepspeed else {"--log-throughput": ()}
    scale = {"--initial-loss-scale": (_LOSS_SCALE,)} if options.dtype is Dtype.FLOAT16 else {}
    return {
        **scale,
        "--lr": (LEARNING_RATE,),
        **kept,
        "--train-iters": (str(options.steps),),
        "--eval-iters": ("0",),
        "--eval-interval": (str(options.steps + 1),),
        "--log-interval": ("1",),
        **throughput,
        # Megatron refuses 0.
        "--seed": (str(seed + 1),),
    }
