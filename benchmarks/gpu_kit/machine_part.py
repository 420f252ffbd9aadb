"""The parts that look at the machine: versions and what training depends on, and the probe."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from part import Work

PACKAGES = ("numpy", "triton", "transformers", "accelerate", "pydantic", "sqlalchemy", "torchao", "bitsandbytes")
# Of the probe: starting, and measuring on a device and on a CPU.
START_S, PROBE_S, CPU_PROBE_S = 9.0, 14.0, 5.0
_SMI = "name,driver_version,power.limit,clocks.max.sm,clocks.max.memory,ecc.mode.current,mig.mode.current"


def machine(work: Work) -> None:
    work.keep("python", platform.python_version(), f"Python {platform.python_version()}, {platform.platform()}")
    work.keep("packages", {name: installed(name) for name in PACKAGES})
    work.keep("cpu", {"cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()})
    found = compiler()
    work.keep("compiler", found, f"gcc: {found['gcc']}; Python.h: {found['header']}")
    if shutil.which("nvidia-smi"):
        work.keep("nvidia_smi", first_line(["nvidia-smi", f"--query-gpu={_SMI}", "--format=csv,noheader"]))
    try:
        import torch
    except Exception as error:
        work.keep("torch_missing", f"{type(error).__name__}: {error}", "torch cannot be imported")
        return
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    work.keep("devices", names)
    work.keep("torch", torch.__version__, f"torch {torch.__version__}, devices: {', '.join(names) or 'none'}")
    work.keep("cuda", {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()})
    seen = allocator(torch)
    work.keep("allocator", seen, f"allocator: {seen}")
    kernels = attention(torch)
    work.keep("attention_auto", kernels, f"attention `auto` runs: {', '.join(kernels)}")


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def compiler() -> dict[str, Any]:
    """What Triton builds its launchers with."""
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return {"gcc": first_line(["gcc", "--version"]), "header": header.exists()}


def first_line(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.partition("\n")[0] if done.returncode == 0 else None


def allocator(torch: Any) -> Any:
    """Its settings as torch sees them after the trainer has set them; without CUDA the variables alone."""
    from meshtune.runners.trainer.compat import grow_segments

    grow_segments()
    if torch.cuda.is_available():
        torch.empty(1, device="cuda")
        return torch.cuda.memory._snapshot()["allocator_settings"]
    return {name: os.environ[name] for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF") if name in os.environ}


def attention(torch: Any) -> list[str]:
    """The kernels that torch picks for the shapes of the 1.3B models in bfloat16, forward; on a CPU for tiny ones."""
    from meshtune.runners.trainer.timing.attention import noting_attention

    class Attention(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    module, cuda = Attention(), torch.cuda.is_available()
    shape = (8, 16, 2048, 128) if cuda else (2, 4, 64, 16)
    x = torch.randn(shape, dtype=torch.bfloat16, device="cuda" if cuda else "cpu", requires_grad=True)
    with noting_attention(module) as kernels:
        module(x)
    return sorted(kernels)


def probe(work: Work) -> None:
    """`meshtune cluster probe` of one device, with the shapes of the 1.3B Llama. What another mode left is kept: no
    machine is probed twice."""
    if work.cluster.exists():
        work.keep("kept", work.cluster.read_text(encoding="utf-8"), "the cluster file of an earlier run is kept")
        return
    cli = [sys.executable, "-m", "meshtune.tuner.cli", "cluster", "probe"]
    seconds = max(1.0, min(PROBE_S if work.cuda else CPU_PROBE_S, work.left_s - START_S))
    command = [*cli, "--devices-per-node=1", f"--seconds={seconds:.1f}", "--name=one-device", "--json"]
    command += ["--force", f"--output={work.cluster}"]
    path = work.folder / "model.json"
    path.write_text(json.dumps(work.model("llama-1.3b")), encoding="utf-8")
    command.append(f"--model={path}")
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=work.left_s)
    if done.returncode:
        raise RuntimeError(f"meshtune cluster probe: exit status {done.returncode}")
    found = json.loads(done.stdout)
    device = found["cluster"]["device"]
    rates = ", ".join(f"{dtype} {rate / 1e12:.4g}" for dtype, rate in device["sustained_flops"].items())
    bandwidth = device["memory_bandwidth_bytes_per_s"] / 1e12
    work.keep("probed", found, f"products: {rates} TFLOP/s; memory: {bandwidth:.3g} TB/s; {seconds:.0f} s")
