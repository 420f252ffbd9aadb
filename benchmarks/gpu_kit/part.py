"""One part of the kit, in a process of its own: `python part.py NAME FOLDER --seconds N --cluster FILE`.

It writes `result.json` in FOLDER: {"status", "reason", "result"}; before its end {"result"} alone, as far as it is."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

# "module:function(Work)"; imported on use, so that what one part lacks is no other's trouble.
FUNCTIONS = {
    "machine": "machine_part:machine",
    "reference": "speed_parts:reference",
    "probe": "machine_part:probe",
    "trials": "campaign_parts:trials",
    "shapes": "speed_parts:shapes",
    "campaign": "campaign_parts:campaign",
    "huggingface": "campaign_parts:huggingface",
    "correctness": "correctness_part:correctness",
    "further": "speed_parts:further",
    "mixture": "speed_parts:mixture",
}
_LLAMA = {"norm": "rmsnorm", "activation": "swiglu", "position": "rope", "tied_head": False, "vocab": 32000}
_GPT = {"norm": "layernorm", "activation": "gelu", "position": "learned", "tied_head": True, "vocab": 50304}
# The widths of GPT-3 XL and 2.7B (Brown et al. 2020, table 2.1), with Llama's layers and with its own; a mixture; and
# for the Trainer, which compiles all layers as one graph, a Llama with few of them.
MODELS: dict[str, dict[str, Any]] = {
    "llama-1.3b": {"layers": 24, "hidden": 2048, "heads": 16, "ffn": 5504, "seq_len": 2048, **_LLAMA},
    "llama-2.7b": {"layers": 32, "hidden": 2560, "heads": 20, "ffn": 6912, "seq_len": 4096, **_LLAMA},
    "gpt-1.3b": {"layers": 24, "hidden": 2048, "heads": 16, "ffn": 8192, "seq_len": 2048, **_GPT},
    "mixture": {"layers": 12, "hidden": 1024, "heads": 16, "ffn": 2816, "seq_len": 1024, **_LLAMA}
    | {"experts": 8, "top_k": 2},
    "llama-0.36b": {"layers": 11, "hidden": 1536, "heads": 12, "ffn": 4096, "seq_len": 1024, **_LLAMA}
    | {"tied_head": True},
}
# Without a device, and for correctness.
TINY = {"layers": 2, "hidden": 64, "heads": 4, "ffn": 192, "seq_len": 64, "vocab": 512}


class Work:
    """One part's folder, time and device. device: its name, empty for the CPU. cluster: the probe's file. result: what
    is known so far, with `summary`, the lines for people."""

    def __init__(self, folder: Path, seconds: float, cluster: Path, device: str) -> None:
        self.folder, self.cluster, self.device = folder, cluster, device
        self._end = time.monotonic() + seconds
        self.result: dict[str, Any] = {"summary": []}
        self.status, self.reason = "done", ""

    @property
    def left_s(self) -> float:
        return self._end - time.monotonic()

    @property
    def cuda(self) -> bool:
        return bool(self.device)

    def model(self, name: str) -> dict[str, Any]:
        """A model section; without a device a tiny one of the same kind."""
        return {"name": name, **MODELS[name], **({} if self.cuda else TINY)}

    def end(self, status: str, reason: str) -> None:
        """What became of the part: "cut" or "failed", and why; the last word counts."""
        self.status, self.reason = status, reason[-1000:]

    def keep(self, key: str, value: Any, summary: str = "") -> None:
        """Add to the result, which is on disk from then on."""
        self.result[key] = value
        if summary:
            self.result["summary"].append(summary)
            sys.stdout.write(f"{summary}\n")
        self.write({"result": self.result})

    def write(self, document: dict[str, Any]) -> None:
        draft = self.folder / f".result.{os.getpid()}"
        draft.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        draft.replace(self.folder / "result.json")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="part.py")
    parser.add_argument("name", choices=FUNCTIONS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--cluster", type=Path, required=True)
    parser.add_argument("--device", default="")
    arguments = parser.parse_args(argv)
    work = Work(arguments.folder, arguments.seconds, arguments.cluster, arguments.device)
    module, _, function = FUNCTIONS[arguments.name].partition(":")
    try:
        getattr(import_module(module), function)(work)
    except subprocess.TimeoutExpired as late:
        work.end("cut", f"its program took longer than {late.timeout:.0f} s")
    except Exception as error:
        traceback.print_exc()
        work.end("failed", f"{type(error).__name__}: {error}")
    work.write({"status": work.status, "reason": work.reason, "result": work.result})
    return 0


if __name__ == "__main__":
    # Else this module would be there twice, with two classes of each name.
    sys.modules["part"] = sys.modules["__main__"]
    sys.exit(main(sys.argv[1:]))
