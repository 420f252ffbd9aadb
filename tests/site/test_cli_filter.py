"""Slurm's cli_filter sample, run by the real sbatch of a real Slurm; a small HTTP server stands in for the service."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

SAMPLE = Path(__file__).parents[2] / "examples" / "site" / "cli_filter.lua"
ALONE = "sbatch: lua: meshtune: no recommendation, the script goes with its own defaults: "
SCRIPT = """#!/bin/sh
#SBATCH --output=/dev/null
# PATH may not have been exported.
/usr/bin/env | /bin/grep '^MESHTUNE_\\|^KEPT=' | /usr/bin/sort > seen
"""


class Site:
    """A login node: the cluster's configuration with the sample in it, and a user's home.

    The sample waits for an answer longer than its two seconds, until `keep_limit`: what answers is heard, however busy
    this machine is.
    """

    def __init__(self, folder: Path, slurm_folder: Path) -> None:
        self.folder, self.home = folder, folder / "home"
        self.home.mkdir()
        for name in ("gres.conf", "cgroup.conf"):
            shutil.copy(slurm_folder / name, folder)
        original = (slurm_folder / "slurm.conf").read_text()
        (folder / "slurm.conf").write_text(f"{original}CliFilterPlugins=lua\n")
        sample = SAMPLE.read_text()
        assert sample.count('"/etc/meshtune/site.conf"') == sample.count("local LIMIT_S = 2\n") == 1
        self.sample = sample.replace("/etc/meshtune/site.conf", f"{folder}/site.conf")
        self.write(self.sample.replace("LIMIT_S = 2\n", "LIMIT_S = 30\n"))
        (self.home / "job.sh").write_text(SCRIPT)

    def write(self, sample: str) -> None:
        (self.folder / "cli_filter.lua").write_text(sample)

    def keep_limit(self) -> None:
        self.write(self.sample)

    def configure(self, url: str, *, cluster: str = "") -> None:
        (self.folder / "site.conf").write_text(f"url = {url}\n" + (f"cluster = {cluster}\n" if cluster else ""))

    def sbatch(self, *arguments: str, script: str = "job.sh") -> subprocess.CompletedProcess[str]:
        return self.run("sbatch", "--parsable", "--time=1", *arguments, script)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "SLURM_CONF": f"{self.folder}/slurm.conf", "HOME": str(self.home), "KEPT": "yes"}
        done = subprocess.run(
            command, cwd=self.home, env=environment, capture_output=True, text=True, timeout=90, check=False
        )
        assert done.returncode == 0, done.stderr
        return done


@pytest.fixture
def site(slurm, tmp_path) -> Site:
    return Site(tmp_path, slurm.folder)


def test_a_job_gets_the_best_known_plan(site, slurm, service):
    site.configure(service.url)
    said = site.sbatch("--nodes=2", "--comment=meshtune:llama3-8b@aurora.2")
    slurm.wait_job(said.stdout.strip())
    assert service.asked == ["/v1/recommendations?model=llama3-8b&cluster=aurora.2&nodes=2&format=env"]
    assert said.stderr == "sbatch: lua: meshtune: MESHTUNE_TP=4 MESHTUNE_PP=1 MESHTUNE_SOURCE=demo-1a2b3c/7\n"
    seen = (site.home / "seen").read_text()
    assert seen == "KEPT=yes\nMESHTUNE_PP=1\nMESHTUNE_SOURCE=demo-1a2b3c/7\nMESHTUNE_TP=4\n"


def test_what_a_user_exports_is_kept_and_added_to(site, slurm, service):
    site.configure(service.url, cluster="here")
    said = site.sbatch("--nodes=1", "--comment=meshtune:m", "--export=KEPT=only")
    slurm.wait_job(said.stdout.strip())
    assert service.asked == ["/v1/recommendations?model=m&cluster=here&nodes=1&format=env"]
    seen = (site.home / "seen").read_text()
    assert seen == "KEPT=only\nMESHTUNE_PP=1\nMESHTUNE_SOURCE=demo-1a2b3c/7\nMESHTUNE_TP=4\n"


def test_a_script_may_carry_the_comment_itself_and_other_jobs_are_left_alone(site, slurm, service):
    site.configure(service.url)
    for comment in ([], ["--comment=a remark"], ["--comment=not meshtune:m@c"]):
        assert site.sbatch("--hold", "--nodes=1", *comment).stderr == ""
    assert service.asked == []
    (site.home / "own.sh").write_text(f"#!/bin/sh\n#SBATCH --comment=meshtune:m@c --nodes=1\n{SCRIPT}")
    assert "MESHTUNE_TP=4" in site.sbatch("--hold", script="own.sh").stderr


def test_steps_are_left_alone_whose_job_has_the_plan_already(site, slurm, service):
    site.configure(service.url)
    done = site.run("srun", "--nodes=1", "--comment=meshtune:m@c", "/bin/true")
    assert ("meshtune" in done.stderr, service.asked) == (False, [])  # that it waits for a node is srun's to say


def test_a_hostile_or_half_comment_reaches_no_shell_and_no_service(site, slurm, service):
    site.configure(service.url)
    hostile = (";touch hostile", "$(touch hostile)", "`touch hostile`", "'|touch hostile #", "\ntouch hostile", "&a=b")
    for wanted in (*(f"m@c{end}" for end in hostile), "../m@c", "m@", "m", "", "m" * 101 + "@c"):
        said = site.sbatch("--hold", "--nodes=1", f"--comment=meshtune:{wanted}")
        assert said.stderr.startswith(f"{ALONE}the comment must "), wanted
    assert service.asked == []
    assert not list(site.home.rglob("hostile"))


def test_an_answer_that_is_not_clean_is_not_used_at_all(site, slurm, service):
    site.configure(service.url)
    unclean = (
        "TP=4\nLD_PRELOAD=/tmp/evil.so\n",
        "TP=4,LD_PRELOAD=/tmp/evil.so\n",
        "TP=$(touch hostile)\n",
        "TP=\n",
        "TP=1",
    )
    for service.answer in (*(f"MESHTUNE_{answer}" for answer in unclean), "<html></html>\n", "\n"):
        said = site.sbatch("--hold", "--nodes=1", "--comment=meshtune:m@c")
        assert said.stderr.startswith(f"{ALONE}{service.url} gave "), service.answer


def test_without_a_usable_service_a_job_goes_as_it_came(site, slurm, service):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{taken.getsockname()[1]}"
        site.keep_limit()
        site.configure(dead)
        comment = ("--hold", "--nodes=1", "--comment=meshtune:m@c")
        assert site.sbatch(*comment).stderr == f"{ALONE}{dead} gave no answer within 2 s\n"
    site.configure(service.url)
    for text in ("", "url = file:///etc/passwd\n", "url = http://x/'; touch hostile; '\n"):
        (site.folder / "site.conf").write_text(text)
        assert site.sbatch(*comment).stderr == f"{ALONE}{site.folder}/site.conf names no url\n"
    (site.folder / "site.conf").unlink()
    assert "names no url" in site.sbatch(*comment).stderr


def test_a_refusal_is_told_in_the_services_own_words(site, slurm, service):
    unknown = "no campaign and no preset has a model 'gpt-mikro'; did you mean 'gpt-micro'?"
    service.status = 404
    site.configure(service.url)
    for detail, told in ((unknown, unknown), ("x\x1b]0;\n" + 400 * "y", "x?]0;?" + 294 * "y"), (None, "")):
        service.answer = "<html>" if detail is None else f'{{"status":404,"detail":"{detail}","x":"y"}}'
        said = site.sbatch("--hold", "--nodes=1", "--comment=meshtune:gpt-mikro@c")
        assert said.stderr.rstrip("\n") == f"{ALONE}{service.url} answered 404: {told}"


def test_a_slow_service_holds_sbatch_up_for_two_seconds_at_most(site, slurm, service):
    """Also one that has begun to answer: half of it is not used."""
    service.pause_s = 60.0
    site.keep_limit()
    site.configure(service.url)
    before = time.monotonic()
    said = site.sbatch("--nodes=1", "--comment=meshtune:m@c")
    assert 2.0 <= time.monotonic() - before < 30.0
    assert said.stderr == f"{ALONE}{service.url} gave no answer within 2 s\n"
    slurm.wait_job(said.stdout.strip())
    assert (site.home / "seen").read_text() == "KEPT=yes\n"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "the job must name its node count: --nodes"),
        (["--nodes=1-2"], "the job must name its node count: --nodes"),
        (["--nodes=1", "--export=NONE"], "--export=NONE lets no variables into the job"),
    ],
)
def test_a_job_that_cannot_be_advised_goes_as_it_came(options, told, site, slurm, service):
    site.configure(service.url)
    assert site.sbatch("--hold", *options, "--comment=meshtune:m@c").stderr == f"{ALONE}{told}\n"


@pytest.mark.parametrize(("mode", "sent"), [(0o600, "Bearer hush"), (0o644, None)])
def test_a_token_is_sent_from_a_private_file_only(mode, sent, site, slurm, service):
    token = site.home / ".config" / "meshtune" / "curl.conf"
    token.parent.mkdir(parents=True)
    token.write_text('header = "Authorization: Bearer hush"\n')
    token.chmod(mode)
    site.configure(service.url)
    site.sbatch("--hold", "--nodes=1", "--comment=meshtune:m@c")
    assert service.tokens == [sent]
