"""What no row of NeMo-RL's table can say: which backend trains, which devices it has, and how rows are generated."""

from __future__ import annotations

import re

from meshtune.runners.programs.reading import Reading, truth

_GENERATION = "policy.generation"
_APART = f"{_GENERATION}.colocated.resources"


def kind(reading: Reading) -> str:
    return "megatron" if truth(reading.get("policy.megatron_cfg.enabled")) else "dtensor"


def devices(reading: Reading) -> None:
    """Those of the training. Engines of their own have devices of the one node, or whole nodes of several (grpo.py,
    setup)."""
    fields = reading.fields
    nodes = reading.whole("cluster.num_nodes", "cluster.nodes") or 1
    each = reading.whole("cluster.gpus_per_node", "cluster.nodes") or 1
    if truth(reading.get(f"{_GENERATION}.colocated.enabled")) is False:
        own = (reading.whole(f"{_APART}.{'gpus_per_node' if nodes == 1 else 'num_nodes'}")) or 0
        fields["training.rollout.devices"] = own if nodes == 1 else own * each
        told = f"{own} {'devices' if nodes == 1 else 'nodes'} of cluster.* generate, and are none of the cluster here"
        reading.note(told)
        nodes, each = (nodes, each - own) if nodes == 1 else (nodes - own, each)
    fields |= {"nodes": nodes, "devices_per_node": each}


def rollout(reading: Reading) -> None:
    """The rest of generation. Weights and optimizer leave for an engine that shares their devices
    (offload_after_refit); a reference takes the place of the weights (use_reference_model)."""
    fields, share = reading.fields, f"{_GENERATION}.vllm_cfg.gpu_memory_utilization"
    row = fields.get("model.seq_len") or 2
    answer = min(reading.whole(f"{_GENERATION}.max_new_tokens") or row, row - 1)
    prompts = (reading.whole(f"grpo.num_{name}") or 1 for name in ("prompts_per_step", "generations_per_prompt"))
    rows = next(prompts) * next(prompts)
    shared = not fields.get("training.rollout.devices")
    age = reading.whole("grpo.async_grpo.max_trajectory_age_steps") or 1
    own: dict[str, object] = {
        "prompt_tokens": row - answer,
        "answer_tokens": answer,
        "share": reading.share(share, "training.rollout.share") or 0.6,
        "updates": max(1, rows // (fields.get("global_batch_size") or rows)),
        "weights_leave": shared,
        "optimizer_leaves": shared,
        "behind": age if truth(reading.get("grpo.async_grpo.enabled")) else 0,
    }
    for packing in ("sequence_packing", "dynamic_batching"):
        for key, field in (("train_mb_tokens", "update_tokens"), ("logprob_mb_tokens", "log_prob_tokens")):
            said = str(reading.get(f"policy.{packing}.{key}"))
            # A product follows the micro-batch: `${mul:...}`.
            if truth(reading.get(f"policy.{packing}.enabled")) and re.fullmatch(r"\d+", said):
                own[field] = int(said)
    if tokens := own.get("update_tokens"):
        reading.kept["micro_batch_size"] = fields["micro_batch_size"]
        reading.note(f"a pass takes {tokens} tokens, however many rows: policy.train_micro_batch_size stays")
    fields |= {f"training.rollout.{name}": value for name, value in own.items()}
    if reading.get("loss_fn.reference_policy_kl_penalty") not in (0, 0.0):
        fields["training.beside"] = [{"role": "reference", "bits": 0}]
