"""Programs that train by a file: a folder with a table alone is one; what stands around its file is kept or asked."""

from __future__ import annotations

import sys

import pytest
import yaml
from config_lab import Trials, changed, launch, questions

from meshtune.runners.programs.config_program import ConfigProgram
from meshtune.runners.programs.dialects.base import CannotRead
from meshtune.runners.programs.dialects.programs import DIALECTS, read_file, read_start

TABLE = """
[program]
title = "Lathe"
script = '-m lathe\\.cli\\.train'
marks = "lathe_run widths cut"
least = 2
[command]
config_file = "run.yaml"
example = "[lathe, train, '{directory}/run.yaml']"
framework = "fsdp"
[trial]
removed = "save_to"
set_there = { watch = false }
[trial.set]
"cut.steps" = "{steps}"
[log]
step_time_ms = 'took ([\\d.]+) ms'
[[row]]
field = "model.layers"
names = ["widths.layers"]
[[row]]
field = "model.hidden"
names = ["widths.hidden"]
[[row]]
field = "model.heads"
names = ["widths.heads"]
[[row]]
field = "model.seq_len"
names = ["widths.tokens"]
[[row]]
field = "model.vocab"
names = ["widths.words"]
[[row]]
field = "model.ffn"
names = ["widths.inner"]
[[row]]
field = "tp"
names = ["split.heads"]
absent = 1
set = "there"
[[row]]
field = "recompute"
names = ["again"]
words = { none = "never", full = "always" }
absent = "none"
[[row]]
field = "zero_stage"
absent = 3
[[row]]
field = "micro_batch_size"
names = ["rows"]
optional = true
[[row]]
field = "grad_accum_steps"
names = ["rounds"]
absent = 1
[[row]]
field = "dtype"
names = ["bits"]
words = { bfloat16 = "b16", float32 = "f32" }
absent = "bfloat16"
[[remark]]
names = ["adapter", "frozen"]
ask = "few weights are trained"
[keys]
known = "lathe_run cut widths"
"""
CONFIG = {
    "lathe_run": 1,
    "widths": {"layers": 4, "hidden": 512, "heads": 8, "tokens": 1024, "words": 32000, "inner": 2048},
    "rows": 2,
    "again": "always",
    "save_to": "/out",
    "watch": True,
    "cut": {"steps": 9000, "rate": 0.5},
}


@pytest.fixture(scope="module")
def lathe(tmp_path_factory) -> ConfigProgram:
    """A folder that has table.toml and nothing else."""
    parent = tmp_path_factory.mktemp("packages")
    folder = parent / "lathe_of_a_test"
    folder.mkdir()
    (folder / "table.toml").write_text(TABLE)
    sys.path.insert(0, str(parent))
    yield ConfigProgram("lathe_of_a_test")
    sys.path.remove(str(parent))


def start(program: ConfigProgram, *more: str, **changes: object):
    text = yaml.safe_dump({**CONFIG, **changes})
    return program.read_launch(launch("-m lathe.cli.train", "fit", "a.yaml", *more, files={"a.yaml": text}))


def test_a_table_alone_reads_a_program_and_makes_its_trials(lathe):
    imported = start(lathe)
    assert questions(imported) == []
    degrees = {"tp": 1, "dp": 16, "zero_stage": 3}
    assert imported.plan == degrees | {"recompute": "full", "micro_batch_size": 2, "grad_accum_steps": 1}
    assert imported.global_batch_size == 32
    assert imported.workload["fixed"] == {"tp": 1, "zero_stage": 3}
    trials = Trials(imported)
    length = {"save_to": ("/out", ...), "watch": (True, False), "cut.steps": (9000, 15)}
    assert changed(CONFIG, trials.config("run.yaml")) == length | {"rounds": (..., 1)}
    other = next(plan for plan in trials.space if plan.recompute == "none" and plan.micro_batch_size == 1)
    assert trials.config("run.yaml", other)["again"] == "never"
    assert {plan.zero_stage for plan in trials.space if plan.dp > 1} == {3}
    assert trials.job().command[-5:] == ("python", "-m", "lathe.cli.train", "fit", "/jobs/x/run.yaml")


def test_a_section_of_the_user_makes_its_keys_the_plans(lathe):
    imported = start(lathe, split={"rows": 1})
    assert "tp" not in imported.workload["fixed"]
    assert imported.workload["configs"]["run.yaml"]["set"]["split.heads"] == "{tp}"


def test_what_may_change_the_file_is_asked_and_kept(lathe):
    imported = start(lathe, "--rate", "0.1", gadget=3, adapter="low-rank", frozen=["a"])
    assert questions(imported) == [
        "line 3: --rate 0.1: words behind a.yaml, which may change what it says; do they?",
        "line 3: gadget: no key that Lathe is known to have; do they change the model, the batch or speed?",
        "line 3: adapter low-rank, frozen a: few weights are trained",
    ]
    assert imported.workload["command"][-3:] == ["{directory}/run.yaml", "--rate", "0.1"]
    assert imported.workload["configs"]["run.yaml"]["base"]["gadget"] == 3


def test_it_is_recognised_by_its_start_and_its_file(lathe):
    assert lathe.is_program(launch("-m lathe.cli.train", "a.yaml"))
    assert not lathe.is_program(launch("-m lathe.cli.test", "a.yaml"))
    assert lathe.is_file("a.yml", yaml.safe_dump(CONFIG))
    assert not lathe.is_file("a.yml", "lathe_run: 1\nrows: 2\n")
    with pytest.raises(CannotRead, match=r"without the name of a file here .*--capture"):
        lathe.read_launch(launch("-m lathe.cli.train", "fit"))


def test_folders_of_tables_alone_are_among_the_programs():
    assert DIALECTS["llm-foundry"] == "meshtune.runners.programs.llm_foundry"
    text = "model: {name: mpt_causal_lm}\ntrain_loader: {}\nmax_duration: 1ba\nfsdp_config: {}\n"
    assert read_file("a.yaml", text).workload["framework"] == "fsdp"
    here = launch("train.py", "a.yaml", files={"a.yaml": text})
    assert read_start(here).workload["command"] == ["python", "train.py", "{directory}/train.yaml"]


def test_a_submitters_file_has_the_programs_inside():
    inner = {"model": {"name": "mpt_causal_lm", "n_layers": 6}, "train_loader": {}, "max_duration": "1ba"}
    text = yaml.safe_dump({"name": "a", "compute": {"gpus": 8}, "parameters": {**inner, "fsdp_config": {}}})
    imported = read_file("run.yaml", text)
    assert (imported.model["layers"], imported.plan["zero_stage"]) == (6, 3)
    assert imported.workload["configs"]["train.yaml"]["base"] == {**inner, "fsdp_config": {}}


def test_what_makes_a_file_none_of_keys_is_named():
    with pytest.raises(CannotRead, match=r"a\.yml .*line 2"):
        read_file("a.yml", '{"num-layers": 3\n"hidden-size": 64}\n')
