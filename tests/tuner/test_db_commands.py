"""`meshtune db` and `meshtune token`: what they say, with which exit code, a secret on stdout alone, once; and the
audit log of what was done."""

import shutil
import sqlite3
import stat
from contextlib import closing
from dataclasses import astuple
from pathlib import Path

import pytest
from command_lab import run_meshtune
from typer.testing import CliRunner

from meshtune.search_spaces.checks import InvalidValue
from meshtune.tuner.access.tokens import Quotas, Scope, Token, digest, expiry
from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.cli.common import WrongCall
from meshtune.tuner.cli.main import app
from meshtune.tuner.store import Store, StoreError


@pytest.fixture
def db(tmp_path, monkeypatch):
    """Run `meshtune db ...` on a home; its output."""
    monkeypatch.delenv("MESHTUNE_DB", raising=False)
    monkeypatch.delenv("MESHTUNE_DB_FILE", raising=False)

    def run(*words: object, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["db", words[0], "--home", str(tmp_path), *map(str, words[1:])])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result.output

    return run


@pytest.fixture
def file(tmp_path):
    with Store.open(f"sqlite:///{tmp_path}/meshtune.db"):
        pass
    return tmp_path / "meshtune.db"


def test_a_home_without_a_database_gets_none_by_looking(db, tmp_path):
    for words in (("check",), ("upgrade",), ("backup", tmp_path / "copy")):
        with pytest.raises(WrongCall, match="there is no database yet"):
            db(*words)
    assert list(tmp_path.iterdir()) == []


def test_a_sound_database_is_said_to_be_sound(db, file):
    assert "nothing is wrong" in db("check")


def test_what_is_wrong_is_listed_and_fails(db, file):
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("INSERT INTO events (campaign_id, at, kind, data) VALUES ('gone', 1.0, 'x', '{}')")
        connection.commit()
    output = db("check", code=1)
    assert "refers to a row of campaigns that is not there" in output
    assert "1 problem\n" in output


def test_a_copy_is_written_once(db, file, tmp_path):
    copy = tmp_path / "copy.db"
    assert "wrote" in db("backup", copy)
    with pytest.raises(StoreError, match="exists already"):
        db("backup", copy)
    db("backup", copy, "--force")
    with Store.open(f"sqlite:///{copy}") as store:
        store.check()


def test_an_upgrade_tells_what_it_did(db, file):
    assert "already, the newest" in db("upgrade")


@pytest.mark.parametrize("url", ["file"], indirect=True)
def test_a_job_in_flight_without_a_folder_is_wrong(db, lab, url):
    id = lab.create()
    lab.run(id, until=lambda: any(trial.state == "submitted" for trial in lab.trials(id)))
    home = ("--home", lab.home.root, "--db", url)
    assert "1 jobs in flight" in db("check", *home)
    shutil.rmtree(lab.home.job(id, lab.trials(id)[0].last.job_name))
    assert f"the job {id}-t0000-a1 is in flight, but its folder is gone" in db("check", *home, code=1)


def token(**changes) -> Token:
    return Token(
        **{"name": "ann", "sha256": digest("mt_a"), "scopes": frozenset({Scope.READ}), "created_at": 0.0, **changes},
    )


def test_only_the_digest_of_a_secret_is_kept_and_only_the_secret_matches_it():
    kept = token(expires_at=None)
    assert "mt_a" not in str(kept)
    assert len(kept.sha256) == 64
    assert kept.matches("mt_a")
    assert not kept.matches("mt_b")
    assert not kept.matches(kept.sha256)


@pytest.mark.parametrize("name", ["", "-x", "a b", "a/b", "a" * 65, "t\u00e4g", "x\n"])
def test_a_name_is_safe_in_logs_and_tables(name):
    with pytest.raises(InvalidValue, match="name: must be 1 to 64"):
        token(name=name, expires_at=None)


def test_a_token_without_a_scope_is_none():
    with pytest.raises(InvalidValue, match="scopes: must be some of read, read:all, launch, command, admin"):
        token(scopes=frozenset(), expires_at=None)


def test_a_token_ends_at_its_time_or_when_it_is_revoked():
    assert token(expires_at=10.0).refusal(9.9) == ""
    assert token(expires_at=10.0).refusal(10.0) == "the token has expired"
    assert token(expires_at=None).refusal(1e12) == ""
    assert token(expires_at=None, revoked_at=5.0).refusal(6.0) == "the token was revoked"


@pytest.mark.parametrize(("text", "seconds"), [("1h", 3600), ("90d", 90 * 86400), ("8w", 56 * 86400)])
def test_an_end_is_a_time_from_now(text, seconds):
    assert expiry(text, 1000.0) == 1000.0 + seconds
    assert expiry("never", 1000.0) is None


