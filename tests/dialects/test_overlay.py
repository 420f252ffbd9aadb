"""Laying words over a user's configuration changes those words only; TOML that we write, Python reads back."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshtune.runners.programs.dialects.base import overlaid, read_base, render_toml
from meshtune.search_spaces.checks import InvalidValue

KEYS = st.text(min_size=1, max_size=8)
SCALARS = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=20)
TABLES = st.recursive(
    st.dictionaries(KEYS, SCALARS | st.lists(SCALARS, max_size=3), max_size=4),
    lambda inner: st.dictionaries(KEYS, SCALARS | inner, max_size=4),
    max_leaves=12,
)


@given(TABLES)
def test_toml_is_read_back_as_it_was_written(document):
    assert tomllib.loads(render_toml(document)) == document


def test_toml_has_no_word_for_nothing_at_all():
    with pytest.raises(TypeError, match=r"^TOML has no word for None$"):
        render_toml({"a": {"b": None}})


def test_words_are_laid_over_section_by_section_and_the_base_is_not_touched():
    base = {"zero": {"stage": 1, "overlap": True}, "kept": 7, "gone": 1, "scalar": 3}
    words = {"zero": {"stage": 2}, "gone": None, "new": {"a": 1}, "scalar": {"b": 2}}
    assert overlaid(base, words) == {
        "zero": {"stage": 2, "overlap": True},
        "kept": 7,
        "new": {"a": 1},
        "scalar": {"b": 2},
    }
    assert base["zero"]["stage"] == 1


def test_a_base_is_a_mapping_or_the_path_of_a_file(tmp_path):
    path = tmp_path / "base.toml"
    path.write_text("a = 1\n")
    assert read_base({"a": 1}, tomllib.loads) == read_base(str(path), tomllib.loads) == {"a": 1}
    path.write_text("a 1\n")
    with pytest.raises(InvalidValue, match=r"^config: .*base\.toml: "):
        read_base(str(path), tomllib.loads)
    with pytest.raises(InvalidValue, match=r"none\.toml cannot be read: No such file or directory$"):
        read_base(str(tmp_path / "none.toml"), tomllib.loads)
