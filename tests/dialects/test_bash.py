"""Reading a launch script: what its variables say is filled in, and what nobody can know from the text is told."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshtune.runners.dialects.bash.expansion import as_written, is_known
from meshtune.runners.dialects.bash.lexer import NotBash
from meshtune.runners.dialects.bash.script import read_script


def words(text: str) -> list[str]:
    """The words of the script's last command."""
    return list(read_script(text).commands[-1].words)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("TP=4\nrun --tp $TP", ["run", "--tp", "4"]),
        ("TP=4\nrun --tp ${TP} '${TP}' \"a $TP b\"", ["run", "--tp", "4", "${TP}", "a 4 b"]),
        ("run ${TP:-4} ${PP-2} ${DP:=8} $DP", ["run", "4", "2", "8", "8"]),
        ("TP=\nrun x${TP:-4}x${TP-4}x", ["run", "x4xx"]),
        ("A=1 B=2\nrun ${C:-${D:-$B}}", ["run", "2"]),
        ("run a \\\n  b # c\n", ["run", "a", "b"]),
        ("A=(\n  --x 1 # one\n  --y '2 3'\n)\nA+=(--z)\nrun \"${A[@]}\"", ["run", "--x", "1", "--y", "2 3", "--z"]),
        ("A=(--y '2 3')\nrun ${A[@]}", ["run", "--y", "2", "3"]),
        ('A=()\nrun "${A[@]}" end', ["run", "end"]),
        ('A="--x 1 \\\n --y 2"\nrun $A', ["run", "--x", "1", "--y", "2"]),
        ("N=3\nrun $(($N * 8)) $((N*8 - 2)) $(( -7 / 2 )) $((7 % 4))", ["run", "24", "22", "-3", "3"]),
        ("run 2>&1 a > out 2> err b", ["run", "a", "b"]),
        ("run a | tee log", ["run", "a"]),
        ("x=1; run $x && echo done", ["run", "1"]),
        ('if [ "a" = "b" ]; then X=1\nelif [[ 3 -gt 2 ]]; then X=2; else X=3; fi\nrun $X', ["run", "2"]),
        ("X=1\nif [ $X -eq 2 ]; then X=5; else if [ -z $Y ]; then X=9; fi; fi\nX=${X:-0}\nrun $X", ["run", "1"]),
        ("[ a = a ] && X=1 || X=2\nrun $X", ["run", "1"]),
        ("X=1\n[ ! a = a ] && X=2\nrun $X", ["run", "1"]),
        ("if [ a = a ] || [ b = c ]; then X=1; else X=2; fi\nrun $X", ["run", "1"]),
        ("if [ a = b ] || [ c = c ]; then X=1; else X=2; fi\nrun $X", ["run", "1"]),
        ("if [ a = b ] && [ c = c ]; then X=1; else X=2; fi\nrun $X", ["run", "2"]),
        ("if [ a = a ]; then X=1; elif [ b = b ]; then X=2; else X=3; fi\nrun $X", ["run", "1"]),
        ("A=1\nA+=2\nunset B\nexport C=$A\nrun $C", ["run", "12"]),
        ("A=1\nA=2 go $A\nrun $A", ["run", "1"]),
        ("cat <<EOT\nrun wrong\nEOT\nrun right", ["run", "right"]),
    ],
)
def test_what_a_script_says_is_filled_in(script, expected):
    assert words(script) == expected


@pytest.mark.parametrize("text", ["$1", "${FOO}", "$(date +%s)", "`hostname`", "${FOO%.*}", "$((FOO * 2))", "$@"])
def test_what_the_text_cannot_tell_is_kept_as_written_and_marked(text):
    (_, found, after) = words(f"A={text}\nrun x$A y")
    assert not is_known(found)
    assert as_written(found) == f"x{text}"
    assert after == "y"


@pytest.mark.parametrize(
    ("script", "note"),
    [
        ("if [ -n $KEY ]; then\n X=1\nfi\nrun", "line 1: whether this test holds is not known here, so no branch"),
        ("if [ $1 = a ]; then\n echo\nelse\n X=1\nfi\nrun", "line 1: whether this test holds is not known here"),
        ("A=1\nfor i in 1 2; do\n for j in 3; do A=2; done\n A=3\ndone\nrun $A", "line 2: what `for` opens"),
        ("start() {\n run wrong\n}\nrun right", "line 1: what `{` opens is not followed"),
        ("case $X in\n a) A=1;;\nesac\nrun", "line 1: what `case` opens is not followed"),
        ("[ -d $X ] && A=1\nrun", "line 1: whether `A=1` comes to run is not known here"),
    ],
)
def test_what_is_not_followed_is_told_with_its_line(script, note):
    found = read_script(script)
    assert [told for told in found.notes if told.startswith(note)], found.notes
    assert found.commands[-1].words[0] == "run"


def test_nothing_in_a_branch_that_may_not_be_taken_counts():
    script = "X=1\nif [[ $A == 1 && $B == 2 ]]; then X=2; else X=3; fi\nrun $X"
    assert words(script) == ["run", "1"]
    assert words("A=1\nX=1\nif [[ -z $A || $B == 2 ]]; then X=2; fi\nrun $X") == ["run", "1"]
    assert words("X=1\nwhile read x; do X=2; done < file\nrun $X") == ["run", "1"]
    assert words("X=1\nfor i in 1; do\n for j in 2; do X=2; done\n X=3\ndone\nrun $X") == ["run", "1"]


def test_a_file_that_the_script_writes_is_known_by_its_name():
    script = "S=1\nF=ds.json\ncat <<EOT > $F\n{\"stage\": $S}\nEOT\ncat > raw <<'X'\n$S\nX\nrun"
    assert read_script(script).files == {"ds.json": '{"stage": 1}', "raw": "$S"}


def test_what_is_exported_is_known_by_name_with_its_line():
    script = "A=1\nexport A B=$A\nexport PATH=/x:$PATH\nexport NOWHERE\nC=3\nrun"
    found = {name: (as_written(value), line) for name, (value, line) in read_script(script).exported.items()}
    assert found == {"A": ("1", 2), "B": ("1", 2), "PATH": ("/x:$PATH", 3)}


@pytest.mark.parametrize("script", ["run 'a", 'x="a\nb', "A=( 1 2", "run ${A", "run `x"])
def test_what_is_never_closed_is_an_error_with_its_line(script):
    with pytest.raises(NotBash, match=r"^line 1: the (quote|bracket) that opens here is never closed$"):
        read_script(script)


PARTS = st.lists(
    st.sampled_from(
        ["${A}", '"$A"', "'$A'", '"${L[@]}"', "${L[@]}", "x", '"a b"', "$((N+2*3))", "${Z:-q r}", '"${Z:-q}"', "\\$"]
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(PARTS.map("".join), min_size=1, max_size=4))
def test_bash_itself_makes_the_same_words(arguments):
    head = "A='1  2'\nN=4\nL=(p 'q r')\n"
    text = " ".join(arguments)
    told = subprocess.run(
        ["bash", "-c", f"{head}printf '%s\\0' end {text}"], capture_output=True, text=True, timeout=100, check=True
    )
    assert words(f"{head}run {text}")[1:] == told.stdout.split("\0")[1:-1], text
