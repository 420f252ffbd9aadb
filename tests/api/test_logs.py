"""Logs over HTTP: listed, whole, and in parts; never anything but a log of that job."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

TEXT = "".join(f"step {number}\n" for number in range(1000))
SIZE = len(TEXT)


@pytest.fixture
def folder(create, drive, service) -> Path:
    """Of the first trial's job, with two logs."""
    id = create(budget={"trials": 1})
    drive(id)
    folder = service.home.job(id, service.store.trial(id, 0).last.job_name)
    (folder / "rank-0.log").write_text(TEXT)
    (folder / "rank-10.log").write_text("ten")
    (folder / "rank-2.log").write_text("two")
    return folder


@pytest.fixture
def get(client, folder) -> Callable[..., Any]:
    base = f"/v1/campaigns/{folder.parent.name}/trials/0/attempts/1/logs"
    return lambda name="", **headers: client.get(f"{base}/{name}" if name else base, headers=headers)


def test_logs_are_listed_in_the_order_of_ranks(get):
    files = get().json()["files"]
    assert [(file["name"], file["bytes"]) for file in files] == [
        ("rank-0.log", SIZE),
        ("rank-2.log", 3),
        ("rank-10.log", 3),
    ]
    assert files[0]["modified_at"].endswith("Z")


def test_a_log_comes_as_plain_text_that_no_browser_takes_for_anything_else(get):
    response = get("rank-0.log", **{"Accept-Encoding": "identity"})
    assert response.text == TEXT
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["accept-ranges"] == "bytes"
    assert int(response.headers["content-length"]) == SIZE


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [
        ("0-9", 0, 9),
        ("5-", 5, SIZE - 1),
        ("-20", SIZE - 20, SIZE - 1),
        (f"0-{SIZE + 50}", 0, SIZE - 1),
        (f"-{SIZE + 50}", 0, SIZE - 1),
    ],
)
def test_one_range_is_answered_with_just_it(get, asked, first, last):
    response = get("rank-0.log", Range=f"bytes={asked}")
    assert (response.status_code, response.text) == (206, TEXT[first : last + 1])
    assert response.headers["content-range"] == f"bytes {first}-{last}/{SIZE}"
    assert int(response.headers["content-length"]) == len(response.content)


@pytest.mark.parametrize("asked", [f"bytes={SIZE}-", "bytes=-0", "bytes=999999-1000000"])
def test_a_range_without_a_byte_is_told_the_size(get, problem, asked):
    response = get("rank-0.log", Range=asked)
    problem(response, 416, "/problems/range-not-satisfiable")
    assert response.headers["content-range"] == f"bytes */{SIZE}"


@pytest.mark.parametrize("asked", ["bytes=0-1,3-4", "lines=0-1", "bytes=9-3", "bytes=-", "bytes=a-b", "0-9", ""])
def test_what_is_no_single_range_is_answered_with_all(get, asked):
    response = get("rank-0.log", Range=asked)
    assert (response.status_code, response.text) == (200, TEXT)
    conditional = get("rank-0.log", **{"Range": "bytes=0-9", "If-Range": '"x"'})  # we have no validator
    assert conditional.status_code == 200


def test_nothing_but_logs_of_the_folder_is_read(get, folder, tmp_path, problem):
    secret = tmp_path / "secret.log"
    secret.write_text("secret")
    (folder / "token").write_text("secret")
    (folder / ".hidden.log").write_text("secret")
    (folder / "link.log").symlink_to(secret)
    (folder / "folder.log").mkdir()
    os.mkfifo(folder / "pipe.log")
    files = ("token", ".hidden.log", "link.log", "folder.log", "pipe.log", "none.log", "job.json")
    for name in (*files, "..", "%2e%2e%2fx.log"):
        response = get(name)
        assert response.status_code == 404, name
        assert "secret" not in response.text
    assert [file["name"] for file in get().json()["files"]] == ["rank-0.log", "rank-2.log", "rank-10.log"]


def test_a_folder_that_was_pruned_or_replaced_by_a_link_has_no_logs(get, folder, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "rank-0.log").write_text("secret")
    folder.rename(folder.with_name("moved"))
    assert get().json()["files"] == []
    folder.symlink_to(tmp_path / "other")
    assert get().json()["files"] == []
    assert get("rank-0.log").status_code == 404


def test_an_attempt_that_was_not_made_is_not_found(client, folder, problem):
    url = f"/v1/campaigns/{folder.parent.name}/trials/0/attempts/2/logs"
    assert "no attempt 2" in problem(client.get(url), 404, "/problems/not-found")["detail"]


def test_no_file_stays_open(get, folder):
    for _ in range(5):
        get("rank-0.log")
        get("rank-0.log", Range="bytes=999999-")
        get("pipe.log")
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # another thread has closed it
            assert not os.readlink(f"/proc/self/fd/{number}").startswith(str(folder))
