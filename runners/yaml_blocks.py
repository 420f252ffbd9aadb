"""YAML for people."""

from __future__ import annotations

from typing import Any

import yaml


class BlockDumper(yaml.SafeDumper):
    """Writes texts of several lines, such as shell scripts, as they are read, and no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


BlockDumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)
