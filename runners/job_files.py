"""The one way to read what a job wrote into its folder; the driver and the API use it alike. Standard library only.

A job may leave anything there: a pipe that nobody writes to, a link to an endless device, a file of terabytes, a name
for a file of somebody else's. So a folder is opened by itself and a file from there by its plain name, links are not
followed, only a regular file is opened, it must belong to us, to the folder's owner or to root (a service that is root
itself reads everybody's), and no more of it is
read than its kind may have.

Errors: FileNotFoundError (there is none, or no folder), UnfitFile (reading again gives the same), and every other
OSError (a dead server, too many open files): the file may well be good, and reading again may help. A regular file on
a dead network file system keeps its reader for ever, whatever it is opened with: whoever must not wait reads in a
thread (`tuner.service.reading`)."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from meshtune.search_spaces.checks import raising

# Of a document (result, note, failure, status): 16,000 ranks with their profiles.
MAX_DOCUMENT_BYTES = 8 << 20
# A job may leave any number of files.
MAX_ENTRIES = 20_000
CHUNK_BYTES = 1 << 20
# What the operating system says where the storage fails, not the program that uses it.
FULL = (errno.ENOSPC, errno.EDQUOT)
STORAGE_ERRORS = (*FULL, errno.EROFS, errno.EIO, errno.ESTALE)
# A file system with less than this, in bytes, holds no result.
_FULL_BYTES = 64 << 10
_UNFIT_ERRORS = {
    errno.ELOOP: "is a link",
    errno.EACCES: "may not be read",
    errno.EPERM: "may not be read",
    errno.ENXIO: "is a socket or a pipe, not a regular file",
}
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class UnfitFile(ValueError):
    """What stands under that name is nothing that we read; the message says what it is."""


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A regular file as long as it was when it was opened. Close it."""

    descriptor: int
    size_bytes: int

    def read(self, first: int, count: int, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        """`count` bytes from `first` on, in chunks; fewer where the file was cut since. Raises OSError."""
        while count > 0 and (chunk := os.pread(self.descriptor, min(count, chunk_bytes), first)):
            first, count = first + len(chunk), count - len(chunk)
            yield chunk

    def close(self) -> None:
        os.close(self.descriptor)


@contextmanager
def opened(path: Path, flags: int, mode: int = 0o600) -> Iterator[int]:
    """The descriptor of a file of our own, closed afterwards. mode: of one that is made. Raises OSError."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened_folder(folder: Path) -> Iterator[int]:
    """The folder's descriptor. Raises FileNotFoundError where it is gone, or no folder; OSError."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(folder)) from None
        raise
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_file(path: Path) -> OpenFile:
    """Raises FileNotFoundError, UnfitFile, OSError."""
    with opened_folder(path.parent) as folder:
        try:
            # A look first: to open a device or a pipe does something to it.
            _require_fit(path.name, os.stat(path.name, dir_fd=folder, follow_symlinks=False), folder)
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(path.name, flags, dir_fd=folder)
        except OSError as error:
            if (unfit := _UNFIT_ERRORS.get(error.errno or 0)) is not None:
                raise UnfitFile(f"{path.name} {unfit}") from None
            raise
        try:
            known = os.fstat(descriptor)
            _require_fit(path.name, known, folder)
        except BaseException:
            os.close(descriptor)
            raise
    return OpenFile(descriptor, known.st_size)


def _require_fit(name: str, known: os.stat_result, folder: int) -> None:
    if not stat.S_ISREG(known.st_mode):
        raise UnfitFile(f"{name} is {_KINDS.get(stat.S_IFMT(known.st_mode), 'something else')}, not a regular file")
    # A job may run as another user: root in a container, the one of `--run-as` under a service that is root itself and
    # so reads what it may anyway. Hard links to others' files are the kernel's to refuse (fs.protected_hardlinks).
    if os.geteuid() != 0 and known.st_uid not in (0, os.geteuid(), os.fstat(folder).st_uid):
        raise UnfitFile(f"{name} belongs to the user {known.st_uid}, not to its folder's owner")


def read_document(path: Path, most_bytes: int = MAX_DOCUMENT_BYTES) -> str:
    """The text of a file that is read whole. Raises FileNotFoundError, UnfitFile, OSError."""
    with closing(open_file(path)) as file:
        if file.size_bytes > most_bytes:
            raise UnfitFile(f"{path.name} has {file.size_bytes} bytes, and at most {most_bytes} are read")
        content = b"".join(file.read(0, file.size_bytes))
    with raising(UnfitFile, f"{path.name} is not UTF-8", UnicodeDecodeError):
        return content.decode("utf-8")


def list_entries(folder: Path) -> list[str]:
    """The names in a folder, at most MAX_ENTRIES, in any order; none where it is gone. Raises OSError."""
    with suppress(FileNotFoundError), opened_folder(folder) as descriptor, os.scandir(descriptor) as entries:
        return [entry.name for entry in islice(entries, MAX_ENTRIES)]
    return []


def storage_fault(folder: Path) -> str:
    """What is wrong just now with the place that a job was to write to, for people; empty where nothing is."""
    try:
        with opened_folder(folder) as descriptor:
            status = os.fstatvfs(descriptor)
    except FileNotFoundError:
        return f"the job's folder {folder} is gone"
    except OSError as error:
        return f"the job's folder {folder} cannot be opened: {error.strerror}"
    if status.f_flag & os.ST_RDONLY:
        return f"the file system of the job's folder {folder} is read-only"
    if status.f_bavail * status.f_frsize < _FULL_BYTES or (status.f_files and not status.f_favail):
        return f"the file system of the job's folder {folder} is full"
    return ""
