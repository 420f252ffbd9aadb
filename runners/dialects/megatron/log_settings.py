"""What else a Megatron log says beside its arguments: the vocabulary, and the settings that DeepSpeed prints."""

from __future__ import annotations

import re

# megatron/tokenizer/tokenizer.py, _vocab_size_with_padding (Megatron-DeepSpeed 4efb479d; Megatron-LM alike).
_VOCABULARY = re.compile(r"> padded vocab \(size: (\d{1,9})\) with \d+ dummy tokens")
# deepspeed/runtime/config.py, print_user_config, 0.19.8: the settings as sorted JSON after `json = `.
_SETTINGS = re.compile(r"^(?P<before>.*?)\bjson = \{", re.MULTILINE)
_RANK = re.compile(r"^\s*(?:\[[^\]\n]{1,40}\]:?|\d{1,6}:|[\w.-]{1,64}: )\s?")
_MAX_SETTINGS = 2_000


def vocabulary(text: str) -> int | None:
    """The tokenizer's words, without padding."""
    found = _VOCABULARY.search(text)
    return int(found[1]) if found else None


def deepspeed_settings(text: str) -> str:
    """DeepSpeed's settings as JSON, "" where the log has none whole."""
    starts = list(_SETTINGS.finditer(text))
    if not starts:
        return ""
    lines = text[starts[-1].end() - 1 :].splitlines()[:_MAX_SETTINGS]
    stripped = [lines[0], *(_RANK.sub("", line) if '"' not in line.split(":")[0] else line for line in lines[1:])]
    end = next((index for index, line in enumerate(stripped) if line.rstrip() == "}"), None)
    return "" if end is None else "\n".join(stripped[: end + 1])
