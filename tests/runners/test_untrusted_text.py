"""Text from outside is read within its limits: what they refuse costs little, what they let through is read as ever."""

from __future__ import annotations

import json
import os
import time
import tomllib
from functools import partial

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from meshtune.runners.untrusted_text import (
    SLOW_LIMITS,
    UnreadableText,
    read_file,
    read_json,
    read_literal,
    read_toml,
    read_words,
    read_yaml,
)

# Of a busy machine; the worst takes a tenth of it on an idle one.
LIMIT_S = 2.0
LONG = "x" * 50_000
MERGED = "a: &a {" + ", ".join(f"k{n}: 1" for n in range(2000)) + "}\nl:\n" + "- <<: *a\n" * 2000
DEEP = "is nested deeper than 64 levels"
REFUSED = {
    "JSON of endless depth": (read_json, "[" * 1_000_000, DEEP),
    "JSON of closed depth": (read_json, "[" * 65 + "]" * 65, DEEP),
    "JSON of many values": (read_json, "[" + "[]," * 300_000 + "1]", "holds more than 100,000 values"),
    "JSON of many digits": (read_json, "9" * 4301, "holds a number of 4,301 digits, and at most 4,300 are read"),
    "JSON of a long key": (read_json, json.dumps({LONG: 1}), "has a key of 50,000 characters, 'xxxx"),
    "JSON of many bytes": (read_json, " " * 1_000_001, "has 1,000,001 bytes, and at most 1,000,000 are read"),
    "JSON of a key twice": (read_json, '{"a": 1, "a": 2}', "has the key 'a' twice in one object"),
    "no JSON": (read_json, '{"a": }', "is not JSON: Expecting value, line 1, column 7"),
    "no UTF-8": (read_json, b"\xff", "is not UTF-8: byte 0 is 0xff"),
    "YAML of endless depth": (read_yaml, "[" * 90_000, f"{DEEP}, line 1, column 65"),
    "YAML of indentation": (read_yaml, "- " * 45_000, DEEP),
    "YAML of keys in keys": (read_yaml, "? " * 45_000, DEEP),
    "YAML of many values": (read_yaml, "[" + "1," * 20_000 + "]", "means 10,001 values or more"),
    "aliases of a long text": (read_yaml, f"a: &a {LONG}\nb: [*a, *a]", "means 100,002 characters or more, aliases wr"),
    "aliases of depth": (read_yaml, "a0: &a0 []\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 70)), DEEP),
    "merges": (read_yaml, MERGED, "means 12,011 values or more, aliases written out, and at most 10,000 are read"),
    "a cycle": (read_yaml, "model: &a {b: *a}", "holds a part that contains itself, line 1, column 15"),
    "a number to base 60": (read_yaml, "a: " + ":".join(["1"] * 40_000), "holds a number of 79,999 characters"),
    "a number as a key": (read_yaml, "2305843009213693951: 1", "holds a number of 19 characters"),
    "two documents": (read_yaml, "--- 1\n" * 10_000, "is not YAML: it holds more than one document, line 2"),
    "YAML of a surrogate": (read_yaml, "a: \udc80", "is not YAML: "),
    "TOML of a dotted key": (read_toml, "a." * 40_000 + "b = 1", "has a key of more than 16 parts, line 1"),
    "TOML of a dotted table": (
        read_toml,
        "x = 1.5\n[" + "'a' . " * 40 + "b]",
        "has a key of more than 16 parts, line 2",
    ),
    "TOML of endless depth": (read_toml, "a = " + "[" * 40_000, DEEP),
    "TOML of inline tables": (read_toml, "a = " + "{a = " * 19_000, DEEP),
    "TOML of many tables": (read_toml, "[[a]]\n" * 12_000, "holds more than 10,000 values"),
    "TOML that never ends": (read_toml, 'a = """' + '\\"""' * 20_000 + "\\", "is not TOML: "),
    "a long word": (read_words, LONG, "has 50,000 characters, and at most 20,000 of a line of arguments are read"),
    "an open quote": (read_words, "a 'b", "a quote is never closed"),
}


@pytest.mark.parametrize(("read", "text", "message"), REFUSED.values(), ids=REFUSED)
def test_what_would_cost_much_is_refused_with_its_numbers(read, text, message):
    began = time.process_time()
    with pytest.raises(UnreadableText) as caught:
        read(text)
    assert time.process_time() - began < LIMIT_S
    assert str(caught.value).startswith(message)
    assert len(str(caught.value)) < 300


WORST = {
    "values": "\n".join(f"k{n}: 1" for n in range(4_900)),
    "tag directives": "".join(f"%TAG !{n}! a\n" for n in range(7_000)) + "--- 1",
    "numbers to base 60": "\n".join(f"a{n}: 1" + ":1" * 2_100 for n in range(20)),
    "numbers whose hashes meet": "\n".join(f"{n << 40}: 1" for n in range(1, 4_000)),
    "anchors": "".join(f"- &a{n}\n" for n in range(9_000)),
}


@pytest.mark.parametrize("text", WORST.values(), ids=WORST)
def test_the_worst_that_is_read_takes_no_longer(text):
    began = time.process_time()
    read_yaml(text)
    assert time.process_time() - began < LIMIT_S


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@given(plain)
def test_what_is_read_is_what_was_written(value):
    assert read_json(json.dumps(value)) == value
    text = yaml.safe_dump(value, allow_unicode=True)
    assert read_yaml(text) == yaml.safe_load(text)


def test_aliases_merges_and_numbers_are_read_as_ever():
    text = "a: &a {x: 1, y: [1, 2]}\nb: {<<: *a, x: 2}\nc: [*a, *a]\nd: {1: 2, 1.5: x}\ne: 2024-01-02\nf: .nan"
    found, expected = read_yaml(text), yaml.safe_load(text)
    assert found.pop("f") != expected.pop("f")
    assert found == expected
    assert read_json('[NaN, 1e999, {"a": 1}]', unique_keys=False)[2] == {"a": 1}
    assert read_json('{"a": 1, "a": 2}', unique_keys=False) == {"a": 2}
    assert read_yaml("{a: 1, a: 2}", unique_keys=False) == {"a": 2}
    toml = (
        'a.b.\'c d\' = 1.5\n[x.y]\nz = [[1, 2.5], """a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r.s"""]\n# a.b\n[[t]]\nu = 1e-3'
    )
    assert read_toml(toml) == tomllib.loads(toml)
    assert read_words("--x 'a b' # c", comments=True) == ["--x", "a b"]


def test_of_a_file_no_more_is_read_than_it_may_have(tmp_path):
    read = partial(read_file, max_bytes=SLOW_LIMITS.max_bytes)
    (tmp_path / "good").write_text("\u00e9")
    (tmp_path / "huge").touch()
    os.truncate(tmp_path / "huge", 1 << 40)
    os.mkfifo(tmp_path / "pipe")
    assert read(tmp_path / "good") == "\u00e9"
    for name, message in (
        ("huge", "has more than 100,000 bytes, and at most so many are read"),
        ("pipe", "is not a regular file"),
        ("/dev/zero", "is not a regular file"),
    ):
        with pytest.raises(UnreadableText) as caught:
            read(tmp_path / name)
        assert str(caught.value) == message


def test_literals_of_python_are_read_and_bounded():
    assert read_literal("{'a': [1, None, True], 'b\\n': '[[['}") == {"a": [1, None, True], "b\n": "[[["}
    for text in ("a", "1 +", "__import__('os')", "f'{1}'", "-" * 50_000 + "1", "{[]: 1}"):
        with pytest.raises(UnreadableText, match="is no literal of Python"):
            read_literal(text)
    with pytest.raises(UnreadableText, match="deeper than 64 levels"):
        read_literal("[" * 65 + "]" * 65)
    with pytest.raises(UnreadableText, match="at most 100,000 are read"):
        read_literal("1" * 100_001)
