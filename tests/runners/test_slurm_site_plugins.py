"""A real Slurm whose site rewrites and refuses jobs by cli_filter and job_submit in Lua: what a runner hears of it.
docs/how-to/slurm.md tells what to set."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from slurm_jobs import SlurmLaboratory
from slurm_lab import SlurmLab

from meshtune.runners.base import JobState, Refused

pytestmark = pytest.mark.slow

CLI_FILTER = """
function slurm_cli_setup_defaults(options, early) return slurm.SUCCESS end
function slurm_cli_post_submit(pack, id, step) return slurm.SUCCESS end
function slurm_cli_pre_submit(options, pack)
    if options["comment"] == "no-project" then
        slurm.log_error("name a project")
        return slurm.ERROR
    elseif options["comment"] == "moved" then
        options["partition"] = "main"
        slurm.log_info("goes to main")
    end
    return slurm.SUCCESS
end
"""
JOB_SUBMIT = """
function slurm_job_modify(job, record, partitions, uid) return slurm.SUCCESS end
function slurm_job_submit(job, partitions, uid)
    if job.comment == "too-few" then
        slurm.user_msg("ask for whole nodes")
        return slurm.ERROR
    elseif job.comment == "cut" then
        job.time_limit = 5
        slurm.user_msg("the time limit is now 5 min")
    end
    return slurm.SUCCESS
end
return slurm.SUCCESS
"""


@pytest.fixture
def lab(slurm_cluster, monkeypatch, tmp_path) -> Iterator[SlurmLaboratory]:
    """slurm_cluster: skips where there can be none."""
    with SlurmLab(nodes=2, cli_filter=CLI_FILTER, job_submit=JOB_SUBMIT) as lab:
        for name, value in lab.environment.items():
            monkeypatch.setenv(name, value)
        laboratory = SlurmLaboratory(tmp_path, lab)
        yield laboratory
        laboratory.close()


def test_the_site_s_words_are_told_and_what_it_rewrites_is_what_runs(lab):
    def open_for(comment: str):
        lab.runner = lab.open(extra_lines=(f"#SBATCH --comment={comment}",))
        return lab.runner

    for comment, words in (("no-project", "name a project"), ("too-few", "ask for whole nodes")):
        runner = open_for(comment)
        with pytest.raises(Refused, match=f"error: .*{words}"):
            runner.asked(lab.spec("asked", "true"))
        with pytest.raises(Refused, match=f"was refused: .*{words}"):
            lab.submit(comment, "true")
    for comment, told, place in (("moved", "goes to main", "main"), ("cut", "now 5 min", "one")):
        runner = open_for(comment)
        answer = runner.asked(lab.spec("asked", "true"))
        assert told in answer
        assert answer.endswith(f"in partition {place}")
        id = lab.submit(comment, "echo $SLURM_JOB_PARTITION > place")
        assert lab.wait(id).state is JobState.SUCCEEDED
        assert (lab.folder / "work" / comment / "place").read_text() == f"{place}\n"
        assert ("TimeLimit=00:05:00" in lab.place.run("scontrol", "show", "job", id)) == (comment == "cut")