@pytest.mark.parametrize("text", ["", "0d", "90", "d", "-1d", "1y", "1.5d", "1d ", "9999999d"])
def test_an_end_that_is_no_time_is_refused(text):
    with pytest.raises(InvalidValue, match="expires: must be such as 12h, 90d, 8w or never"):
        expiry(text, 0.0)


@pytest.mark.parametrize(
    "wrong", [{"campaigns": -1}, {"trials": True}, {"device_hours": -0.1}, {"device_hours": float("inf")}]
)
def test_a_quota_is_a_number_from_zero_on(wrong):
    with pytest.raises(InvalidValue, match=next(iter(wrong))):
        Quotas(**wrong)
    assert Quotas(campaigns=0, trials=0, device_hours=0.0)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("MESHTUNE_DB", "MESHTUNE_DB_FILE", "MESHTUNE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        return astuple(run_meshtune(tmp_path, "token", *arguments))

    return run


def kept(tmp_path: Path):
    with Store.open(Home(tmp_path / ".meshtune").database_url) as store:
        return store.access.tokens([]), store.access.audit(limit=99)


def test_a_token_is_printed_once_alone_on_stdout_and_kept_nowhere(run, tmp_path):
    options = ("--scope", "read", "--scope", "launch", "--campaigns", "3", "--trials", "50", "--device-hours", "2.5")
    code, out, err = run("create", "ann", *options)
    assert code == 0
    assert out.startswith("mt_")
    assert out.count("\n") == 1
    assert "shown this once" in err
    secret = out.strip()
    [token], [deed] = kept(tmp_path)
    assert token.matches(secret)
    assert (token.name, token.scopes) == ("ann", {Scope.READ, Scope.LAUNCH})
    assert token.expires_at - token.created_at == 90 * 86400
    assert token.quotas == Quotas(campaigns=3, trials=50, device_hours=2.5)
    assert (deed.action, deed.object, deed.outcome) == ("token create", "ann", "done")
    for path in (tmp_path / ".meshtune").iterdir():
        assert secret.encode() not in path.read_bytes()
    listed = run("list")[1]
    assert "ann" in listed
    assert "0 of 50" in listed
    assert secret not in listed + err
    assert digest(secret) not in listed


def test_a_token_has_projects_and_one_with_command_is_made_with_a_line_on_what_it_means(run, tmp_path):
    options = ("--scope", "read", "--project", "llm", "--project", "vision:read")
    assert "(read; llm, vision:read; expires 90d)" in run("create", "ann", *options)[2]
    _, _, err = run("create", "bob", "--scope", "launch", "--scope", "command")
    assert "run any program as the user of the jobs" in err.splitlines()[-1]
    [ann, _], [deed, _] = kept(tmp_path)
    assert (ann.projects, deed.object) == ({"llm", "vision:read"}, "ann")
    assert "vision" in run("list")[1]


def test_a_token_in_a_file_is_its_owners_alone_and_replaces_nothing(run, tmp_path):
    code, out, err = run("create", "ann", "--scope", "admin", "-o", "secret", "--expires", "never")
    assert (code, out) == (0, "")
    assert "wrote the token ann (admin; expires never) to secret" in err
    file = tmp_path / "secret"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    [token], _ = kept(tmp_path)
    assert token.matches(file.read_text().strip())
    assert token.expires_at is None
    code, _, err = run("create", "bob", "--scope", "read", "-o", "secret")
    assert (code, "secret is there already" in err) == (2, True)
    assert len(kept(tmp_path)[0]) == 1


def test_a_revoked_token_stays_in_the_list_and_its_name_is_free_again(run, tmp_path):
    run("create", "ann", "--scope", "read")
    code, _, err = run("create", "ann", "--scope", "read")
    assert code == 2
    assert "there is a token ann already; revoke it first" in err
    assert run("revoke", "ann") == (0, "the token ann is revoked\n", "")
    assert "revoked" in run("list")[1]
    assert run("revoke", "nobody") == (2, "", "meshtune: there is no token nobody\n")
    assert run("create", "ann", "--scope", "launch")[0] == 0
    tokens, deeds = kept(tmp_path)
    assert [token.scopes for token in tokens] == [{Scope.LAUNCH}]
    assert [deed.action for deed in deeds] == ["token create", "token revoke", "token create"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("create", "a b", "--scope", "read"), "name: must be 1 to 64"),
        (("create", "ann", "--scope", "read", "--expires", "soon"), "expires: must be such as"),
        (("create", "ann", "--scope", "all"), "Invalid value"),
        (("create", "ann", "--scope", "read", "--project", "a:write"), "projects: must be names such as vision"),
        (("create", "ann"), "Missing option"),
        (("revoke", "nobody"), "there is no database yet"),
    ],
)
def test_a_mistake_is_one_message_and_makes_nothing(run, arguments, told):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert told in err
