import sys

import pytest

sys.path.insert(0, "/work/main")
from tests.trainer.test_ring import STAND_IN


@pytest.mark.parametrize("i", range(150))
def test_x(i, run_job, make_job):
    plan = {"cp": 2, "pp": 2, "recompute": "selective"}
    f = run_job(make_job(plan=plan | {"context": "ring"}, model={"layers": 4}), STAND_IN)
    if f.status:
        import os
        import shutil

        shutil.copytree(f.directory, f"/tmp/ringfail/{os.getpid()}-{i}", dirs_exist_ok=True)
    assert f.status == 0
