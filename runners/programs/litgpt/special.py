"""What no row of LitGPT's table can say: which of its trainings is started."""

from __future__ import annotations

from meshtune.runners.programs.dialects.base import CannotRead
from meshtune.runners.programs.reading import Reading


def kind(reading: Reading) -> str:
    """Raises CannotRead for adapters, of which the file knows too little."""
    words = reading.get("words") or ["pretrain"]
    if words[0] in ("pretrain", "finetune_full"):
        return "full" if words[0] == "finetune_full" else "pretrain"
    raise CannotRead(
        f"{reading.place}: `litgpt {words[0]}` trains adapters, which are not read. Next: a spec with `kind: command` "
        f"of its line, with --train.micro_batch_size {{micro_batch_size}} --train.max_steps {{steps}} behind "
        f"(docs/how-to/workloads.md), then meshtune spaces SPEC.yaml"
    )
