"""Torch's own count of the bytes of one training step by TRL on a CPU: parameters, gradients, state of the optimizer,
and what autograd keeps for the backward pass where the loss is known. One case of `full`, `lora` (both SFT) and `dpo`
with a reference model; the result is one line of JSON. By hand: python trl_memory.py lora --sequence 256"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tiny_models import save_dataset, save_model

CASES = ("full", "lora", "dpo")
SHAPES = {"layers": 4, "hidden": 128, "heads": 4, "kv_heads": 2, "ffn": 384, "vocab": 1024}
_NAMES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
}


class _Kept:
    """A tensor that a node of the graph holds for its backward pass."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def stored_bytes(tensors: Iterable[torch.Tensor], but: Iterable[torch.Tensor] = ()) -> int:
    """Bytes of the storages of `tensors`, each once, without those of `but`."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    for tensor in but:
        storages.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(storages.values())


def counted(
    folder: Path,
    case: str,
    *,
    dtype: str = "float32",
    autocast: bool = False,
    checkpointing: bool = False,
    attention: str = "sdpa",
    batch: int = 2,
    sequence: int = 128,
    rank: int = 8,
    targets: str = "all-linear",
    **shapes: int,
) -> dict[str, Any]:
    """The count for one step of `batch` sequences (DPO: pairs) of `sequence` tokens each. dtype: of the weights as they
    are loaded; autocast: whether products are in bfloat16. rank and targets: of LoRA. folder: for files; empty."""
    from datasets import load_dataset
    from peft import LoraConfig
    from transformers import AutoTokenizer, TrainerCallback
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

    shapes = {**SHAPES, **shapes}
    model = str(save_model(folder / "model", **{_NAMES[name]: size for name, size in shapes.items()}))
    # SFT appends one token, the end of the text, and so do the answers of DPO.
    words = save_dataset(folder / "data", rows=batch, words=sequence - 1, pairs=case == "dpo")
    count: dict[str, Any] = {}

    class Counting(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, **named: Any) -> None:
            grown = [one.grad for one in named["model"].parameters() if one.grad is not None]
            count["gradients"] = stored_bytes(grown)

        def on_step_end(self, *_: Any, **named: Any) -> None:
            state = named["optimizer"].state.values()
            count["optimizer"] = stored_bytes(
                one for each in state for one in each.values() if isinstance(one, torch.Tensor)
            )

    config, trainer_class = (DPOConfig, DPOTrainer) if case == "dpo" else (SFTConfig, SFTTrainer)

    class Counted(trainer_class):  # type: ignore[misc, valid-type]
        def compute_loss(self, model: Any, inputs: Any, *more: Any, **named: Any) -> Any:
            alive: weakref.WeakSet[_Kept] = weakref.WeakSet()

            def keep(tensor: torch.Tensor) -> _Kept:
                kept = _Kept(tensor)
                alive.add(kept)
                return kept

            with torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept.tensor):
                loss = super().compute_loss(model, inputs, *more, **named)
            reference = getattr(self, "ref_model", None)
            own = [*model.parameters(), *model.buffers()]
            others = [*reference.parameters(), *reference.buffers()] if reference else []
            count["parameters"] = stored_bytes(model.parameters())
            count["trainable"] = stored_bytes(one for one in model.parameters() if one.requires_grad)
            count["reference"] = stored_bytes(reference.parameters()) if reference else 0
            count["saved"] = stored_bytes((one.tensor for one in alive), [*own, *others])
            parts = Counter[str]()
            for storage in {one.tensor.untyped_storage().data_ptr(): one.tensor for one in alive}.values():
                parts[str(storage.dtype).removeprefix("torch.")] += stored_bytes([storage], [*own, *others])
            count["saved_by_dtype"] = {name: size for name, size in parts.items() if size}
            count["tokens"] = list(inputs["input_ids"].shape)
            return loss

    arguments = config(
        output_dir=str(folder / "output"),
        per_device_train_batch_size=batch,
        max_steps=1,
        max_length=sequence,
        bf16=autocast,
        gradient_checkpointing=checkpointing,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        model_init_kwargs={"dtype": dtype, "attn_implementation": attention},
    )
    lora = LoraConfig(r=rank, target_modules=targets, lora_dropout=0.0, task_type="CAUSAL_LM")
    trainer = Counted(
        model=model,
        args=arguments,
        train_dataset=load_dataset(str(words), split="train", cache_dir=str(folder / "cache")),
        processing_class=AutoTokenizer.from_pretrained(model),
        peft_config=lora if case == "lora" else None,
        callbacks=[Counting()],
    )
    trainer.train()
    return {"case": case, "dtype": dtype, "autocast": autocast, "checkpointing": checkpointing, **shapes, **count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="+", choices=CASES)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--autocast", action="store_true")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--attention", default="sdpa")
    parser.add_argument("--targets", default="all-linear")
    for name, size in {"batch": 2, "sequence": 128, "rank": 8, **SHAPES}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=size)
    given = vars(parser.parse_args())
    for case in given.pop("cases"):
        with tempfile.TemporaryDirectory() as folder:
            sys.stdout.write(f"{json.dumps(counted(Path(folder), case, **given))}\n")


if __name__ == "__main__":
    main()
