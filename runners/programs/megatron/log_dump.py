"""The arguments that Megatron prints at its start, found in a training's log and written as a command line again.

Megatron-LM (megatron/training/arguments.py, _print_args, d98e8a64) and Megatron-DeepSpeed (megatron/arguments.py) print
`  name ........ value`, the name and its dots 48 characters together, between two ruled lines. The values are those
after validate_args; what it fills in by itself is not written as an argument again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from meshtune.runners.programs.dialects.base import CannotRead, Launch, Remarks
from meshtune.runners.programs.dialects.bash.expansion import unknown
from meshtune.runners.programs.megatron.command_line import seems
from meshtune.runners.programs.megatron.flags import Flag, flags_by_dest
from meshtune.runners.programs.megatron.options import TABLE
from meshtune.runners.untrusted_text import UnreadableText, read_yaml

_BEGIN, _END = re.compile(r"-{10,} (?:\w+ )?arguments -{10,}"), re.compile(r"-{10,} end of (?:\w+ )?arguments -{10,}")
# A name, its dots and its value; a launcher's prefix (`0: `, `[rank0]:`, a time) may stand before them.
_LINE = re.compile(r"(?:^|[\s:\]|])\s*(?P<name>[A-Za-z_]\w*) (?P<dots>\.*) (?P<value>.*)$")
# Of a name and its dots; 32 in Megatron-DeepSpeed of 2021 and before.
_WIDTHS = (48, 32)
_LEAST_LINES = 20
# Of a release's arguments that a dump may lack: forks take some away. A torn or filtered dump lacks more.
_MAX_MISSING = 0.2
_MAX_VALUE = 20_000
_CONSTANTS: Mapping[str, Any] = {"None": None, "True": True, "False": False}
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_NUMBER = re.compile(r"-?(?:[0-9]{1,18}\.?[0-9]{0,18}(?:e[-+]?[0-9]{1,3})?|inf)")
_SECRET = re.compile(r"api_?key|secret|passw|(?:hf|auth|access)_token", re.IGNORECASE)
# megatron's programs say what they build: pretrain_gpt.py, pretrain_bert.py, pretrain_t5.py ...
_BUILDS = re.compile(r"\bbuilding (BERT|T5|ICT|Retro|retro|VIT|Mamba|mamba|[Mm]ultimodal)\w* model")
_DUMP: Mapping[str, Any] = TABLE.lists["dump"]
# What validate_args and the environment fill in, in any release; for the rest `_follows` compares.
_FILLED_IN = TABLE.words("dump.filled_in")
_MEMBER = re.compile(r"^[A-Z]\w+\.(\w+)$")
# Written although it is the default: DeepSpeed's file says the same, or something is wrong.
_ALWAYS = frozenset({"zero_stage"})


def is_log(text: str) -> bool:
    """Whether a text has such a dump, whole or torn."""
    return any(len(values) >= _LEAST_LINES for _, values, _ in _dumps(text))


def find_dump(text: str) -> tuple[Launch, Mapping[str, int]]:
    """The last dump of a log as a start, with its questions; and what no argument says: `devices` in all, `dp`, and
    `model.vocab`, the words of the tokenizer. Raises CannotRead."""
    dumps = [found for found in _dumps(text) if len(found[1]) >= _LEAST_LINES]
    if not dumps:
        raise CannotRead(
            "no dump of Megatron's arguments (`--- arguments ---` and `name ...... value` lines) in this log"
        )
    start, raw, whole = dumps[-1]
    values = {name: _value(written) for name, written in raw.items()}
    remarks = Remarks(place=f"line {start}")
    if other := _BUILDS.search(text):
        raise CannotRead(
            f"{remarks.place}: Megatron, but the log says `{other[0]}`; the dialect reads decoder-only transformers"
        )
    if values.get("decoder_seq_length") or values.get("decoder_num_layers"):
        raise CannotRead(
            f"{remarks.place}: Megatron, but with a decoder of its own: the dialect reads decoder-only transformers"
        )
    remarks.ask("workload.script", "the log does not say which program it is of; pretrain_gpt.py?")
    remarks.ask("workload.directory", "the log does not say the folder that the program starts in")
    if str(values.get("tokenizer_type")).startswith("BertWordPiece"):
        remarks.ask("", "a tokenizer of BERT's: only decoder-only transformers are read rightly")
    if not whole:
        remarks.ask("", "the dump has no end: arguments may be missing")
    if len(dumps) > 1:
        remarks.note(f"{len(dumps)} dumps of arguments; the last one is read")
    # The tokenizer's words, without padding.
    found = _VOCABULARY.search(text) if values.get("vocab_size") is None else None
    size = int(found[1]) if found else None
    words = _words({**values, **({"vocab_size": size} if size else {})}, remarks)
    settings = deepspeed_settings(text)
    launch = Launch(
        script="",
        words=tuple(words),
        place=remarks.place,
        files={str(values.get("deepspeed_config")): settings} if settings else {},
        questions=tuple(remarks.questions),
        notes=tuple(remarks.notes),
    )
    counts = {"devices": values.get("world_size"), "dp": values.get("data_parallel_size"), "model.vocab": size}
    return launch, {name: count for name, count in counts.items() if isinstance(count, int) and count > 0}


def _dumps(text: str) -> Iterator[tuple[int, dict[str, str], bool]]:
    """Each dump: the number of its first line, its raw values by name, and whether it ended."""
    start, found = 0, dict[str, str]()
    for number, line in enumerate(text.splitlines(), 1):
        if _END.search(line):
            if start:
                yield start, found, True
            start, found = 0, {}
        elif _BEGIN.search(line):
            if start:
                yield start, found, False
            start, found = number, {}
        elif start and (entry := _LINE.search(line)):
            name, dots = entry["name"], entry["dots"]
            if len(name) + len(dots) in _WIDTHS or (not dots and len(name) >= min(_WIDTHS)):
                found[name] = entry["value"].strip()
    if start:
        yield start, found, False


def _value(written: str) -> Any:
    """A value as Python printed it: None, a number, a list, or the text itself."""
    if written in _CONSTANTS:
        return _CONSTANTS[written]
    if _WHOLE.fullmatch(written):
        return int(written)
    if _NUMBER.fullmatch(written):
        return float(written)
    try:
        # Lists of Python's texts and numbers are YAML's.
        return read_yaml(written) if written.startswith("[") and len(written) <= _MAX_VALUE else written
    except UnreadableText:
        return written


def _words(values: Mapping[str, Any], remarks: Remarks) -> list[str]:
    """The values as command-line words, but for defaults and what validate_args filled in."""
    words = list[str]()
    secrets = [dest for dest in values if _SECRET.search(dest) and values[dest] not in (None, "")]
    # The flags by dest of the release that has the most of the dump's names; of several the one with the fewest others,
    # and the newest.
    releases = reversed(list(flags_by_dest().values()))
    release = max(releases, key=lambda by_dest: (len(by_dest.keys() & values.keys()), -len(by_dest)))
    # A Megatron before 2.0 has fewer arguments than any release that is known.
    older = values.get("batch_size") is not None and "micro_batch_size" not in values
    if not older and len(missing := release.keys() - values.keys()) > _MAX_MISSING * len(release):
        words.append(unknown(f"{len(missing)} of {len(release)} arguments that are missing in the log"))
    for dest, forms in release.items():
        if dest in values and dest not in secrets and dest not in _FILLED_IN and not _follows(dest, values):
            given = next((form for form in forms if _is_given(form, values[dest])), None)
            words += _written(given, values[dest]) if given else ()
    # A newer release's or a fork's: what a row has, or what seems to say a field.
    known = frozenset().union(*flags_by_dest().values())
    for dest in (dest for dest in values if dest not in known and dest not in _FILLED_IN):
        name = f"--{dest.replace('_', '-')}"
        if values[dest] not in (None, False, 0, 1, "") and (name in TABLE.every_name or seems(name)[0]):
            words += [name, str(values[dest])]
    if secrets:
        remarks.ask("", f"the log has {', '.join(secrets)}, which may be secrets and are not copied")
    return words


def _is_given(form: Flag, value: Any) -> bool:
    """Whether the value is not what the program has unless it is told otherwise."""
    if value is None or value == "" or value == []:
        return False
    if form.kind in ("on", "off"):
        return value is (form.kind == "on") and form.default is not value
    return form.dest in _ALWAYS or (form.default != value and [str(form.default)] != list(_written(form, value)[1:]))


def _written(form: Flag, value: Any) -> Sequence[str]:
    if form.kind in ("on", "off"):
        return (form.name,)
    several = isinstance(value, (list, tuple)) and form.most > 1
    texts = [str(one) for one in value] if several else [str(value)]
    # An enum prints as Name.member, a type of torch as torch.name; the parser takes the member, and short names.
    return (form.name, *(_DUMP["dtypes"].get(text, _MEMBER.sub(r"\1", text)) for text in texts))


def _follows(dest: str, values: Mapping[str, Any]) -> bool:
    """Whether validate_args makes this value of others, so that it need not have been given."""
    get = values.get
    hidden, heads = get("hidden_size"), get("num_attention_heads")
    tensor = get("tensor_model_parallel_size")
    head = hidden // heads if isinstance(hidden, int) and isinstance(heads, int) and heads else None
    made: Mapping[str, Any] = {
        **{name: get(other) for name, other in _DUMP["follows"].items()},
        "kv_channels": head,
        "dataloader_type": "single",
        "async_tensor_model_parallel_allreduce": not (get("sequence_parallel") or tensor == 1),
        "bias_gelu_fusion": not get("swiglu"),
        "add_position_embedding": not get("use_rotary_position_embeddings"),
        # On with interleaved stages alone, and turned off by validate_args without them.
        "overlap_p2p_comm": get("virtual_pipeline_model_parallel_size") is not None,
    }
    return dest in made and values[dest] == made[dest]


# megatron/tokenizer/tokenizer.py, _vocab_size_with_padding (Megatron-DeepSpeed 4efb479d; Megatron-LM alike).
_VOCABULARY = re.compile(r"> padded vocab \(size: (\d{1,9})\) with \d+ dummy tokens")
# deepspeed/runtime/config.py, print_user_config, 0.19.8: the settings as sorted JSON after `json = `.
_SETTINGS = re.compile(r"^(?P<before>.*?)\bjson = \{", re.MULTILINE)
_RANK = re.compile(r"^\s*(?:\[[^\]\n]{1,40}\]:?|\d{1,6}:|[\w.-]{1,64}: )\s?")
_MAX_SETTINGS = 2_000


def deepspeed_settings(text: str) -> str:
    """DeepSpeed's settings as JSON, "" where the log has none whole."""
    starts = list(_SETTINGS.finditer(text))
    if not starts:
        return ""
    lines = text[starts[-1].end() - 1 :].splitlines()[:_MAX_SETTINGS]
    stripped = [lines[0], *(_RANK.sub("", line) if '"' not in line.split(":")[0] else line for line in lines[1:])]
    end = next((index for index, line in enumerate(stripped) if line.rstrip() == "}"), None)
    return "" if end is None else "\n".join(stripped[: end + 1])
