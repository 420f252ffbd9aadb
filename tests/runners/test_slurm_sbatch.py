"""What is read of somebody's batch script, and what its job is given, as text; a recorded sbatch takes the rest."""

from __future__ import annotations

import pytest

from meshtune.runners.schedulers.slurm.sbatch import directives, exporting, node_count, submit

SCRIPT = """#!/bin/bash
#SBATCH --job-name="my job" --nodes=4  # four
#SBATCH -p gpu
# a comment
#SBATCHED --nodes=9

#MESHTUNE model=gpt-micro cluster=hpc
srun train
#SBATCH --nodes=8
"""
VALUES = {"MESHTUNE_TP": "4", "MESHTUNE_SOURCE": "c/7"}


def test_directives_end_where_the_first_command_stands():
    assert directives(SCRIPT, "SBATCH") == ["--job-name=my job", "--nodes=4", "-p", "gpu"]
    assert directives(SCRIPT, "MESHTUNE") == ["model=gpt-micro", "cluster=hpc"]


@pytest.mark.parametrize(
    ("words", "nodes"),
    [
        (["--nodes=2"], 2),
        (["--nodes", "2"], 2),
        (["-N2"], 2),
        (["-N", "2"], 2),
        (["-N", "2", "--nodes=3"], 3),
        (["--nodes=2-2"], 2),
        (["--nodes=2-4"], None),
        (["--nodes=0"], None),
        (["--nodes=two"], None),
        (["--nodes"], None),
        (["--ntasks-per-node=8", "--nodelist=n2"], None),
        ([], None),
    ],
)
def test_the_node_count_is_read_in_every_form_that_sbatch_takes(words, nodes):
    assert node_count("", words) == nodes
    assert node_count(f"#!/bin/sh\n#SBATCH {' '.join(words)}\ntrue\n", []) == nodes


def test_the_command_line_is_stronger_than_the_script():
    assert node_count(SCRIPT, []) == 4
    assert node_count(SCRIPT, ["-N", "2"]) == 2


@pytest.mark.parametrize(
    ("options", "line", "variable", "export"),
    [
        ([], "", None, "ALL"),
        ([], "--export=A,B=2", None, "A,B=2"),
        ([], "--export=A", "C", "C"),
        (["--export=D"], "--export=A", "C", "D"),
        (["--export", "D"], "", None, "D"),
    ],
)
def test_values_are_added_to_what_the_user_exports(monkeypatch, options, line, variable, export):
    monkeypatch.delenv("SBATCH_EXPORT", raising=False)
    if variable is not None:
        monkeypatch.setenv("SBATCH_EXPORT", variable)
    given = exporting(options, f"#SBATCH {line}\n", VALUES)
    assert given == [*options, f"--export={export},MESHTUNE_TP=4,MESHTUNE_SOURCE=c/7"]


@pytest.mark.parametrize("word", ["NONE", "NIL", "none"])
def test_an_export_of_nothing_is_left_alone(monkeypatch, word):
    monkeypatch.delenv("SBATCH_EXPORT", raising=False)
    assert exporting([f"--export={word}"], "", VALUES) is None
    assert exporting([], f"#SBATCH --export={word}\n", VALUES) is None


def test_sbatch_gets_the_arguments_and_not_the_token(recorded, monkeypatch):
    recorded.answer("sbatch", code=3)
    monkeypatch.setenv("TOKEN", "secret")
    monkeypatch.setenv("OTHER", "seen")
    assert submit(["-p", "a b", "job.sh"], hide=("TOKEN",)) == 3
    assert recorded.words("sbatch") == ["-p", "a b", "job.sh"]
    assert "OTHER=seen\n" in recorded.environment("sbatch")
    assert "TOKEN" not in recorded.environment("sbatch")
