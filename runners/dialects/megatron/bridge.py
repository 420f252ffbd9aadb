"""Megatron-Bridge's configuration as it saves it: run_config.yaml of a checkpoint, or logger.save_config_filepath.

NVIDIA-NeMo/Megatron-Bridge 067f987d: training/config.py (ConfigContainer), models/gpt_provider.py, training/utils/
train_utils.py (training_log). The file has every value that the recipe resolved. It does not say how the recipe is
started, so the command is asked; trials run by `kind: command`, with overrides such as model.seq_length=2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshtune.runners.dialects.base import CannotRead, Imported, Question
from meshtune.runners.dialects.megatron.arguments import CONTEXTS, SHARDINGS, Dtype
from meshtune.runners.dialects.megatron.read_workload import TIME_LIMIT_S
from meshtune.runners.untrusted_text import UnreadableText, read_yaml

_SIZES = {
    "layers": "num_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "seq_len": "seq_length",
    "ffn": "ffn_hidden_size",
    "vocab": "vocab_size",
    "kv_heads": "num_query_groups",
}
_DEGREES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
}
# What has the value under which the plan's meaning is plain; anything else is said.
_OTHER = (
    "fp8",
    "fp4",
    "multi_latent_attention",
    "mtp_num_layers",
    "moe_layer_freq",
    "moe_shared_expert_intermediate_size",
)
_UNEVEN = (
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "pipeline_model_parallel_layout",
)
_COUNTED = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
_OVERRIDES = (
    *(f"model.{name}={{{field}}}" for field, name in _DEGREES.items()),
    *("train.micro_batch_size={micro_batch_size}", "train.global_batch_size={global_batch_size}"),
    "train.train_iters={steps}",
)
_LOG = {
    "step": r"\biteration\s+(\d+)/\s*\d+ \|",
    "step_time_ms": r"\belapsed time per iteration \(ms\): ([\d.]+) \|",
    "loss": r"\blm loss: ([-+.\dEe]+|nan|inf) \|",
}


def is_file(name: str, text: str) -> bool:
    """Whether it is a configuration that Megatron-Bridge saved."""
    return name.endswith((".yaml", ".yml")) and "_target_: megatron.bridge." in text


def read_file_text(name: str, text: str) -> Imported:
    """What a saved configuration says. Raises CannotRead."""
    try:
        document = read_yaml(text)
    except UnreadableText as error:
        raise CannotRead(f"{name}: {error}") from None
    model = document.get("model") if isinstance(document, Mapping) else None
    if not isinstance(model, Mapping):
        raise CannotRead(f"{name}: Megatron-Bridge's configuration, but without a section `model`")
    kind = str(model.get("_target_", "")).rpartition(".")[2]
    if any(other in kind for other in ("Mamba", "Hybrid", "VL", "T5", "Vision", "Diffusion", "DiT")):
        raise CannotRead(
            f"{name}: Megatron-Bridge's {kind} is no decoder-only transformer. Next: a spec with `kind: command` "
            "(docs/how-to/workloads.md)"
        )
    return _Reading(name, document, {**model, **_section(model, "transformer")}).imported()


def _section(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = document.get(name)
    return found if isinstance(found, Mapping) else {}


class _Reading:
    """A saved configuration being read. model: its section, that of a nested transformer laid over it."""

    def __init__(self, name: str, document: Mapping[str, Any], model: Mapping[str, Any]) -> None:
        self.name, self.model = name, model
        self.train, self.ddp = _section(document, "train"), _section(document, "ddp")
        self.notes: list[str] = []
        self.questions: list[Question] = []

    def ask(self, path: str, text: str) -> None:
        self.questions.append(Question(path, f"{self.name}: {text}"))

    def size(self, section: Mapping[str, Any], key: str, path: str) -> int | None:
        value = section.get(key)
        if type(value) is int and value > 0:
            return value
        self.ask(path, f"{key} {value!r} is no whole number; fill in what training uses")
        return None

    def imported(self) -> Imported:
        model, plan, workload = self.shapes(), self.plan(), self.workload()
        batch = self.size(self.train, "global_batch_size", "global_batch_size")
        fixed = {field: value for field, value in plan.items() if field not in (*_DEGREES, "micro_batch_size")}
        self.ask("workload.command", f"how the recipe is started is not said; it must end in {' '.join(_OVERRIDES)}")
        self.ask("cluster.nodes", "the configuration does not say on how many devices it runs")
        self.notes.append(f"{self.name}: trials may take {TIME_LIMIT_S // 60} minutes: a start takes 2 to 10")
        return Imported(
            workload={**workload, "fixed": fixed},
            model=model,
            plan=plan,
            global_batch_size=batch,
            trial={"time_limit_s": TIME_LIMIT_S},
            questions=tuple(self.questions),
            notes=tuple(self.notes),
        )

    def shapes(self) -> dict[str, Any]:
        get = self.model.get
        found: dict[str, Any] = {
            field: self.size(self.model, key, f"model.{field}")
            for field, key in _SIZES.items()
            if field != "kv_heads" or get(key) is not None
        }
        # models/gpt_provider.py, provide.
        if get("should_pad_vocab") is True:
            found["vocab_multiple"] = self.size(self.model, "make_vocab_size_divisible_by", "model.vocab_multiple")
        activation = str(_section(self.model, "activation_func").get("_target_", "")).rpartition(".")[2]
        gated = {(True, "silu"): "swiglu", (False, "gelu"): "gelu"}
        found["activation"] = gated.get((get("gated_linear_unit") is True, activation))
        found["norm"] = {"RMSNorm": "rmsnorm", "LayerNorm": "layernorm"}.get(str(get("normalization")))
        found["position"] = {"rope": "rope", "learned_absolute": "learned"}.get(str(get("position_embedding_type")))
        for field in ("activation", "norm", "position"):
            if found[field] is None:
                self.ask(f"model.{field}", f"its {field} is none that meshtune knows")
        tied = get("share_embeddings_and_output_weights")
        if isinstance(tied, bool):
            found["tied_head"] = tied
        else:
            self.ask("model.tied_head", "share_embeddings_and_output_weights is not said")
        if get("num_moe_experts"):
            found["experts"] = self.size(self.model, "num_moe_experts", "model.experts")
            found["top_k"] = self.size(self.model, "moe_router_topk", "model.top_k")
            if get("moe_ffn_hidden_size"):
                found["ffn"] = self.size(self.model, "moe_ffn_hidden_size", "model.ffn")
        for key in _OTHER:
            if get(key) not in (None, False, 1):
                self.notes.append(f"{self.name}: {key} {get(key)!r} stays as it is, but predictions do not know it")
        chunks = (get("pipeline_model_parallel_size") or 1) * (get("virtual_pipeline_model_parallel_size") or 1)
        # Of two chunks both ends together say nothing, and of more they would.
        counted = [key for key in _COUNTED if get(key)] if chunks <= 2 else []
        if uneven := [key for key in (*_UNEVEN, *counted) if get(key)]:
            self.ask("", f"{', '.join(uneven)}: uneven stages fit this pp alone: keep it, or take them out")
        return {field: value for field, value in found.items() if value is not None}

    def plan(self) -> dict[str, Any]:
        get = self.model.get
        found: dict[str, Any] = {
            field: self.size(self.model, key, f"baseline.{field}") for field, key in _DEGREES.items()
        }
        found["micro_batch_size"] = self.size(self.train, "micro_batch_size", "baseline.micro_batch_size")
        found["sequence_parallel"] = found["tp"] == 1 or get("sequence_parallel") is True
        chunks = get("virtual_pipeline_model_parallel_size")
        if type(chunks) is int and chunks > 1:
            found |= {"vpp": chunks, "schedule": "interleaved"}
        if (found["pp"] or 1) * (chunks if type(chunks) is int else 1) > 2:
            ends = zip(("first_stage_less_layers", "last_stage_less_layers"), _COUNTED, strict=True)
            found |= {field: 1 for field, key in ends if get(key)}
        found["zero_stage"] = self.zero_stage()
        recompute = get("recompute_granularity")
        if recompute in ("full", "selective"):
            found["recompute"] = recompute
            if recompute == "full" and (
                get("recompute_method") == "block" or get("recompute_num_layers") not in (None, 1)
            ):
                self.ask(
                    "baseline.recompute_interval", "not every layer recomputes by itself; say one in how many does"
                )
        elif recompute is not None:
            self.ask("baseline.recompute", f"recompute_granularity {recompute!r} is none that meshtune knows")
        if (found["cp"] or 1) > 1:
            kinds = {word: str(kind) for kind, word in CONTEXTS.items()} | {None: "ring"}
            found["context"] = kinds.get(get("cp_comm_type"))
            if found["context"] is None:
                self.ask("baseline.context", f"cp_comm_type {get('cp_comm_type')!r} is none that meshtune knows")
        return {field: value for field, value in found.items() if value is not None}

    def zero_stage(self) -> int | None:
        if self.ddp.get("use_megatron_fsdp") is True:
            stages = {name: stage for stage, name in SHARDINGS.items()} | {"no_shard": 0, "optim": 1}
            stage = stages.get(str(self.ddp.get("data_parallel_sharding_strategy")))
        else:
            stage = {True: 1, False: 0}.get(self.ddp.get("use_distributed_optimizer", ""))
        if stage is None:
            self.ask("baseline.zero_stage", "neither use_distributed_optimizer nor a sharding strategy is said")
        return stage

    def workload(self) -> dict[str, Any]:
        formats = {"bf16": Dtype.BFLOAT16, "fp16": Dtype.FLOAT16}
        said = [dtype for key, dtype in formats.items() if self.model.get(key) is True]
        dtype = said[0] if len(said) == 1 else Dtype.FLOAT32
        known = len(said) == 1 or all(self.model.get(key) is False for key in formats)
        if not known:
            self.ask("workload.dtype", "bf16 and fp16 of the model do not say one number format")
        format = {"dtype": str(dtype), "framework": f"trainer-{dtype}"} if known else {}
        return {"kind": "command", "log": dict(_LOG), "steps": 25, "warmup_steps": 5, **format}
