"""A language model and a dataset that a program of the Hugging Face stack loads by their folders, made without a
network: random weights, a tokenizer of whole words, and sentences of these words."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

# Words by which a sentence of a dataset is made.
VOCABULARY = [f"w{number}" for number in range(250)]
SPECIAL = ["<pad>", "<eos>", "<unk>"]


def save_model(folder: Path, **shapes: Any) -> Path:
    """A Llama with random weights in `folder`, with its tokenizer. shapes: fields of its configuration."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({word: at for at, word in enumerate([*SPECIAL, *VOCABULARY])}, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", model_max_length=4096
    )
    given = {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 192,
        "vocab_size": 256,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": None,
        **shapes,
    }
    torch.manual_seed(0)
    dtype = given.pop("dtype", torch.float32)
    AutoModelForCausalLM.from_config(LlamaConfig(**given), dtype=dtype).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_dataset(folder: Path, *, rows: int, words: int, pairs: bool = False) -> Path:
    """JSON lines in `folder`, each a sentence of `words` words; pairs: of a prompt with two answers, which are as long
    together with it."""
    source = random.Random(0)

    def sentence(length: int) -> str:
        return " ".join(source.choices(VOCABULARY, k=length))

    prompt = words // 2
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        {
            "prompt": sentence(prompt),
            "chosen": f" {sentence(words - prompt)}",
            "rejected": f" {sentence(words - prompt)}",
        }
        if pairs
        else {"text": sentence(words)}
        for _ in range(rows)
    ]
    (folder / "train.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder
