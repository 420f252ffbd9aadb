"""One part of the kit, in a process of its own: `python part.py NAME FOLDER --seconds N [--cuda]`.

It writes `result.json` in FOLDER: {"status", "reason", "result"}. What it keeps in `progress.json` meanwhile is not
done again by the next run."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from budget import DONE, PARTIAL, SKIPPED

# "module:function(Work)", which returns the result; imported on use: under Python 3.10 there is no tuner.
FUNCTIONS = {
    "doctor": "tuner_parts:doctor",
    "probe": "trainer_parts:probe",
    "correctness": "trainer_parts:correctness",
    "campaign-0.4b-bfloat16": "tuner_parts:campaign",
    "campaign-0.4b-compiled": "tuner_parts:campaign",
    "campaign-1.3b-compiled": "tuner_parts:campaign",
    "campaign-0.4b-float32": "tuner_parts:campaign",
    "deepspeed-0.4b": "deepspeed_part:autotune",
}
# Shapes of GPT-2 medium and of GPT-3 XL (Brown et al. 2020, table 2.1). The tiny one is for machines without a device.
MODELS = {
    "0.4b": {"layers": 24, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 50304, "seq_len": 1024},
    "1.3b": {"layers": 24, "hidden": 2048, "heads": 16, "ffn": 8192, "vocab": 50304, "seq_len": 1024},
    "tiny": {"layers": 2, "hidden": 64, "heads": 4, "ffn": 256, "vocab": 512, "seq_len": 64},
}
SHAPE = {"norm": "layernorm", "activation": "gelu", "position": "learned", "tied_head": True}


class Skipped(Exception):
    """The part cannot run here; the message says why."""


class Work:
    """One part's folder, time and device."""

    def __init__(self, name: str, folder: Path, seconds: float, cuda: bool) -> None:
        self.name, self.folder, self.cuda = name, folder, cuda
        self._end = time.monotonic() + seconds
        self._kept = folder / "progress.json"
        self.partial = ""

    @property
    def left_s(self) -> float:
        return self._end - time.monotonic()

    def once(self, key: str, measure: Callable[[], Any]) -> Any:
        """What `measure` returns, kept; of an earlier run where it is there."""
        known = json.loads(self._kept.read_text(encoding="utf-8")) if self._kept.exists() else {}
        if key not in known:
            known[key] = measure()
            draft = self._kept.with_name(f".progress.{os.getpid()}")
            draft.write_text(json.dumps(known, indent=1), encoding="utf-8")
            draft.replace(self._kept)
        return known[key]

    def model(self) -> dict[str, Any]:
        """The model that the part's name says; without a device a tiny one in its place."""
        name = self.name.split("-")[1] if self.cuda else "tiny"
        return {"name": name, **MODELS[name], **SHAPE}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="part.py")
    parser.add_argument("name", choices=FUNCTIONS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--cuda", action="store_true")
    arguments = parser.parse_args(argv)
    work = Work(arguments.name, arguments.folder, arguments.seconds, arguments.cuda)
    module, _, function = FUNCTIONS[arguments.name].partition(":")
    try:
        result = getattr(import_module(module), function)(work)
        told = {"status": PARTIAL if work.partial else DONE, "reason": work.partial, "result": result}
    except Skipped as why:
        told = {"status": SKIPPED, "reason": str(why), "result": {}}
    except subprocess.TimeoutExpired as late:
        told = {"status": PARTIAL, "reason": f"ended after {late.timeout:.0f} s; the next run goes on", "result": {}}
    draft = work.folder / ".result.json"
    draft.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    draft.replace(work.folder / "result.json")
    return 0


if __name__ == "__main__":
    # Else this module would be there twice, with two classes of each name.
    sys.modules["part"] = sys.modules["__main__"]
    sys.exit(main(sys.argv[1:]))
