"""What is read of a job's folder while the job goes on writing."""

from meshtune.tuner.service.job_files import MAX_FILES, list_logs, open_log


def test_a_log_that_grows_is_read_as_long_as_it_was(tmp_path):
    path = tmp_path / "rank-0.log"
    path.write_bytes(b"a" * 100_000)
    log = open_log(tmp_path, "rank-0.log")
    chunks = log.read(0, log.size_bytes)
    first = next(chunks)
    with path.open("ab") as file:
        file.write(b"b" * 100_000)
    assert first + b"".join(chunks) == b"a" * 100_000
    log.close()


def test_a_log_that_was_cut_ends_early(tmp_path):
    path = tmp_path / "rank-0.log"
    path.write_bytes(b"a" * 100_000)
    log = open_log(tmp_path, "rank-0.log")
    path.write_bytes(b"b")
    assert b"".join(log.read(0, log.size_bytes)) == b"b"
    log.close()


def test_a_list_is_bounded(tmp_path):
    for number in range(MAX_FILES + 10):
        (tmp_path / f"rank-{number}.log").touch()
    files = list_logs(tmp_path)
    assert [file.name for file in files] == [f"rank-{number}.log" for number in range(MAX_FILES)]
