"""Trains a causal language model from scratch by Hugging Face's Trainer, on random tokens: a script as people have
them. Nothing of it is meshtune's. By hand: bash launch.sh"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.utils.data import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments


@dataclass
class ScriptArguments:
    config_name: str = field(metadata={"help": "folder with the model's config.json"})
    block_size: int = field(default=64, metadata={"help": "tokens per sequence"})
    attn_implementation: str = field(default="sdpa", metadata={"help": "sdpa, eager, flash_attention_2 ..."})


class RandomTokens(Dataset[dict[str, torch.Tensor]]):
    """Sequences that depend on their place alone, so that every layout sees the same ones."""

    def __init__(self, vocab: int, block_size: int) -> None:
        self.vocab, self.block_size = vocab, block_size

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        source = torch.Generator().manual_seed(index)
        tokens = torch.randint(self.vocab, (self.block_size,), generator=source)
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    script, arguments = HfArgumentParser((ScriptArguments, TrainingArguments)).parse_args_into_dataclasses()
    config = AutoConfig.from_pretrained(script.config_name)
    torch.manual_seed(arguments.seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=script.attn_implementation)
    Trainer(model=model, args=arguments, train_dataset=RandomTokens(config.vocab_size, script.block_size)).train()


if __name__ == "__main__":
    main()
