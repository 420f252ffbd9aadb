"""`meshtune examples`: what is installed is listed, and written where its own commands find it."""

from __future__ import annotations

import pytest
from command_lab import run_meshtune

from meshtune.tuner.cli.commands.before import example_texts, first_sentence, study_texts
from meshtune.tuner.specs.document import parse_yaml
from meshtune.tuner.specs.read import read_spec
from meshtune.tuner.studies.read import load_study


def test_every_example_is_listed_with_a_line(tmp_path):
    listed = run_meshtune(tmp_path, "examples").out
    assert {"demo", "bring-your-own", "deepspeed", "megatron", "torchtitan"} <= set(example_texts())
    for name, found in example_texts().items():
        (spec,) = (text for file, text in found.items() if file.endswith(".yaml"))
        line = first_sentence(spec)
        assert 20 < len(line) <= 130
        assert any(row.split() == [name, *line.split()] for row in listed.splitlines())


@pytest.mark.parametrize("name", example_texts())
def test_an_example_is_written_where_the_documentation_has_it_and_is_read_there(tmp_path, monkeypatch, name):
    done = run_meshtune(tmp_path, "examples", name)
    files = [tmp_path / "examples" / file for file in example_texts()[name]]
    assert done.code == 0
    assert all(file.is_file() and f"wrote {file.relative_to(tmp_path)}" in done.out for file in files)
    (spec,) = (file for file in files if file.suffix == ".yaml")
    assert done.out.endswith(f"next: meshtune spaces {spec.relative_to(tmp_path)}\n")
    monkeypatch.chdir(tmp_path)
    assert read_spec(parse_yaml(spec.read_text()), None)


@pytest.mark.parametrize("name", study_texts())
def test_a_study_is_written_and_can_be_run_from_there(tmp_path, name):
    done = run_meshtune(tmp_path, "examples", name)
    assert done.code == 0
    assert all((tmp_path / "examples" / file).read_text() == text for file, text in study_texts()[name].items())
    assert done.out.endswith(f"next: meshtune study run examples/{name}\n")
    assert load_study(tmp_path / "examples" / name, None).planned


def test_nothing_is_written_where_one_of_the_files_is_there(tmp_path):
    (tmp_path / "there/examples/deepspeed").mkdir(parents=True)
    (tmp_path / "there/examples/deepspeed/train.py").write_text("mine")
    done = run_meshtune(tmp_path, "examples", "deepspeed", "-o", "there")
    assert done.code == 2
    assert "there/examples/deepspeed/train.py is there already" in done.err
    assert [file.name for file in (tmp_path / "there/examples/deepspeed").iterdir()] == ["train.py"]


def test_a_name_that_is_none_gets_the_nearest(tmp_path):
    done = run_meshtune(tmp_path, "examples", "demmo")
    assert (done.code, list(tmp_path.iterdir())) == (2, [])
    assert "did you mean 'demo'?" in done.err
