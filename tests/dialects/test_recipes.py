"""What is trained, as each program's launch says it: the section `training`, of which a spec can be made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_lab import run_meshtune

from meshtune.search_spaces.recipe import Adapter, Companion, Recipe, Target
from meshtune.tuner.specs.document import parse_yaml
from meshtune.tuner.specs.read import read_spec

LINEAR = ("q", "k", "v", "o", "gate", "up", "down")
BATCH = "--per_device_train_batch_size 2 --gradient_accumulation_steps 4"
TRL = f"--dataset_name house/talk --max_length 2048 --gradient_checkpointing True --bf16 True {BATCH}"
LLAMA = "--model_name_or_path meta-llama/Llama-3.1-8B"
FACTORY = (
    f"llamafactory-cli train --model_name_or_path Qwen/Qwen3-8B --dataset talk --template qwen3 --bf16 True {BATCH}"
)
SWIFT = f"--model Qwen/Qwen3-8B --dataset talk.jsonl --torch_dtype bfloat16 --max_length 2048 {BATCH}"
AXOLOTL = {
    "base_model": "meta-llama/Llama-3.1-8B",
    "datasets": [{"path": "house/talk", "type": "chat_template"}],
    "sequence_len": 2048,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "bf16": True,
}
TUNE = {
    "tokenizer": {"_component_": "torchtune.models.llama3.llama3_tokenizer", "max_seq_len": 2048},
    "model": {"_component_": "torchtune.models.llama3_1.llama3_1_8b"},
    "checkpointer": {"_component_": "torchtune.training.FullModelHFCheckpointer"},
    "dataset": {"_component_": "torchtune.datasets.alpaca_dataset"},
    "batch_size": 2,
    "gradient_accumulation_steps": 4,
    "dtype": "bf16",
}


def lora(rank: int, targets: tuple[str, ...] = LINEAR, **more: Any) -> Adapter:
    return Adapter(rank=rank, targets=tuple(map(Target, targets)), **more)


def reference(**more: Any) -> tuple[Companion, ...]:
    return (Companion(role="reference", **more),)


@pytest.fixture
def imported(tmp_path, monkeypatch) -> Any:
    """The document that a script, beside these files, is imported as."""

    def of(line: str, files: Mapping[str, Any] | None = None) -> dict[str, Any]:
        monkeypatch.chdir(tmp_path)
        for name, content in {**(files or {}), "run.sh": f"#!/bin/bash\nexport NPROC_PER_NODE=4\n{line}\n"}.items():
            Path(name).write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        result = run_meshtune(tmp_path, "import", "run.sh")
        assert result.code == 0, result.err
        return parse_yaml(result.out)

    return of


def recipe_of(document: dict[str, Any]) -> Recipe:
    """As the spec is read with devices."""
    ready = {**document, "cluster": {"preset": "dgx-h100", "nodes": 1}, "global_batch_size": 64, "baseline": None}
    ready["workload"] = {key: value for key, value in document["workload"].items() if value is not None}
    ready.pop("open_questions", None)
    return read_spec({key: value for key, value in ready.items() if value is not None}, None)[0].training


READ: dict[str, tuple[str, dict[str, Any], Recipe]] = {
    # ModelConfig: 16, .05, float32 weights, PEFT's q and v.
    "trl": (
        f"accelerate launch --multi_gpu --num_processes 4 trl/scripts/sft.py {LLAMA} {TRL} --use_peft",
        {},
        Recipe(adapter=lora(16, ("q", "v"), dropout=0.05), base_bits=32),
    ),
    "trl without adapters": (
        f"torchrun --nproc_per_node 4 trl/scripts/sft.py {LLAMA} {TRL} --lora_r 8 --optim adamw_8bit "
        "--use_liger_kernel",
        {},
        Recipe(optimizer="adamw_8bit", fused_loss=True),
    ),
    "trl by a file, quantized": (
        "torchrun --nproc_per_node 4 -m trl.scripts.sft --config own.yaml --lora_dropout 0",
        {
            "own.yaml": {
                "model_name_or_path": "Qwen/Qwen3-8B",
                "dataset_name": "house/talk",
                "max_length": 2048,
                "gradient_checkpointing": True,
                "bf16": True,
                "per_device_train_batch_size": 2,
                "dtype": "bfloat16",
                "use_peft": True,
                "lora_r": 64,
                "lora_target_modules": ["q_proj", "self_attn.k_proj", "v_proj", "o_proj"],
                "lora_modules_to_save": ["lm_head", "embed_tokens"],
                "use_dora": True,
                "load_in_4bit": True,
                "use_bnb_nested_quant": True,
                "activation_offloading": True,
                "optim": "paged_adamw_32bit",
            }
        },
        Recipe(
            adapter=lora(64, ("q", "k", "v", "o"), dora=True, bits=16, copies_inputs=False),
            base_bits=4,
            trained_ends=True,
            optimizer="paged_adamw",
            offload_activations=True,
        ),
    ),
    "the example of PEFT, quantized": (
        f"torchrun --nproc_per_node 4 train.py {LLAMA} --max_seq_length 2048 --gradient_checkpointing True --bf16 True "
        f"{BATCH} --use_peft_lora True --lora_r 8 --lora_dropout 0 --lora_target_modules q_proj,v_proj "
        "--use_4bit_quantization True --use_nested_quant True --bnb_4bit_compute_dtype bfloat16",
        {},
        Recipe(adapter=lora(8, ("q", "v")), base_bits=4, plain_bits=32),
    ),
    "trl, preferences": (
        f"torchrun --nproc_per_node 4 -m trl.scripts.dpo {LLAMA} {TRL}",
        {},
        Recipe(rows_per_sample=2, beside=reference(bits=32)),
    ),
    "trl, preferences with stored answers": (
        f"torchrun --nproc_per_node 4 -m trl.scripts.dpo {LLAMA} {TRL} --precompute_ref_log_probs True",
        {},
        Recipe(rows_per_sample=2, beside=reference(bits=0, runs=False)),
    ),
    "trl, preferences with adapters": (
        f"torchrun --nproc_per_node 4 -m trl.scripts.kto {LLAMA} {TRL} --use_peft --lora_r 8 --dtype bfloat16 "
        "--lora_target_modules all-linear --load_in_8bit",
        {},
        Recipe(adapter=lora(8, dropout=0.05, bits=16), base_bits=8, beside=reference(bits=0)),
    ),
    "trl, reward": (
        f"torchrun --nproc_per_node 4 -m trl.scripts.reward {LLAMA} {TRL}",
        {},
        Recipe(rows_per_sample=2),
    ),
    "a script of PEFT": (
        f"torchrun --nproc_per_node 4 tune.py {LLAMA} {TRL} --use_lora True --lora_rank 4 --load_in_4bit True "
        "--lora_target_modules query_key_value,dense --optim lion_8bit",
        {},
        Recipe(adapter=lora(4, ("q", "k", "v", "o")), base_bits=4, plain_bits=32, optimizer="lion_8bit"),
    ),
    "a script with a smaller teacher": (
        f"torchrun --nproc_per_node 4 distill.py {LLAMA} {TRL} --teacher_model meta-llama/Llama-3.1-70B",
        {},
        Recipe(beside=(Companion(role="teacher", parameters=70_553_706_496),)),
    ),
    "axolotl": (
        "axolotl train own.yaml",
        {
            "own.yaml": {
                **AXOLOTL,
                "adapter": "qlora",
                "load_in_4bit": True,
                "lora_r": 32,
                "lora_target_linear": True,
                "lora_modules_to_save": ["embed_tokens", "lm_head"],
                "peft_use_dora": True,
                "optimizer": "paged_adamw_8bit",
                "gradient_checkpointing": "offload",
                "cut_cross_entropy": True,
                "sample_packing": True,
                "deepspeed": "deepspeed_configs/zero2.json",
            }
        },
        Recipe(
            adapter=lora(32, dora=True),
            base_bits=4,
            trained_ends=True,
            optimizer="paged_adamw_8bit",
            offload="optimizer",
            offload_activations=True,
            fused_loss=True,
        ),
    ),
    "axolotl, preferences": (
        "axolotl train own.yaml",
        {
            "own.yaml": {
                **AXOLOTL,
                "rl": "dpo",
                "adapter": "lora",
                "load_in_8bit": True,
                "lora_r": 16,
                "lora_dropout": 0.1,
                "lora_target_modules": ["gate_proj", "down_proj", "up_proj"],
            }
        },
        Recipe(
            adapter=lora(16, ("gate", "up", "down"), dropout=0.1),
            base_bits=8,
            rows_per_sample=2,
            beside=reference(bits=0),
        ),
    ),
    "LLaMA-Factory": (
        f"{FACTORY} --stage sft --quantization_bit 4 --use_dora True --additional_target embed_tokens,lm_head "
        "--enable_liger_kernel True --use_unsloth_gc True --optim adafactor",
        {},
        Recipe(
            adapter=lora(8, dora=True),
            base_bits=4,
            trained_ends=True,
            optimizer="adafactor",
            fused_loss=True,
            offload_activations=True,
        ),
    ),
    "LLaMA-Factory, layers": (
        f"{FACTORY} --stage sft --finetuning_type freeze --freeze_trainable_layers 6 --freeze_extra_modules lm_head",
        {},
        Recipe(frozen_layers=30, frozen_embedding=True),
    ),
    "LLaMA-Factory, preferences": (
        f"{FACTORY} --stage kto --finetuning_type full --use_muon True",
        {},
        Recipe(optimizer="muon", beside=reference()),
    ),
    "LLaMA-Factory, preferences without a reference": (
        f"{FACTORY} --stage dpo --pref_loss simpo --lora_target q_proj,v_proj --lora_rank 16 "
        "--enable_liger_kernel True",
        {},
        Recipe(adapter=lora(16, ("q", "v")), rows_per_sample=2),
    ),
    "ms-swift": (
        f"swift sft {SWIFT} --tuner_type lora --target_modules all-linear --lora_rank 64 "
        "--quant_method bnb --quant_bits 4 --lora_dtype bfloat16 --lora_dropout 0 --freeze_vit true "
        "--optim paged_adamw_8bit --deepspeed zero3_offload",
        {},
        Recipe(
            adapter=lora(64, bits=16, copies_inputs=False),
            base_bits=4,
            optimizer="paged_adamw_8bit",
            offload="weights",
        ),
    ),
    "ms-swift, preferences": (
        f"swift rlhf {SWIFT} --train_type full",
        {},
        Recipe(rows_per_sample=2, beside=reference()),
    ),
    "ms-swift, reward": (
        f"swift rlhf {SWIFT} --rlhf_type rm --train_type lora --target_modules q_proj k_proj",
        {},
        Recipe(adapter=lora(8, ("q", "k"), dropout=0.05), rows_per_sample=2),
    ),
    "torchtune": (
        "tune run --nproc_per_node 4 lora_finetune_distributed --config own.yaml",
        {
            "own.yaml": {
                **TUNE,
                "model": {
                    "_component_": "torchtune.models.llama3_1.qlora_llama3_1_8b",
                    "lora_attn_modules": ["q_proj", "v_proj", "output_proj"],
                    "apply_lora_to_mlp": True,
                    "lora_rank": 48,
                    "lora_dropout": 0.0,
                },
                "optimizer": {"_component_": "bitsandbytes.optim.PagedAdamW8bit"},
                "loss": {"_component_": "torchtune.modules.loss.LinearCrossEntropyLoss"},
                "enable_activation_offloading": True,
            }
        },
        Recipe(
            adapter=lora(48, ("q", "v", "o", "gate", "up", "down"), bits=16, copies_inputs=False, dropout=0.0),
            base_bits=4,
            optimizer="paged_adamw_8bit",
            fused_loss=True,
            offload_activations=True,
        ),
    ),
    "torchtune, preferences": (
        "tune run --nproc_per_node 4 full_dpo_distributed --config own.yaml",
        {"own.yaml": {**TUNE, "fsdp_cpu_offload": True}},
        Recipe(offload="weights", rows_per_sample=2, beside=reference()),
    ),
    "OpenRLHF": (
        "deepspeed --num_gpus 4 --module openrlhf.cli.train_rm --pretrain Qwen/Qwen3-8B --max_len 2048 --lora_rank 24 "
        "--load_in_4bit --adam_offload --train_batch_size 64",
        {},
        Recipe(adapter=lora(24, bits=16), base_bits=4, offload="optimizer", rows_per_sample=2),
    ),
    "verl": (
        "torchrun --nproc_per_node 4 -m verl.trainer.fsdp_sft_trainer model.partial_pretrain=Qwen/Qwen3-8B "
        "model.lora_rank=32 data.max_length=2048 data.train_batch_size=64",
        {},
        Recipe(adapter=lora(32)),
    ),
}


@pytest.mark.parametrize("name", READ)
def test_what_is_trained_is_read_and_a_spec_takes_it(name, imported):
    line, files, recipe = READ[name]
    document = imported(line, files)
    assert recipe_of(document) == recipe
    told = " ".join(document.get("open_questions", ()))
    assert "training" not in told
    assert "predictions count" not in told


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--use_peft --lora_target_modules '.*attn.(q|v)_proj'", "training.adapter.targets: "),
        ("--use_peft --lora_target_modules q_proj k_odd", "k_odd is no name of modules known here"),
        ("--use_peft --lora_target_parameters experts.w", "an adapter of parameters or of some layers"),
        ("--use_peft --lora_r many", "training.adapter.rank: "),
    ],
)
def test_what_stays_unknown_of_adapters_is_asked(line, told, imported):
    document = imported(f"torchrun --nproc_per_node 4 -m trl.scripts.sft {LLAMA} {TRL} {line}")
    assert any(told in question for question in document["open_questions"])


def test_trl_recomputes_where_nobody_says_which_is_to_be_confirmed(imported):
    document = imported(f"trl sft {LLAMA} {TRL}".replace("--gradient_checkpointing True ", ""))
    assert document["baseline"]["recompute"] == "full"
    assert [text for text in document["open_questions"] if "recompute full: TRL recomputes" in text]


def test_adapters_of_another_kind_and_a_teacher_of_unknown_size_are_asked(imported):
    (question,) = imported(f"swift sft {SWIFT} --tuner_type ia3")["open_questions"]
    assert "adapters of another kind than LoRA" in question
    document = imported(f"swift rlhf {SWIFT} --rlhf_type gkd --train_type full --teacher_model house/large")
    assert any("teacher of unknown size" in question for question in document["open_questions"])
    assert document["training"]["beside"] == [{"role": "teacher"}]


def test_an_optimizer_that_is_not_known_is_noted_and_counted_as_adamw(imported):
    document = imported(f"torchrun --nproc_per_node 4 -m trl.scripts.sft {LLAMA} {TRL} --optim grokadamw")
    assert "training" not in document


def test_adapters_of_named_modules_are_those_of_experts_too(imported):
    line = f"swift sft {SWIFT} --target_modules down_proj".replace("Qwen3-8B", "Qwen3-30B-A3B")
    assert recipe_of(imported(line)).adapter == lora(8, ("down", "experts"), dropout=0.05)
