"""What came from outside reaches a terminal as text: no control characters, no markup."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
import yaml
from command_lab import run_meshtune, shown
from rich.text import Text
from toy import SPEC

# A title, the clipboard, cursor and colours, C1, an override of the direction of writing, a carriage return, markup.
HOSTILE = "\x1b]0;owned\x07\x1b]52;c;aGk=\x07\x1b[2J\x1b[31mred\x9b31m\u202egnp.exe\u2066\rover[bold]x[/bold][/]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a campaign whose job, nodes and people say hostile things."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "spec.yaml").write_text(yaml.safe_dump({**SPEC, "budget": {"trials": 3}, "confirm": 0}))
    assert run_meshtune(folder, "run", "spec.yaml").code == 0
    with closing(sqlite3.connect(folder / ".meshtune" / "meshtune.db")) as connection:
        connection.execute("UPDATE campaigns SET reason = ?, search_ended = ?, name = ?", [HOSTILE] * 3)
        said = (
            HOSTILE,
            f"{HOSTILE}\n{HOSTILE}",
            "phase" + HOSTILE,
            '["' + HOSTILE.encode("unicode_escape").decode() + '"]',
        )
        nodes = said[3].replace("\\x", "\\u00")
        connection.execute(
            "UPDATE attempts SET reason = ?, log_tail = ?, phase = ?, nodes = ?, avoid = ?", [*said[:3], nodes, nodes]
        )
        connection.execute(
            "UPDATE attempts SET verdict = 'crashed', cause = 'user_bug' WHERE job_name LIKE '%-t0000-a1'"
        )
        connection.execute("DELETE FROM steps WHERE attempt_id = (SELECT min(id) FROM attempts)")
        connection.execute("DELETE FROM measurements WHERE attempt_id = (SELECT min(id) FROM attempts)")
        connection.commit()
    return folder


COMMANDS = (
    *("show", "show last", "show last --trial 0", "show last --trial 1", "best last", "analyze last"),
    *("resume last", "pause last", "cancel last", "export last -o out --format json", "db check", "spaces spec.yaml"),
    *("estimate spec.yaml", "project spec.yaml", f"show {HOSTILE}", f"best {HOSTILE}", f"spaces {HOSTILE}"),
    *("recommend --model gpt-micro --cluster hpc --nodes 2", f"recommend --model {HOSTILE} --cluster x --nodes 2"),
    *("recommend --model gpt-micro --cluster hpc --nodes 2 --env", "best last --json", "token list"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.replace(HOSTILE, "HOSTILE"))
def test_no_command_prints_a_control_character(folder, command):
    said = run_meshtune(folder, *command.split(" "))
    assert "Traceback" not in said.err
    printed = said.out + said.err
    assert printed
    assert {character for character in printed if not character.isprintable()} <= {"\n"}
    if command in ("show", "show last", "show last --trial 0"):
        assert "\\x1b]0;owned\\x07" in printed
        assert "\\x9b31m\\u202egnp.exe\\u2066" in printed
        assert "[bold]x[/bold][/]" in printed


def test_texts_with_styles_keep_them():
    text = Text("plain ").append("red\x1b[0m", "red").append(" end")
    assert shown(text) == "plain red\\x1b[0m end\n"
