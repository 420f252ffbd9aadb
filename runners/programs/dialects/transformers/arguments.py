"""The words of a start of Hugging Face's Trainer: arguments of TrainingArguments and of the usual scripts, by name.

Names and defaults are those of transformers 5.23.0 (training_args.py), and of 4.x where they differ."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshtune.runners.json_files import shown
from meshtune.runners.programs.dialects.base import Arguments, CannotRead, Remarks, read_arguments
from meshtune.runners.programs.dialects.bash.expansion import as_written, is_known
from meshtune.runners.programs.dialects.config_import import literal
from meshtune.runners.untrusted_text import UnreadableText, read_yaml
from meshtune.search_spaces.checks import MAX_WHOLE, names_in, raising

# Whoever is told one of these is a script of the Trainer (or of Accelerate, written in its manner).
TRAINER_WORDS = frozenset(
    {"--per_device_train_batch_size", "--per_gpu_train_batch_size", "--fsdp_transformer_layer_cls_to_wrap"}
)
# Two of these say the same.
USUAL_WORDS = names_in("""
    --model_name_or_path --output_dir --num_train_epochs --gradient_accumulation_steps --gradient_checkpointing
    --max_seq_length --block_size --dataset_name --lr_scheduler_type --learning_rate --save_strategy --logging_steps
    --max_steps
""")
# How many tokens a sequence has: run_clm.py; TRL's SFTConfig, before and since 0.16; FastChat and Stanford Alpaca;
# LLaMA-Factory.
SEQUENCE = ("--block_size", "--max_seq_length", "--max_length", "--model_max_length", "--cutoff_len")
# What a trial leaves out: it takes a few steps, evaluates and saves nothing, and tells nobody.
NOT_IN_TRIALS = names_in("""
    --max_steps --num_train_epochs --output_dir --overwrite_output_dir --do_eval --do_predict --eval_strategy
    --evaluation_strategy --eval_steps --eval_on_start --save_strategy --save_steps --save_total_limit
    --load_best_model_at_end --metric_for_best_model --resume_from_checkpoint --push_to_hub --hub_model_id --hub_token
    --hub_strategy --report_to --run_name --local_rank --deepspeed --fsdp --per_device_train_batch_size
    --per_gpu_train_batch_size --gradient_accumulation_steps --gradient_checkpointing
""")
TRIAL_WORDS = (
    *("--per_device_train_batch_size", "{micro_batch_size}", "--gradient_accumulation_steps", "{grad_accum_steps}"),
    *("--max_steps", "{steps}", "--save_strategy", "no", "--report_to", "none"),
)
# What stays as it is, and what meshtune's predictions do not know of it.
UNPREDICTED: Mapping[str, str] = {
    "--use_peft": "adapters: gradients and optimizer of a few weights",
    "--use_lora": "adapters: gradients and optimizer of a few weights",
    "--lora_r": "adapters: gradients and optimizer of a few weights",
    "--load_in_4bit": "weights of 4 bits",
    "--load_in_8bit": "weights of 8 bits",
    "--freeze_backbone": "weights that are not trained",
    "--use_liger_kernel": "Liger's fused kernels",
    "--torch_compile": "torch.compile",
    "--packing": "samples that are packed into one sequence",
    "--group_by_length": "sequences of unequal length",
}
_TRUE, _FALSE = ("true", "1", "yes", "y", "t"), ("false", "0", "no", "n", "f")
_WHOLE = re.compile(r"[0-9]{1,18}")


@dataclass(slots=True)
class Words(Remarks):
    """Arguments that are being read. place: where they stand."""

    arguments: Arguments
    # Of `arguments` those of the command line; the others are a file's.
    own: Arguments = field(default_factory=dict)

    def has(self, name: str) -> bool:
        return name in self.arguments

    def text(self, name: str, path: str) -> str | None:
        """The value of an argument; None where it is not there, or not known, which is asked for under `path`."""
        values = self.arguments.get(name)
        if not values:
            return None
        if is_known(values[-1]):
            return values[-1]
        self.ask(path, f"{name} {as_written(values[-1])} is not known here: write its value")
        return None

    def number(self, name: str, path: str, default: int | None = None) -> int | None:
        """A whole number; `default` where the argument is not there, None where its value is asked for."""
        if name not in self.arguments:
            return default
        value = self.text(name, path)
        if value is None or (_WHOLE.fullmatch(value) and int(value) <= MAX_WHOLE):
            return None if value is None else int(value)
        self.ask(path, f"{name} {shown(value)} is no whole number up to {MAX_WHOLE}: write one")
        return None

    def flag(self, name: str, path: str) -> bool | None:
        """A switch, alone or with a truth value (HfArgumentParser's string_to_bool); None where it is not there, or
        asked for."""
        values = self.arguments.get(name)
        if values is None:
            return None
        found = True if not values else truth(values[0])
        if found is None:
            self.ask(path, f"{name} {as_written(' '.join(values))} is no truth value: write what it stands for")
        return found


def truth(value: Any) -> bool | None:
    """What a truth value in another program's words is; None for what is none."""
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    return True if word in _TRUE else False if word in _FALSE else None


def arguments_of(words: Sequence[str]) -> tuple[Arguments, tuple[str, ...]]:
    """The arguments by name, and the words before the first; argparse takes `-` for `_` in HfArgumentParser's names."""
    given, loose = read_arguments(words)
    return {name.replace("-", "_").replace("__", "--", 1): values for name, values in given.items()}, loose


def quoted(word: str) -> str:
    """A user's word as it stands in a text for `sh -c` that has placeholders."""
    return literal(shlex.quote(as_written(word)))


def arguments_in_files(given: Arguments, files: Mapping[str, str]) -> Arguments:
    """The arguments in the YAML file of --config, which the command line's own count more than (TRL's TrlParser).
    Raises CannotRead."""
    name = (given.get("--config") or ("",))[-1]
    if name not in files or not name.endswith((".yaml", ".yml")):
        return {}
    with raising(CannotRead, name, UnreadableText):
        found = read_yaml(files[name])
    if not isinstance(found, Mapping):
        raise CannotRead(f"{name}: must be a mapping of arguments, not {shown(found)}")
    listed = {key: value if isinstance(value, list) else [value] for key, value in found.items() if value is not None}
    return {f"--{key}": tuple(str(one) for one in values) for key, values in listed.items()}


def is_trainers(arguments: Arguments) -> bool:
    """Whether arguments are of a script of the Trainer, or in its manner."""
    names = set(arguments)
    return bool(names & TRAINER_WORDS) or len(names & USUAL_WORDS) >= 2
