"""The real launch of a plan: the user's own words with its values, as a line, as a script, for a scheduler."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import replace

import pytest

from meshtune.runners.json_files import write_files
from meshtune.search_spaces.plan import Plan, Recompute
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.spec import Backend
from meshtune.tuner.results.export import export_of, exported
from meshtune.tuner.results.launch import changed_files, changed_settings, launch_line
from meshtune.tuner.results.ranking import rank

BASE = Plan(dp=4, micro_batch_size=2, grad_accum_steps=2, zero_stage=0)
FASTER = Plan(dp=4, micro_batch_size=4, zero_stage=0)
OWN = ["torchrun", "--nproc-per-node", "4", "train.py", "--lr", "1", "--mbs=2", "--out", "/data", "--ga", "2"]
COMMAND = [
    "python",
    "train.py",
    "--lr",
    "1",
    "--mbs={micro_batch_size}",
    "--out",
    "/data",
    "--ga",
    "{grad_accum_steps}",
]
TRIAL = {"--out": "{directory}/out", "--max-steps": "{steps}"}


@pytest.fixture
def spec(lab):
    def build(**options):
        workload = Backend(kind="command", options={"command": COMMAND, "trial_arguments": TRIAL, **options})
        return replace(lab.spec(), workload=workload, runner=Backend(kind="local"), baseline=BASE)

    return build


@pytest.fixture
def view(spec, make, tmp_path):
    """What an export of FASTER has, in a folder of its own."""

    def build(format="job", **options):
        campaign = replace(make.campaign(spec(), CampaignState.COMPLETED), spec=spec(**options))
        (entry,) = rank(campaign, [make.trial(0, make.measurement(1.0), plan=FASTER)])
        return exported(export_of(campaign, entry, tmp_path), format)

    return build


def test_the_line_of_the_baseline_is_the_users_own(spec):
    assert launch_line(spec(), BASE, OWN) == OWN
    faster = ["torchrun", "--nproc-per-node", "4", "train.py", "--lr", "1", "--mbs=4", "--out", "/data", "--ga", "1"]
    assert launch_line(spec(), FASTER, OWN) == faster
    assert launch_line(spec(), FASTER) == ["python", *faster[3:]]


def test_the_line_of_a_text_is_what_the_shell_makes_of_it(spec):
    text = (
        "case {recompute} in none) r='--gc False';; full) r='--gc True --every 2';; *) exit 2;; esac\n"
        "case {zero_stage} in 0) set -- ;; 1) set -- --shard 'a b';; *) echo 'no' >&2; exit 2;; esac\n"
        'exec python3 -m meshtune.runners.report train.py $r "$@" --lr 1 --mbs {micro_batch_size} '
        "--ga {grad_accum_steps}"
    )
    options = {"command": text, "trial_arguments": {"--lr": None}}
    own = ["accelerate", "launch", "train.py", "--mbs", "2", "--lr", "1", "--ga", "2"]
    line = launch_line(spec(**options), replace(FASTER, zero_stage=1, recompute=Recompute.FULL), own)
    told = "accelerate launch train.py --mbs 4 --lr 1 --ga 1 --gc True --every 2 --shard 'a b'"
    assert shlex.join(line) == told
    assert launch_line(spec(**options), BASE, own) == own
    assert launch_line(spec(**options), BASE)[:5] == ["python3", "train.py", "--gc", "False", "--lr"]


def test_words_of_the_launcher_stay_before_the_script(spec):
    command = [*["accelerate", "launch", "--shard", "a{zero_stage}", "-m", "x", "--mbs"], "{micro_batch_size}"]
    sharded = replace(FASTER, zero_stage=3)
    for program in ("train.py", "-m x"):
        options = {"command": command, "trial_arguments": {}, "fixed": {"grad_accum_steps": 2}}
        own = ["accelerate", "launch", "--config_file", "a.yaml", *program.split(), "--mbs", "2"]
        line = f"accelerate launch --config_file a.yaml --shard a3 {program} --mbs 4"
        assert shlex.join(launch_line(spec(**options), sharded, own)) == line


def test_a_positional_value_is_told_in_the_commands_own_words(spec):
    command = ["python", "train.py", "{micro_batch_size}", "{grad_accum_steps}"]
    options = {"command": command, "trial_arguments": {}}
    assert launch_line(spec(**options), FASTER, ["torchrun", "train.py", "2", "2"]) == ["python", "train.py", "4", "1"]


def test_the_job_is_the_users_launch_with_the_plans_values(view, tmp_path):
    config = {"format": "json", "base": {"a": 1}, "trial": {"a": 2}}
    found = view(env={"A": "x y"}, working_directory="/there", configs={"c.json": config}, start="node")
    assert found.command == "bash launch.sh"
    assert found.files["c.json"] == '{\n  "a": 1\n}\n'
    assert found.files["launch.sh"].splitlines() == [
        "#!/bin/bash",
        "cd /there || exit",
        "export A='x y'",
        "python train.py --lr 1 --mbs=4 --out /data --ga 1",
    ]
    assert (set(found.files), found.note) == ({"c.json", "launch.sh"}, "")


@pytest.mark.parametrize(
    ("command", "last"),
    [
        (["python", "-m", "x"], "torchrun --nnodes 1 --nproc_per_node 4 -m x"),
        (["/v/bin/python3", "x.py"], "torchrun --nnodes 1 --nproc_per_node 4 x.py"),
        (["train", "a b"], "torchrun --nnodes 1 --nproc_per_node 4 --no-python train 'a b'"),
        ("a=1\nexec python3 x.py $a", "torchrun --nnodes 1 --nproc_per_node 4 x.py $a"),
        ("a=1; train $a", "torchrun --nnodes 1 --nproc_per_node 4 --no-python sh -c 'a=1; train $a'"),
    ],
)
def test_ranks_are_started_by_torchrun_where_trials_start_them(view, command, last):
    script = view(command=command, trial_arguments={}).files["launch.sh"]
    assert script.splitlines()[1] == 'cd "$(dirname "$0")" || exit'
    assert script.splitlines()[-1] == last
    assert ("\na=1\n" in script) == (isinstance(command, str) and "\n" in command)


def test_a_schedulers_script_starts_the_launch_and_not_a_trial(view):
    found = view("slurm")
    assert "--max-steps" not in found.files["gang.json"]
    assert '"/data"' in found.files["gang.json"]
    # A day, and what a job has beside its limit.
    assert "#SBATCH --time=1442" in found.files["job.sbatch"]


def test_a_number_of_steps_that_is_the_trials_is_said(view):
    found = view(command=[*COMMAND, "--steps", "{steps}"], trial_arguments={})
    assert found.note.startswith("The command has the number of a trial's steps")
    assert found.command == "bash launch.sh"


def test_the_launch_runs_by_hand(view, tmp_path):
    program = "import os, sys; print(sys.argv[1:], 'MESHTUNE_DIRECTORY' in os.environ)"
    command = [sys.executable, "-c", program, "--mbs", "{micro_batch_size}"]
    found = view(command=command, start="job", trial_arguments={"--more": 1})
    write_files(tmp_path, found.files)
    environment = {name: value for name, value in os.environ.items() if name != "MESHTUNE_DIRECTORY"}
    line = shlex.split(found.command)
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "['--mbs', '4'] False\n"


def test_what_another_plan_changes_in_files_and_variables_is_named(spec):
    config = {"format": "json", "base": {"lr": 1}, "set": {"batch.micro": "{micro_batch_size}"}}
    own = spec(configs={"config.json": config}, env={"PASSES": "{grad_accum_steps}"})
    assert changed_settings(own, BASE, FASTER) == ["PASSES=1", "config.json: batch.micro 4"]
    assert [*changed_files(own, BASE, FASTER)] == ["config.json"]
    assert changed_settings(own, BASE, BASE) == []
