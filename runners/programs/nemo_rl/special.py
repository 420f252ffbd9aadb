"""What no row of NeMo-RL's table can say: which backend trains, which devices it has, and how rows are generated."""

from __future__ import annotations

from typing import Any

from meshtune.runners.programs.reading import Reading, truth
from meshtune.runners.programs.recipes import packed

_GENERATION, _PACKING = "policy.generation", ("sequence_packing", "dynamic_batching")


def kind(reading: Reading) -> str:
    return "megatron" if truth(reading.get("policy.megatron_cfg.enabled")) else "dtensor"


def devices(reading: Reading) -> None:
    """Those of the training. Engines of their own have devices of the one node, or whole nodes of several."""
    nodes, each = (reading.whole(f"cluster.{name}") or 1 for name in ("num_nodes", "gpus_per_node"))
    if truth(reading.get(f"{_GENERATION}.colocated.enabled")) is False:
        key, what = ("gpus_per_node", "devices") if nodes == 1 else ("num_nodes", "nodes")
        own = reading.whole(f"{_GENERATION}.colocated.resources.{key}") or 0
        reading.fields["training.rollout.devices"] = own if nodes == 1 else own * each
        reading.note(f"{own} {what} of those under `cluster` generate, and are none of the cluster here")
        nodes, each = (nodes, each - own) if nodes == 1 else (nodes - own, each)
    reading.fields |= {"nodes": nodes, "devices_per_node": each}


def rollout(reading: Reading) -> None:
    """Lengths, and tokens of packed passes."""
    row = reading.fields.get("model.seq_len") or 2
    answer = min(reading.whole(f"{_GENERATION}.max_new_tokens") or row, row - 1)
    own = {"prompt_tokens": row - answer, "answer_tokens": answer}
    packing = next((each for each in _PACKING if truth(reading.get(f"policy.{each}.enabled"))), "none")
    for key, field in (("train_mb_tokens", "update_tokens"), ("logprob_mb_tokens", "log_prob_tokens")):
        # A product follows the micro-batch: `${mul:...}`.
        if (said := str(reading.get(f"policy.{packing}.{key}"))).isdecimal():
            # Of a sequence's devices together.
            own[field] = int(said) // (reading.fields.get("cp") or 1)
            if key == "train_mb_tokens":
                packed(reading, int(said))
    reading.fields |= {f"training.rollout.{name}": value for name, value in own.items()}


def log_prob_rows(reading: Reading) -> dict[str, Any]:
    """As many as of an update's pass, where a product over four devices or more has to be the same in both: asserted in
    nemo_rl/models/policy/lm_policy.py."""
    wide = (reading.fields.get("tp") or 1) >= 4 and "micro_batch_size" not in reading.kept
    same = wide and reading.has("policy.logprob_batch_size")
    return {"policy.logprob_batch_size": "{micro_batch_size}"} if same else {}
