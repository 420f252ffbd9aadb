"""Programs that are recognised and not read: their names, for a refusal that says more than "not known"."""

from __future__ import annotations

import re
from collections.abc import Mapping

# name -> what its configuration, or the command that starts it, has; each pattern must be found.
_MARKS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "axolotl": ((r"\baxolotl\b",), (r"(?m)^base_model:", r"(?m)^(sequence_len|micro_batch_size|adapter):")),
    "LLaMA-Factory": ((r"\bllama_?factory|\bllamafactory-cli\b",), (r"(?m)^finetuning_type:", r"(?m)^stage:")),
    "Levanter": ((r"\blevanter\b",), (r"(?m)^trainer:", r"(?m)^\s+mp: p=f32", r"(?m)^\s+(hidden_dim|fsdp_axis):")),
    "OLMo": ((r"\bOLMo(-core)?\b", r"scripts/train\.py|olmo_core"), (r"(?m)^\s*d_model:", r"(?m)^fsdp:")),
    "MaxText": ((r"\bMaxText\b",), (r"(?m)^base_emb_dim:", r"(?m)^ici_fsdp_parallelism:")),
    "OpenRLHF": ((r"\bopenrlhf\b",),),
    "LitGPT": ((r"\blitgpt (pretrain|finetune)",),),
    "fairseq": ((r"\bfairseq-(hydra-)?train\b",),),
    "ColossalAI": ((r"\bcolossalai run\b",),),
    "torchtune": ((r"\btune run\b",), (r"_component_: torchtune\.",)),
    "Nanotron": ((r"\brun_train\.py --config-file\b",), (r"(?m)^parallelism:", r"(?m)^\s+pp_engine:")),
}


def recognised(text: str) -> str:
    """The name of such a program in a configuration or a script, "" for none."""
    code = re.sub(r"(?m)^\s*#.*$", "", text)
    return next(
        (name for name, ways in _MARKS.items() for way in ways if all(re.search(mark, code) for mark in way)), ""
    )


def not_read(name: str) -> str:
    """The refusal of such a program, with what to do next."""
    return (
        f"is a file or a start of {name}, which is recognised and not read. Next: a spec with `kind: command`, whose "
        f"`configs` take this file as their base (docs/how-to/workloads.md)"
    )
