"""Modules on the real Slurm and the real Lmod: jobs find them without a login, and one that is not there is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_lab import run_meshtune
from driven import Driven
from slurm_lab import SlurmLab
from specs import tiny

from meshtune.runners.base import Cause
from meshtune.runners.outcome import Verdict

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def site(folder: Path, *setup: str) -> Driven:
    (folder / "modules" / "greeting").mkdir(parents=True)
    (folder / "modules" / "greeting" / "1.0").write_text("#%Module\nsetenv GREETING hello\n")
    driven = Driven(folder)
    runner = {"kind": "slurm", "poll_s": 0.2, "partition": "one", "setup": [f"module use {folder}/modules", *setup]}
    workload = driven.workload("{grad_accum_steps}", "{micro_batch_size}")
    driven.write(tiny(name="modules", workload=workload, runner=runner, budget={"trials": 1}))
    return driven


@pytest.mark.skipif(not Path("/usr/share/lmod").is_dir(), reason="Lmod is not installed")
def test_a_module_that_is_there_is_loaded_and_one_that_is_not_ends_the_campaign_by_its_name(
    slurm: SlurmLab, tmp_path: Path
) -> None:
    found = site(tmp_path / "found", "module load greeting", '[ "$GREETING" = hello ]')
    found.finish(found.start("run", "spec.yaml"))
    assert [trial.verdict for trial in found.trials()] == [Verdict.OK]
    lost = site(tmp_path / "lost", "module load nosuch/1.2")
    said = lost.finish(lost.start("run", "spec.yaml"), code=1)
    (trial,) = [trial for trial in lost.trials() if trial.outcome is not None]
    assert (trial.verdict, trial.outcome.failure) == (Verdict.CRASHED, Cause.USER_BUG)
    assert "setup line 2 (module load nosuch/1.2) returned 1" in said


def test_a_dry_run_refuses_what_is_missing_before_slurm_is_asked(slurm: SlurmLab, tmp_path: Path) -> None:
    driven = site(tmp_path / "lost", "source /tmp/nowhere/activate", "module load greeting")
    said = run_meshtune(driven.folder, "run", "spec.yaml", "--dry-run", "--home", str(driven.home.root)).err
    assert said.splitlines()[1:] == ["  runner.setup: /tmp/nowhere/activate is not there"]
