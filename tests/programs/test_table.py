"""The engine of programs' tables: rows are read and written alike, and a flag, a program or a dump is data."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import pytest

from meshtune.runners.documents import read_value
from meshtune.runners.programs.reading import Reading
from meshtune.runners.programs.rows import Remark, Row, holds
from meshtune.runners.programs.table import Table, table_of

PACKAGE = "meshtune.runners.programs"
PROGRAMS = sorted(
    entry.name for entry in files(PACKAGE).iterdir() if entry.is_dir() and entry.joinpath("table.toml").is_file()
)


def table(text: str) -> Table:
    document = tomllib.loads(text)
    rows = tuple(read_value(Row, row) for row in document.get("row", ()))
    remarks = tuple(read_value(Remark, remark) for remark in document.get("remark", ()))
    return Table(name="any", rows=rows, remarks=remarks, lists={}, module="tests.programs.none")


def read(text: str, **given: object) -> Reading:
    reading = Reading(given=given)
    own = table(text)
    own.read(reading)
    own.remark(reading)
    return reading


TP = """
[[row]]
field = "tp"
names = ["tensor", "old.tensor"]
absent = 1
"""
CONTEXT = """
[[row]]
field = "cp"
names = ["context"]
absent = 1
when = "cp > 1"
[[row]]
field = "context"
names = ["kind"]
words = { ring = ["p2p", "RING"], ulysses = "a2a" }
absent = "ring"
when = "cp > 1"
"""
STAGE = """
[[row]]
field = "zero_stage"
cases = [
    { value = 3, all = { shard = true, what = "weights", meta = true }, by = { what = "weights" } },
    { value = 1, all = { shard = true } },
    { by = { shard = "*" }, ask = "1 or 3?" },
    { value = 0 },
]
"""


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_table_names_functions_that_are_there_and_conditions_that_are_understood(name):
    program = table_of(f"{PACKAGE}.{name}")
    for row in program.rows:
        if row.special:
            assert callable(program.special(row.special)), row.special
        if row.when:
            holds(row.when, {})
    import_module(f"{PACKAGE}.{name}")


def test_a_name_is_read_by_any_of_its_forms_and_written_by_the_first():
    assert read(TP, tensor=4).fields == {"tp": 4}
    assert read(TP, old={"tensor": 2}).fields == {"tp": 2}
    assert table(TP).write({"tp": 4}) == {"tensor": 4}


def test_a_default_holds_only_where_everything_was_read():
    assert read(TP).fields == {"tp": 1}
    unsure = Reading(given={}, more="$ARGS")
    table(TP).read(unsure)
    assert unsure.fields == {}
    [question] = unsure.questions
    assert (question.path, question.text) == (
        "baseline.tp",
        "no word that was read says tensor, but $ARGS may; else it is 1",
    )


@pytest.mark.parametrize("value", ["many", 0, "0", True, [1, 2], "\x01$TP\x02", "<TP>"])
def test_what_is_no_known_number_is_asked_and_never_a_default(value):
    reading = read(TP, tensor=value)
    assert reading.fields == {}
    assert [question.path for question in reading.questions] == ["baseline.tp"]


def test_a_word_is_read_whatever_its_case_and_only_where_its_condition_holds():
    assert read(CONTEXT, context=2, kind="ring").fields == {"cp": 2, "context": "ring"}
    assert read(CONTEXT, kind="a2a").fields == {"cp": 1}
    [question] = read(CONTEXT, context=2, kind="mesh").questions
    assert (question.path, question.text) == ("baseline.context", "kind mesh: meshtune knows p2p, a2a")
    assert table(CONTEXT).write({"cp": 1, "context": "ring"}) == {}
    assert table(CONTEXT).write({"cp": 2, "context": "ring"}) == {"context": 2, "kind": "p2p"}


def test_cases_are_read_by_their_marks_in_order():
    assert read(STAGE, what="Weights", shard=True).fields == {"zero_stage": 3}
    assert read(STAGE, shard=True).fields == {"zero_stage": 1}
    assert read(STAGE).fields == {"zero_stage": 0}
    [question] = read(STAGE, shard="some").questions
    assert (question.path, question.text) == ("baseline.zero_stage", "shard some: 1 or 3?")
    assert table(STAGE).write({"zero_stage": 3}) == {"shard": True, "what": "weights", "meta": True}


def test_the_first_row_that_says_a_field_counts():
    rows = f'{TP}[[row]]\nfield = "tp"\nnames = ["later"]\n'
    assert read(rows, tensor=2, later=8).fields == {"tp": 2}


def test_remarks_speak_of_what_is_on_and_not_of_what_is_off():
    remark = '[[remark]]\nnames = ["fp8", "int8"]\nnote = "8-bit products"\n'
    assert read(remark, fp8=False, int8="no").notes == []
    assert read(remark, fp8="e4m3").notes == ["fp8 stays as it is, but predictions do not know 8-bit products"]


def test_a_flag_is_one_row():
    """The proof for the kind "a new flag": the table alone decides how it is read and written."""
    row = '[[row]]\nfield = "ep"\nnames = ["--experts-over"]\nabsent = 1\n'
    grown = table(TP + row)
    reading = Reading(given={"--experts-over": ("4",)})
    grown.read(reading)
    assert reading.plan() == {"tp": 1, "ep": 4}
    assert grown.write({"tp": 1, "ep": 4}) == {"tensor": 1, "--experts-over": 4}


def test_a_row_without_a_way_to_be_read_is_refused():
    with pytest.raises(ValueError, match="needs names, cases, writes, special or absent"):
        table('[[row]]\nfield = "tp"\n')
    with pytest.raises(ValueError, match="is not a known key"):
        table('[[row]]\nfield = "tp"\nname = ["tensor"]\n')


def test_a_variant_has_sections_and_names_of_its_own():
    rows = TP.replace('"tensor", "old.tensor"', '"{model}.tensor"')
    document = tomllib.loads('[log]\nstep = "s"\n[variants.new]\nlog = { loss = "l" }\nplaces = { model = "a.b" }\n')
    own = replace(table(rows), lists=document).variant("new")
    assert own.rows[0].names == ("a.b.tensor",)
    assert own.lists["log"] == {"step": "s", "loss": "l"}
    reading = Reading(given={"a": {"b": {"tensor": 2}}}, places=own.lists["places"])
    own.read(reading)
    assert reading.fields == {"tp": 2}
    assert reading.get("{model}.tensor") == 2
    assert own.variant("new") == own


def test_trials_set_keys_that_the_user_has_and_keep_what_the_reading_says():
    rows = "".join(
        f'[[row]]\nfield = "{field}"\nnames = ["model.{field}"]\nabsent = 1\nset = "{how}"\n'
        for field, how in (("tp", "always"), ("pp", "always"), ("ep", "key"), ("cp", "key"))
    )
    own = table(rows)
    reading = Reading(given={"model": {"ep": None}}, kept={"pp": 2, "context": "ring"})
    own.read(reading)
    # Where one context rank stays, there are no kinds.
    assert own.told(reading, reading) == ({"model.tp": "{tp}", "model.ep": "{ep}"}, {"cp": 1, "pp": 2})


def test_a_remark_asks_once_for_all_of_its_names_also_by_their_beginning():
    rows = '[[remark]]\nnames = ["freeze_*", "frozen"]\nask = "what is trained?"'
    reading = read(rows, freeze_a=True, freeze_b=False, freeze_c="2", other=True)
    assert [question.text for question in reading.questions] == ["freeze_a True, freeze_c 2: what is trained?"]


def test_a_program_may_have_the_rows_of_another(tmp_path, monkeypatch):
    texts = {
        "one": '[program]\ntitle = "One"\n[lists]\nwords = "a"\n[[row]]\nfield = "tp"\nspecial = "own"\n' + CONTEXT,
        "two": '[program]\nrows_of = "one"\n[[row]]\nfield = "cp"\nnames = ["ring"]\nabsent = 1\n',
    }
    for name, text in texts.items():
        (tmp_path / "group_of_two" / name).mkdir(parents=True)
        (tmp_path / "group_of_two" / name / "__init__.py").write_text("")
        (tmp_path / "group_of_two" / name / "table.toml").write_text(text)
    (tmp_path / "group_of_two" / "one" / "special.py").write_text("def own(reading):\n    reading.put('tp', 4)\n")
    monkeypatch.syspath_prepend(tmp_path)
    two, reading = table_of("group_of_two.two"), Reading(given={"ring": 2, "context": 8, "kind": "ring"})
    two.read(reading)
    assert (reading.fields["tp"], reading.fields["cp"], two.words("lists.words")) == (4, 2, {"a"})
    assert "title" not in two.lists["program"]


def test_what_is_asked_gets_no_default():
    reading = Reading(given={})
    reading.ask("baseline.tp", "which?")
    table(TP).read(reading)
    assert "tp" not in reading.fields
    assert len(reading.questions) == 1


def test_the_page_of_imports_names_every_program():
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "import.md").read_text("utf-8")
    sections = [table_of(f"{PACKAGE}.{name}").lists.get("program", {}) for name in PROGRAMS]
    titles = [section["title"].removeprefix("a ").split()[0] for section in sections if "title" in section]
    assert len(titles) >= 18
    assert [title for title in titles if title not in page] == []
