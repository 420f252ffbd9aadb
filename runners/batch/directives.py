"""The lines of a batch script that are for its scheduler: `#SBATCH`, `#PBS`."""

from __future__ import annotations

from meshtune.runners.untrusted_text import read_words


def directives(script: str, keyword: str) -> list[str]:
    """The words after `#KEYWORD` in the head of a script, up to its first command. Raises UnreadableText."""
    found: list[str] = []
    for line in script.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if line.startswith(f"#{keyword} "):
            found += read_words(line[len(keyword) + 2 :], comments=True)
    return found
