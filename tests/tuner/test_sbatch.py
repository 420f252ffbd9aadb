"""`meshtune sbatch` in front of a recorded sbatch: what the job gets with an answer, and that it goes without one."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from advice_service import AdviceService
from recorded_programs import Recorded

from meshtune.tuner.cli import advice as command
from meshtune.tuner.cli.main import main

ANSWER = "MESHTUNE_TP=4\nMESHTUNE_DP=2\nMESHTUNE_MEASURED=1\nMESHTUNE_SOURCE=demo-1a2b3c/7\n"
EXPORT = "MESHTUNE_TP=4,MESHTUNE_DP=2,MESHTUNE_MEASURED=1,MESHTUNE_SOURCE=demo-1a2b3c/7"
SCRIPT = """#!/bin/sh
#SBATCH --nodes=2
#MESHTUNE model=gpt-micro cluster=hpc
srun train --tp ${MESHTUNE_TP:-1}
"""
FILLED = SCRIPT.replace("${MESHTUNE_TP:-1}", "@MESHTUNE_TP:-8@")
SBATCH = """
for word in "$@"; do case $word in *.sh) cat "$word" > "$here.script" ;; esac; done
echo Submitted batch job 7
exit ${SBATCH_CODE:-0}
"""


LIMIT_S = command.LIMIT_S


@pytest.fixture
def service() -> Iterator[AdviceService]:
    with AdviceService(answer=ANSWER) as service:
        yield service


@dataclass
class Submitted:
    """What the recorded sbatch got. code, out, err: of the command."""

    code: int
    out: str
    err: str
    programs: Recorded

    @property
    def arguments(self) -> list[str]:
        return self.programs.words("sbatch")

    @property
    def script(self) -> str:
        return (self.programs.folder / "sbatch.script").read_text()

    @property
    def environment(self) -> str:
        return self.programs.environment("sbatch")

    @property
    def sent(self) -> bool:
        return self.programs.calls("sbatch") != []


Sbatch = Callable[..., Submitted]


@pytest.fixture
def sbatch(tmp_path: Path, service: AdviceService, recorded, monkeypatch: pytest.MonkeyPatch, capfd) -> Sbatch:
    """The command in a folder with job.sh, in this process, in front of the recorded sbatch."""
    recorded.script("sbatch", SBATCH)
    monkeypatch.setattr(command, "LIMIT_S", 60.0)  # what answers is heard, however busy this machine is
    for name in ("MESHTUNE_TOKEN", "MESHTUNE_TOKEN_FILE", "SBATCH_EXPORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MESHTUNE_URL", service.url)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, script: str = SCRIPT) -> Submitted:
        (tmp_path / "job.sh").write_text(script)
        monkeypatch.setattr(sys, "argv", ["meshtune", "sbatch", *arguments])
        code = 0
        try:
            main()
        except SystemExit as left:
            code = int(left.code or 0)
        out, err = capfd.readouterr()
        return Submitted(code, out, err, recorded)

    return run


def test_the_job_gets_the_variables_and_the_user_the_job_id(sbatch, service):
    done = sbatch("job.sh")
    assert (done.code, done.out) == (0, "Submitted batch job 7\n")
    assert done.arguments == [f"--export=ALL,{EXPORT}", "job.sh"]
    assert done.script == SCRIPT
    assert "MESHTUNE_TP=4" in done.err
    assert "warning" not in done.err
    (path,) = service.asked
    asked = {name: value for name, (value,) in parse_qs(urlsplit(path).query).items()}
    assert urlsplit(path).path == "/v1/recommendations"
    assert asked == {"model": "gpt-micro", "cluster": "hpc", "nodes": "2", "format": "env"}
    assert service.tokens == [None]


def test_the_command_line_is_stronger_than_the_script(sbatch, service):
    done = sbatch("--model", "other", "job.sh", "-N", "4", "--partition=gpu", "--", "--epochs", "3")
    assert done.arguments == ["-N", "4", "--partition=gpu", f"--export=ALL,{EXPORT}", "job.sh", "--epochs", "3"]
    assert "model=other" in service.asked[0]
    assert "nodes=4" in service.asked[0]


def test_more_of_the_question_stands_in_the_script(sbatch, service):
    sbatch("job.sh", script=SCRIPT.replace("cluster=hpc", "cluster=hpc global_batch_size=64 software=torch=2.13"))
    asked = parse_qs(urlsplit(service.asked[0]).query)
    assert (asked["global_batch_size"], asked["software"]) == (["64"], ["torch=2.13"])


def test_placeholders_are_filled_in_a_copy_of_the_same_name(sbatch, tmp_path):
    done = sbatch("job.sh", script=FILLED)
    assert done.script == FILLED.replace("@MESHTUNE_TP:-8@", "4")
    assert Path(done.arguments[-1]).name == "job.sh"
    assert (tmp_path / "job.sh").read_text() == FILLED
    assert not Path(done.arguments[-1]).exists()


@pytest.mark.parametrize("source", ["variable", "file"])
def test_the_token_reaches_the_service_and_neither_the_arguments_nor_the_job(sbatch, service, monkeypatch, source):
    if source == "variable":
        monkeypatch.setenv("MESHTUNE_TOKEN", "secret-1")
    else:
        Path("token").write_text("secret-1\n")
        monkeypatch.setenv("MESHTUNE_TOKEN_FILE", str(Path("token").absolute()))
    done = sbatch("job.sh")
    assert service.tokens[0] == "Bearer secret-1"
    assert "secret-1" not in "\n".join([*done.arguments, done.environment, done.err, done.out])
    assert "MESHTUNE_TOKEN" not in done.environment


def test_what_sbatch_says_is_the_end_of_the_command(sbatch, monkeypatch):
    monkeypatch.setenv("SBATCH_CODE", "3")
    assert sbatch("job.sh").code == 3


def check_goes_alone(done: Submitted, *words: str) -> None:
    """The script went with its own defaults, and a warning says why."""
    assert (done.code, done.out) == (0, "Submitted batch job 7\n")
    assert not any(word.startswith("--export") for word in done.arguments)
    warning = " ".join(done.err.split())
    assert "warning: no recommendation, the script goes with its own defaults" in warning
    for word in words:
        assert word in warning


@pytest.mark.parametrize("trouble", ["silent", "dripping"])
def test_a_service_that_takes_longer_than_two_seconds_is_not_waited_for(sbatch, service, trouble, monkeypatch):
    monkeypatch.setattr(command, "LIMIT_S", LIMIT_S)
    service.silent = trouble == "silent"
    service.drip_s = 0.9
    before = time.monotonic()
    done = sbatch("job.sh", script=FILLED)
    assert 2.0 <= time.monotonic() - before < 20.0  # the service would take 60 s, or 70 s
    check_goes_alone(done, "did not answer within 2 s")
    assert done.script == FILLED.replace("@MESHTUNE_TP:-8@", "8")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "ftp://host", "nonsense", "http://", "http://host:port"])
def test_a_url_where_no_service_is_is_gone_without(sbatch, monkeypatch, url):
    monkeypatch.setenv("MESHTUNE_URL", url)
    check_goes_alone(sbatch("job.sh"), url)


def test_a_service_that_knows_nothing_is_gone_without_and_its_reason_told(sbatch, service):
    service.status, service.answer = 404, json.dumps({"detail": "nothing was measured on toy"})
    check_goes_alone(sbatch("job.sh"), "404: nothing was measured on toy")


@pytest.mark.parametrize(
    "answer",
    ["", "MESHTUNE_TP=$(id)\n", "MESHTUNE_TP=4,EVIL=1\n", "<html>", "MESHTUNE_TP=\n", "MESHTUNE_TP=4", "cut"],
)
def test_an_answer_of_anything_else_than_whole_safe_lines_is_not_used(sbatch, service, answer):
    if answer == "cut":
        service.headers = {"Content-Length": str(len(ANSWER) + 14)}
    else:
        service.answer = answer
    check_goes_alone(sbatch("job.sh"), "the answer is not lines of MESHTUNE_NAME=value")


@pytest.mark.parametrize("name", ["TP", "LD_PRELOAD", "BASH_ENV"])
def test_an_answer_that_sets_what_no_catalog_of_knobs_has_is_not_used(sbatch, service, name):
    service.answer = f"MESHTUNE_TP=4\n{name}=/tmp/x\n"
    check_goes_alone(sbatch("job.sh"), f"the answer sets {name}, which no catalog of knobs has")


def test_knobs_fill_placeholders_and_the_variables_of_catalogs_are_set(sbatch, service):
    service.answer = "MESHTUNE_TP=4\nMESHTUNE_MEASURED=1\nMESHTUNE_KNOB_FP8=mxfp8\nNCCL_ALGO=Ring\n"
    script = FILLED + "train --fp8 @MESHTUNE_KNOB_FP8:-off@ --offload @MESHTUNE_KNOB_OFFLOAD:-none@\n"
    done = sbatch("job.sh", script=script)
    assert done.script.endswith("train --fp8 mxfp8 --offload none\n")
    assert any("MESHTUNE_KNOB_FP8=mxfp8,NCCL_ALGO=Ring" in word for word in done.arguments)


def test_a_redirect_is_not_followed(sbatch, service, monkeypatch):
    monkeypatch.setenv("MESHTUNE_TOKEN", "secret-1")
    service.status, service.headers = 302, {"Location": f"{service.url}/elsewhere"}
    check_goes_alone(sbatch("job.sh"), "302")
    assert len(service.asked) == 1


def test_a_token_file_that_cannot_be_read_is_gone_without(sbatch, service, monkeypatch):
    monkeypatch.setenv("MESHTUNE_TOKEN_FILE", "/nowhere")
    check_goes_alone(sbatch("job.sh"), "MESHTUNE_TOKEN_FILE: /nowhere")
    assert service.asked == []


def test_a_placeholder_without_any_value_is_refused_before_anything_is_sent(sbatch, service):
    service.status = 503
    done = sbatch("job.sh", script=SCRIPT.replace("${MESHTUNE_TP:-1}", "@MESHTUNE_TP@ @MESHTUNE_PP:-1@"))
    assert (done.code, done.sent) == (2, False)
    assert "no value for MESHTUNE_TP, and no default, such as @MESHTUNE_TP:-1@" in done.err


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (FILLED.replace("_TP:", "_TPP:"), "there is no MESHTUNE_TPP; did you mean 'MESHTUNE_TP'?"),
        (SCRIPT.replace("model=", "modle="), "#MESHTUNE modle=gpt-micro: must be key=value; did you mean 'model'?"),
        (SCRIPT.replace("model=gpt-micro", ""), "job.sh: name the model: --model, or a line `#MESHTUNE model="),
        (SCRIPT.replace("cluster=hpc", "'"), "job.sh: a quote is never closed: No closing quotation"),
    ],
)
def test_a_mistake_in_the_script_is_refused_before_anything_is_sent(sbatch, script, words):
    done = sbatch("job.sh", script=script)
    assert (done.code, done.sent) == (2, False)
    assert words in done.err


def test_a_script_that_names_no_node_count_goes_alone_and_nobody_is_asked(sbatch, service):
    done = sbatch("job.sh", "--nodes=2-4")
    assert done.arguments == ["--nodes=2-4", "job.sh"]
    assert "names no node count" in done.err
    assert service.asked == []


def test_an_export_of_nothing_lets_placeholders_alone_through(sbatch):
    done = sbatch("job.sh", "--export=NONE", script=FILLED)
    assert done.arguments[:-1] == ["--export=NONE"]
    assert done.script == FILLED.replace("@MESHTUNE_TP:-8@", "4")
    assert "only placeholders are filled" in done.err


def test_what_was_not_measured_is_said_to_be_projected(sbatch, service):
    service.answer = ANSWER.replace("MEASURED=1", "MEASURED=0")
    done = sbatch("job.sh")
    assert "warning: this plan is projected, not measured" in done.err
    assert "MESHTUNE_MEASURED=0" in done.arguments[0]


def test_a_dry_run_shows_the_command_and_the_script_and_asks_alone(sbatch):
    done = sbatch("--dry-run", "job.sh", "-p", "gpu", script=FILLED)
    assert (done.code, done.arguments[0]) == (0, "--test-only")
    assert done.script == done.out[done.out.index("#!") :].removesuffix("Submitted batch job 7\n")
    assert done.out.startswith(f"sbatch -p gpu --export=ALL,{EXPORT} job.sh\n\n#!/bin/sh\n")
    assert "srun train --tp 4\n" in done.out


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("--dry-run job.sh", ""),
        ("job.sh --dry-run", ""),
        ("-N2 --dry-run job.sh", "-N2"),
        ("--nodes 2 -H job.sh -p gpu --dry-run", "--nodes 2 -H -p gpu"),
        ("-HN 2 job.sh --hold --dry-run --comment=x", "-HN 2 --hold --comment=x"),
        ("--dry-run --exclusive job.sh", "--exclusive"),
        ("job.sh --cluster other --dry-run", ""),
    ],
)
def test_options_of_meshtune_and_of_sbatch_stand_in_any_order_before_the_scripts_arguments(sbatch, words, options):
    done = sbatch(*words.split(), "--", "--dry-run", "-N", "9")
    assert (done.code, done.arguments[0]) == (0, "--test-only")
    exported = " ".join(filter(None, [options, f"--export=ALL,{EXPORT}"]))
    assert done.out.splitlines()[0] == f"sbatch {exported} job.sh --dry-run -N 9"


def test_a_dry_run_behind_the_dashes_is_the_scripts(sbatch):
    done = sbatch("job.sh", "--", "--dry-run", "--help")
    assert done.arguments == [f"--export=ALL,{EXPORT}", "job.sh", "--dry-run", "--help"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("job.sh train -N 2", "`--`: meshtune sbatch -N 2 job.sh -- train"),
        ("--unknown job.sh", "no script among '--unknown job.sh': the word behind an option is its value"),
        ("-N 2", "no script among '-N 2'"),
    ],
)
def test_words_that_are_neither_script_nor_option_are_refused(sbatch, words, told):
    done = sbatch(*words.split())
    assert (done.code, done.sent) == (2, False)
    assert told in done.err


@pytest.mark.slow
@pytest.mark.slurm
def test_on_a_real_slurm_the_variables_and_placeholders_reach_the_job(slurm, service, tmp_path, monkeypatch):
    script = f"""#!/bin/sh
#SBATCH --nodes=2 --output={tmp_path}/out
#MESHTUNE model=gpt-micro cluster=hpc
echo "$SLURM_JOB_NAME $SLURM_JOB_NUM_NODES $MESHTUNE_TP $MESHTUNE_SOURCE @MESHTUNE_DP:-1@ $OTHER [$MESHTUNE_TOKEN] $1"
"""
    (tmp_path / "job.sh").write_text(script)
    for name, value in {"MESHTUNE_URL": service.url, "MESHTUNE_TOKEN": "secret-1", "OTHER": "mine"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["meshtune", "sbatch", "job.sh", "--", "last"])
    monkeypatch.setattr(command, "LIMIT_S", 60.0)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0
    give_up = time.monotonic() + 90
    while not (tmp_path / "out").exists() or not (tmp_path / "out").read_text():
        assert time.monotonic() < give_up
        time.sleep(0.1)
    assert (tmp_path / "out").read_text() == "job.sh 2 4 demo-1a2b3c/7 2 mine [] last\n"
    assert service.tokens[0] == "Bearer secret-1"
