"""Uneven pipeline stages in Megatron's arguments, and read from them.

Rules from NVIDIA/Megatron-LM d98e8a64, megatron/core/transformer/transformer_block.py (get_num_layers_to_build) and
pipeline_parallel_layer_layout.py (parse_str_to_list), and from bigscience-workshop/Megatron-DeepSpeed 8387ae17,
megatron/model/gpt_model.py, whose word embeddings are always tied: `transformer|embedding` counts both ends."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from meshtune.runners.programs.dialects.base import Arguments
from meshtune.runners.programs.reading import Reading, truth
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.stages import EVEN, Split, layers_of_chunk, split_of

ACCOUNTS = ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")
ENDS = ("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers")
LAYOUT = "--pipeline-model-parallel-layout"
# Of a fork; DeepSpeed's other two Megatrons know the first method alone.
METHOD = "--pp-partition-method"
METHODS: Mapping[Split, str] = {EVEN: "type:transformer", (1, 1): "type:transformer|embedding"}
UNEVEN = (*ENDS, LAYOUT, *ACCOUNTS)
# What a layout repeats, and the longest one that is read: parentheses first, then single letters.
_REPEATED = (re.compile(r"\(([^)]+)\)\*(\d{1,4})"), re.compile(r"(.)\*(\d{1,4})"))
_MAX_LAYOUT = 20_000
_LAYOUT = re.compile(r"E[t|]*(m*|m+[|])L")


def words_of(model: ModelSpec, plan: Plan, given: Arguments) -> Iterator[tuple[str, *tuple[object, ...]]]:
    """The arguments that split the pipeline as the plan says, the chunks of a rank included. given: the user's."""
    split = plan.first_stage_less_layers, plan.last_stage_less_layers
    counts_ends = set(split) <= {0, 1}
    sizes = [len(layers_of_chunk(plan, model.layers, chunk)) for chunk in range(plan.pp * plan.vpp)]
    if plan.vpp > 1 and counts_ends and LAYOUT not in given:
        # Older than --num-virtual-stages-per-pipeline-rank, so that more versions know it.
        between = (model.layers + sum(split)) // (plan.pp * plan.vpp)
        yield "--num-layers-per-virtual-pipeline-stage", between
    if plan.pp > 1 and METHOD in given and split in METHODS:
        yield METHOD, METHODS[split]
    elif split != EVEN and counts_ends:
        yield from ((name,) for name, fewer in zip(ACCOUNTS, split, strict=True) if fewer)
    elif split != EVEN and plan.vpp == 1 and sizes[0] > 0 and sizes[-1] > 0:
        yield from zip(ENDS, (sizes[0], sizes[-1]), strict=True)
    elif split != EVEN:
        # The two arguments above cut all chunks of a rank alike, and refuse 0; only a layout does neither.
        yield LAYOUT, layout_of(sizes, model.mtp_layers)


def layout_of(sizes: Sequence[int], further: int) -> str:
    """The layers of every chunk, in order: E the embedding, t a layer, m one of those for further tokens, L the loss.
    sizes: of at least two chunks, those between alike, but the one before the last where the loss is alone."""
    alone = further > 0 and len(sizes) > 2 and sizes[-2] < sizes[1]
    *sizes, last = sizes[:-1] if alone else sizes
    first, between, end = (f"t*{size}" if size > 2 else "t" * size for size in (sizes[0], sizes[-1], last))
    many = len(sizes) - 1
    return f"E{first}|{f'({between}|)*{many}' if many else ''}{end}{'m' * further}{'|' * alone}L"


def written_out(layout: str) -> str:
    """A layout with its repetitions written out, as Megatron does; at most about _MAX_LAYOUT letters of each."""
    layout = layout.replace(",", "")
    for pattern in _REPEATED:
        layout = pattern.sub(lambda found: (found[1] * int(found[2]))[: _MAX_LAYOUT + 1], layout)
    return layout


def split_of_layout(layout: str, chunks: int, further: int) -> Split | None:
    """The split of a layout, written out, of so many chunks and so many layers for further tokens; None where no split
    does that: chunks between that differ, layers for further tokens in one of those, or before the last but one."""
    sizes, alone = [stage.count("t") for stage in layout.split("|")], layout.endswith("m|L")
    fit = len(layout) <= _MAX_LAYOUT and _LAYOUT.fullmatch(layout) and layout.count("m") == further
    return split_of(sizes, empty_ends=True, loss_alone=alone) if fit and len(sizes) == chunks else None


def split_of_ends(layers: int, pp: int, chunks: int, first: int | None, last: int | None) -> Split | None:
    """The split where the first and the last rank hold so many layers, over all of their chunks; None: as many as the
    others. None where no split does that."""
    between, rest = 0, 0
    if others := pp - (first is not None) - (last is not None):
        between, rest = divmod(layers - (first or 0) - (last or 0), others)
    ranks = [between] * pp
    ranks[0] = between if first is None else first
    ranks[-1] = between if last is None else last
    if rest or sum(ranks) != layers or any(size % chunks for size in ranks):
        return None
    return split_of([ranks[chunk % pp] // chunks for chunk in range(pp * chunks)])


def stages(reading: Reading) -> None:
    """A pipeline whose first and last stage hold other numbers of layers than those between: those said, or one less
    each for the embedding and the loss."""
    fields, names = reading.fields, ("first_stage_less_layers", "last_stage_less_layers")
    pp, chunks, layers = fields.get("pp") or 1, fields.get("vpp") or 1, fields.get("model.layers")
    ends = [reading.whole(f"{{stages}}.num_layers_in_{end}_pipeline_stage") for end in ("first", "last")]
    counted = (reading.get(f"{{stages}}.account_for_{part}_in_pipeline_split") for part in ("embedding", "loss"))
    first, last = (int(truth(each) or 0) for each in counted)
    found = split_of_ends(layers, pp, chunks, *ends) if layers and any(ends) else (first, last)
    # Of one or two chunks they say nothing.
    if found and any(found) and pp * chunks > 2:
        reading.kept |= {"pp": pp, **dict(zip(names, found, strict=True))}
        fields |= reading.kept


def split_of_method(method: str) -> Split | None:
    """The split of a partition method; None where it is no such type, or counts other modules."""
    # Quotes that a shell would have taken away: DeepSpeed refuses a method with them.
    kind, _, types = method.lower().strip("\"'").partition(":")
    found: Mapping[frozenset[str], Split] = {
        frozenset({"transformer"}): EVEN,
        frozenset({"transformer", "embedding"}): (1, 1),
        frozenset({"transformer", "embed"}): (1, 1),
    }
    return found.get(frozenset(types.split("|"))) if kind == "type" else None
