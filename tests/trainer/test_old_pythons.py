"""Jobs run in their site's own environment: any Python from 3.10 on, without Pydantic, YAML or numpy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pythons import interpreter

ROOT = Path(__file__).parents[2]
# Of the trainer what needs no torch; its other modules are compiled only.
TORCHLESS = (
    *("report", "outcome", "json_files", "trainer_answers", "devices.facts", "devices.record"),
    *("schedulers.batch.launch_wrapper", "schedulers.kubernetes.pod"),
    *("trainer.job", "trainer.failure"),
)
IMPORTS = f"""
import sys
from importlib import import_module
for name in {TORCHLESS}:
    import_module("meshtune.runners." + name)
loaded = {{"pydantic", "yaml", "numpy", "torch"}} & set(sys.modules)
assert not loaded, loaded
from meshtune.runners.trainer.job import parse_job
print(parse_job(sys.stdin.read()).plan.key)
"""


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_the_trainer_compiles_and_its_torchless_part_runs(version, make_job):
    from meshtune.runners.trainer.job import render_job

    python = interpreter(version)
    sources = [str(path) for path in (ROOT / "runners" / "trainer").rglob("*.py")]
    compiled = f"for path in {sources}: compile(open(path, encoding='utf-8').read(), path, 'exec')"
    done = subprocess.run(
        [python, "-S", "-c", f"{compiled}\n{IMPORTS}"],
        input=render_job(make_job(plan={"dp": 2})),
        env={"PATH": os.defpath, "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "tp1 pp1 dp2 mbs1 ga4 zero0\n"


@pytest.mark.slow
def test_the_trainer_itself_loads_no_pydantic():
    code = "import sys, meshtune.runners.trainer.main as main; assert not {'pydantic', 'yaml'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=200).returncode == 0
