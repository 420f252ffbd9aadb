"""Reading a launch script: what its variables say is filled in, and what nobody can know from the text is told."""

from __future__ import annotations

import subprocess

import pytest
from dialect_cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from meshtune.runners.programs.dialects.bash.expansion import as_written, is_known
from meshtune.runners.programs.dialects.bash.lexer import NotBash
from meshtune.runners.programs.dialects.bash.script import read_script


def words(text: str) -> list[str]:
    """The words of the script's last command."""
    return list(read_script(text).commands[-1].words)


@cases
def test_what_a_script_says_is_filled_in(script, expected):
    assert words(script) == expected


@pytest.mark.parametrize(
    "text",
    [
        "$1",
        "${FOO}",
        "$(date +%s)",
        "`hostname`",
        "${FOO%.*}",
        "$((FOO * 2))",
        "$@",
        "$(wc -l < a)",
        "$(head -1 a)",
        "$(cut -f 1 a)",
    ],
)
def test_what_the_text_cannot_tell_is_kept_as_written_and_marked(text):
    (_, found, after) = words(f"A={text}\nrun x$A y")
    assert not is_known(found)
    assert as_written(found) == f"x{text}"
    assert after == "y"


@pytest.mark.parametrize(
    "text",
    ["""$(hosts "4(x2)" | cut -d '(' -f 1)""", "$(hosts ')' \\))", "${A//)/x}", '"$(hosts "a)b" "$(hosts ")")")"'],
)
def test_a_bracket_between_quotes_closes_nothing(text):
    (_, found, after) = words(f"run {text} y")
    assert not is_known(found)
    assert (as_written(found), after) == (text.removeprefix('"').removesuffix('"') if text[0] == '"' else text, "y")


def test_a_here_document_escapes_as_bash_does():
    script = 'A=1\ncat > f <<E\n\\$A $A \\\\ \\x "\nE\nrun'
    assert read_script(script).files == {"f": '$A 1 \\ \\x "'}


def test_what_a_variable_held_before_does_not_count():
    """220 words, each appended to what is there, pass 1.5 million characters; 13,000 are kept."""
    script = "".join(f'A="$A --a-word-of-some-sixty-characters-that-is-appended-to-the-rest-{n}"\n' for n in range(220))
    assert len(words(f"A=\n{script}run $A")) == 221


@cases
def test_what_is_not_followed_is_told_with_its_line(script, note):
    found = read_script(script)
    assert [told for told in found.notes if told.startswith(note)], found.notes
    assert found.commands[-1].words[0] == "run"


@pytest.mark.parametrize(
    "script",
    [
        "X=1\nif [[ $A == 1 && $B == 2 ]]; then X=2; else X=3; fi\nrun $X",
        "X=1\nif [[ -z $A || $B == 2 ]]; then X=2; fi\nrun $X",
        "X=1\nwhile read x; do X=2; done < file\nrun $X",
        "X=1\nfor i in 1; do\n for j in $L; do X=2; done\ndone\nrun $X",
        "X=1\nfor i in $L; do :; done\ncase $A in a) X=2;; b) X=3;; esac\nrun $X",
        "f() { if [ -f x ]; then X=8; return; fi; X=4; }\nf\nrun $X",
        "for i in 1 2; do X=$i; [ -f $i ] && break; done\nrun $X",
        "X=1\ncase $1 in\n a) export X=2;;\nesac\nrun $X",
        "X=1\n[ -d $A ] && X=2\nrun $X",
        "X=1\nset_up() { X=2; }\n[ -f x ] && set_up\nrun $X",
        "X=1\nread -r X Y < sizes\nrun $X",
        "for X in $L; do :; done\nrun $X",
    ],
)
def test_what_something_that_is_not_followed_may_set_is_unknown(script):
    (_, found) = words(script)
    assert not is_known(found)
    assert "X" in read_script(script).unknown


def test_what_may_be_appended_stands_after_what_is_known():
    script = "A=(--x 1)\nB='--y 2'\nif [ -n $C ]; then A+=(--z); B+=' --w'; fi\nrun \"${A[@]}\" $B"
    found = words(script)
    assert list(map(as_written, found)) == ["run", "--x", "1", "$A", "--y", "2", "$B"]
    assert [is_known(word) for word in found] == [True, True, True, False, True, True, False]


@cases
def test_a_placeholder_is_one_unknown_word_and_swallows_nothing(script, expected):
    found = words(script)
    assert list(map(as_written, found)) == expected
    assert [is_known(word) for word in found] == ["<" not in word for word in expected]


def test_expr_is_arithmetic():
    text = "nodes=2\nrun $(expr 32 / $nodes / 4) `expr $nodes \\* 3` $(expr $other + 1) $(expr length abc)"
    found = words(text)[1:]
    assert (found[:2], [is_known(word) for word in found]) == (["4", "6"], [True, True, False, False])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$PWD $(pwd) ${PWD} `pwd`", ["/here"] * 4),
        ('$(dirname $0) `dirname "$0"` $(dirname ${BASH_SOURCE[0]})', ["/repo/bin"] * 3),
        (
            '$(cd "$(dirname "${BASH_SOURCE[0]}")" &> /dev/null && pwd) $(realpath $(dirname $0)/..)',
            ["/repo/bin", "/repo"],
        ),
        ("$(cd -- $(dirname $0)/../.. ; pwd -P)x", ["/x"]),
        ("$(dirname $(readlink -f $0))", ["/repo/bin"]),
    ],
)
def test_the_folders_that_a_script_asks_for_are_known(text, expected):
    given = {"PWD": "/here", "0": "/repo/bin/launch.sh"}
    assert list(read_script(f"run {text}", given=given).commands[-1].words[1:]) == expected
    assert not is_known("".join(words(f"run {text}")))


def test_a_cd_moves_the_start_and_what_pwd_says():
    script = "cd sub/x\nrun $PWD\ncd ..\nrun $PWD\ncd $A\nrun $PWD"
    found = read_script(script, given={"PWD": "/here"}).commands
    told = [(command.directory, as_written(command.words[1])) for command in found if command.words[0] == "run"]
    assert told[:2] == [("/here/sub/x", "/here/sub/x"), ("/here/sub", "/here/sub")]
    assert not is_known(found[-1].directory + found[-1].words[1])


@pytest.mark.parametrize(
    "change",
    [
        "sed -i s/1/2/ ds.json",
        "jq . x > ds.json",
        "cp other.json ds.json",
        "if [ $A = 1 ]; then\n cat > ds.json <<E\n{1}\nE\nfi",
        "echo x | tee ds.json",
        "python gen.py >> ds.json",
    ],
)
def test_a_file_that_something_else_changes_is_not_known(change):
    found = read_script(f"cat > ds.json <<E\n{{}}\nE\n{change}\nrun")
    assert found.files == {}
    assert "ds.json" in found.changed


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
