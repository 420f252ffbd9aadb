"""Placeholders are filled in, and a trial's values are laid over a user's own configuration, whatever its format."""

from __future__ import annotations

import json
import tomllib

import pytest
import yaml

from meshtune.runners.programs.workloads.config_file import ConfigFile, Format, parse_template
from meshtune.search_spaces.checks import InvalidValue

VALUES = {"tp": 4, "sequence_parallel": True, "recompute": "full", "directory": "/a b/c", "name": "x; rm -rf /"}


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("", ""),
        ("plain", "plain"),
        ("--tp={tp}", "--tp=4"),
        ("{tp}{tp} {recompute}", "44 full"),
        ('{{"tp": {tp}}}', '{"tp": 4}'),
        ("$HOME/${{USER}}", "$HOME/${USER}"),
        # One placeholder alone keeps its type.
        ("{tp}", 4),
        ("{sequence_parallel}", True),
        ("{tp} ", "4 "),
    ],
)
def test_a_template_is_filled_in(text, filled):
    template = parse_template(text, VALUES, "here")
    assert template.value(VALUES) == filled
    assert template.fill(VALUES) == ("true" if filled is True else str(filled))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{tpp}", "here: {tpp} is no placeholder; did you mean 'tp'?; a brace of its own is written twice"),
        ("{}", "here: {} is no placeholder; "),
        ("{tp.x}", "here: {tp.x} is no placeholder; "),
        ("{tp:03d}", "here: {tp} takes no format, and has '03d'"),
        ("{tp!r}", "here: {tp} takes no format, and has 'r'"),
        ("{tp", "here: expected '}' before end of string; a brace that stands for itself is written twice"),
        ("}", "here: Single '}' encountered in format string; a brace that stands for itself is written twice"),
    ],
)
def test_what_is_no_placeholder_is_told(text, problem):
    with pytest.raises(InvalidValue) as caught:
        parse_template(text, VALUES, "here")
    assert str(caught.value.problems[0]).startswith(problem)


BASE = {"model": {"name": "mine", "layers": 2}, "parallel": {"tp": 1, "keep": [1, 2]}, "fast": False, "rate": 1e-05}
SET = {"parallel.tp": "{tp}", "parallel.recompute": "{recompute}", "fast": "{sequence_parallel}", "new.deep.key": 7}
EXPECTED = {
    "model": {"name": "mine", "layers": 2},
    "parallel": {"tp": 4, "keep": [1, 2], "recompute": "full"},
    "fast": True,
    "rate": 1e-05,
    "new": {"deep": {"key": 7}},
}
READERS = {Format.YAML: yaml.safe_load, Format.JSON: json.loads, Format.TOML: tomllib.loads}


def render(config: ConfigFile) -> str:
    texts = {f"configs.c.set.{key}": text for key, text in config.set.items() if isinstance(text, str)}
    templates = {path: parse_template(text, VALUES, path) for path, text in texts.items()}
    return config.render(templates, VALUES, "configs.c")


@pytest.mark.parametrize("form", READERS)
def test_values_are_laid_over_the_users_own_and_numbers_stay_numbers(form, tmp_path):
    assert READERS[form](render(ConfigFile(format=form, base=BASE, set=SET))) == EXPECTED
    path = tmp_path / "base"
    path.write_text(render(ConfigFile(format=form, base=BASE)))
    assert READERS[form](render(ConfigFile(format=form, base=str(path), set=SET))) == EXPECTED


def test_arguments_are_lines_that_a_shell_would_read(tmp_path):
    path = tmp_path / "args"
    path.write_text("--tp 1 --lr=0.5  # a comment\n--list 1 2 --title 'a b'\n--off\n")
    config = ConfigFile(
        format=Format.ARGS,
        base=str(path),
        set={"tp": "{tp}", "off": False, "sp": "{sequence_parallel}", "dir": "{directory}"},
    )
    assert render(config) == "--tp 4\n--lr 0.5\n--list 1 2\n--title 'a b'\n--sp\n--dir '/a b/c'\n"


@pytest.mark.parametrize(
    ("form", "text", "problem"),
    [
        (Format.YAML, "[1", "configs.c.base: "),
        (Format.YAML, "- 1", "configs.c.base: "),
        (Format.JSON, "{", "configs.c.base: "),
        (Format.TOML, "=", "configs.c.base: "),
        (Format.ARGS, "train.py --tp 1", "configs.c.base: "),
        (Format.ARGS, "'", "configs.c.base: "),
    ],
)
def test_a_base_that_cannot_be_read_is_told(form, text, problem, tmp_path):
    path = tmp_path / "base"
    path.write_text(text)
    with pytest.raises(InvalidValue) as caught:
        render(ConfigFile(format=form, base=str(path)))
    assert str(caught.value).startswith(f"{problem}{path}: ")
    with pytest.raises(InvalidValue, match=r"^configs\.c\.base: .*gone cannot be read: No such file or directory$"):
        render(ConfigFile(format=form, base=str(tmp_path / "gone")))


def test_a_value_that_the_format_has_no_word_for_is_told():
    with pytest.raises(InvalidValue, match=r"^configs\.c: arguments have no word for the mapping a$"):
        render(ConfigFile(format=Format.ARGS, set={"a.b": 1}))
    with pytest.raises(InvalidValue, match=r"^configs\.c: TOML has no word for None$"):
        render(ConfigFile(format=Format.TOML, base={"a": [None]}))


def test_a_choice_gives_a_program_its_own_words_and_null_is_one():
    words = {"none": None, "full": "uniform"}
    config = ConfigFile(
        format=Format.YAML,
        base={"model": {"method": "block", "keep": None}},
        set={"model.method": {"{recompute}": words}, "optimizer.on": {"{zero_stage}": {0: False, "1": True}}},
    )
    for recompute, stage in (("none", 0), ("full", 1)):
        text = config.render({}, {"recompute": recompute, "zero_stage": stage}, "configs.a")
        expected = {"method": words[recompute], "keep": None}
        assert yaml.safe_load(text) == {"model": expected, "optimizer": {"on": bool(stage)}}
    with pytest.raises(InvalidValue, match=r"recompute\(selective\) has no word there, which none, full have"):
        config.render({}, {"recompute": "selective", "zero_stage": 0}, "configs.a")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"{recompte}": {"none": 1}}, "recompute"),
        ({"{recompute}": {"some": 1}}, "'some' is no value of {recompute}"),
        ({"{zero_stage}": {"x": 1}}, "'x' is no value of {zero_stage}"),
        ({"{sequence_parallel}": {1: "on"}}, "'1' is no value of {sequence_parallel}"),
        ({"{tp}": {}}, "{tp} has no words"),
    ],
)
def test_a_wrong_choice_is_told(value, problem):
    with pytest.raises(InvalidValue) as caught:
        ConfigFile(format=Format.YAML, set={"a": value}).choices("configs.x")
    assert problem in str(caught.value)
