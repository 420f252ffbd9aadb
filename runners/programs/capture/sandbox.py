"""Runs a command whose writes last no longer than it: `sandbox.py FOLDER COMMAND...`. Any Python from 3.10 on.

Namespaces of its own hold its processes and leave it no network, and an overlay on each directory takes its writes.
Where the kernel does not allow that, nothing runs, and FOLDER/unsealed has the reason."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

# linux/sched.h, sys/mount.h, linux/fcntl.h, linux/prctl.h; the call's number is that of every architecture.
_NAMESPACES = 0x10000000 | 0x20000 | 0x40000000 | 0x20000000 | 0x08000000  # user, mount, network, pid, ipc
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 1 << 18
_MOUNT_SETATTR, _AT_EMPTY_PATH, _RDONLY = 442, 0x1000, 1
_PR_CAPBSET_DROP, _CAP_FSETID, _CAPABILITIES = 24, 4, 64
_ALL = "0 0 4294967295"
_MAX_PLACES = 1000
_MAX_FILE_BYTES, _MAX_COPY_BYTES, _MAX_COPIED = 1 << 30, 1 << 29, 20_000
# Seconds for what the command leaves in the background, such as `nohup torchrun ... &`.
_REST_S = 15

_LIBC = ctypes.CDLL(None, use_errno=True)


def main(folder: str, command: list[str]) -> int:
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_FILE_BYTES, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    if (child := os.fork()) == 0:
        try:
            _seal(folder)
        except (OSError, AttributeError) as error:  # AttributeError: no Linux
            with open(os.path.join(folder, "unsealed"), "w", encoding="utf-8") as file:
                file.write(str(error))
            os._exit(1)
        os._exit(_ended(_started(lambda: _ended_with_the_rest(_started(lambda: _exec(command))))))
    _, status = os.waitpid(child, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        with suppress(OSError):
            _write(str(child), "uid_map", _ALL)
            _write(str(child), "gid_map", _ALL)
        os.kill(child, signal.SIGCONT)
        _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) % 256


def _seal(folder: str) -> None:
    """Every write of this process and of those it starts goes to FOLDER, which they cannot see. Raises OSError."""
    here, user, group = os.getcwd(), os.getuid(), os.getgid()
    of_others = _is_of_others(here)
    # What lies in a directory of others is written to where it is the root of an overlay itself.
    named = [_existing(part) for text in os.environ.values() for part in text.split(":") if part.startswith("/")]
    roots = {here, os.environ.get("HOME", here), "/tmp", "/var/tmp", *filter(_is_of_others, named)}
    _check(_LIBC.unshare(_NAMESPACES))
    # Whoever waits for us may map all users and groups to themselves, if it is root; else we map our own.
    os.kill(os.getpid(), signal.SIGSTOP)
    whole = bool(_text("gid_map"))
    if not whole:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            _write("self", name, text)
    _mount("none", "/", flags=_MS_REC | _MS_PRIVATE)
    mounted = {line.split()[4].encode().decode("unicode_escape") for line in _text("mountinfo").splitlines()}
    memory = os.path.join(folder, "memory")
    _mount("tmpfs", memory, "tmpfs", data=f"size={_MAX_FILE_BYTES}")
    # A disk keeps the groups of a project; what holds FOLDER itself can only be covered by memory.
    layers = [_opened(os.path.join(folder, "layers")), _opened(memory)]
    places = [(path, _opened(path)) for path in sorted({*_places("/", mounted), *filter(os.path.isdir, roots)})]
    records, all_mounts = os.path.join(folder, "records"), [_opened(path) for path in mounted if os.access(path, 0)]
    written, bare = _opened(records), {here} if of_others and not whole else set()
    for number, (path, below) in enumerate(places):
        for layer in layers:
            for kind in ("upper", "work"):
                os.mkdir(f"{kind}{number}", 0o755, dir_fd=layer)
            own = f"upperdir=/proc/self/fd/{layer}/upper{number},workdir=/proc/self/fd/{layer}/work{number}"
            try:
                _mount("overlay", path, "overlay", data=f"lowerdir=/proc/self/fd/{below},{own},userxattr")
                break
            except OSError:
                continue
        else:
            bare.add(path)
    _mount(f"/proc/self/fd/{written}", records, flags=_MS_BIND)
    # No overlay stands for a folder of Lustre, nor for what belongs to a group that is not mapped.
    if here in bare:
        copy = f"/proc/self/fd/{layers[0]}/copy"
        if not _copy(here, copy):
            raise OSError("no overlay of the current folder, which is too large for a copy")
        _mount(copy, here, flags=_MS_BIND)
    attributes = (ctypes.c_uint64 * 4)(_RDONLY)
    for mount in all_mounts:
        _check(_LIBC.syscall(_MOUNT_SETATTR, mount, b"", _AT_EMPTY_PATH, attributes, ctypes.sizeof(attributes)))
    for capability in range(_CAP_FSETID + 1, _CAPABILITIES):
        _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    os.chdir(here)


def _existing(path: str) -> str:
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def _is_of_others(path: str) -> bool:
    """Whether a directory is theirs, and ours to write to."""
    status = os.stat(path)
    return (status.st_uid, status.st_gid) != (os.getuid(), os.getgid()) and os.access(path, os.W_OK) and path != "/"


def _places(path: str, mounted: set[str]) -> Iterator[str]:
    """The directories that an overlay can stand for: those without a mount below them."""
    if path in ("/proc", "/sys", "/dev"):
        yield from {"/dev/shm"} & mounted if path == "/dev" else ()
    elif any(inner.startswith(path.rstrip("/") + "/") for inner in mounted if inner != path):
        try:
            inner = [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
        except OSError:
            inner = []
        for directory in inner[:_MAX_PLACES]:
            yield from _places(directory, mounted)
    else:
        yield path


def _copy(source: str, target: str) -> bool:
    """Copy a folder's plain files; not where they are too many."""
    count = size = 0
    for root, directories, files in os.walk(source):
        directories[:] = [name for name in directories if name != ".git" and os.path.join(root, name) not in target]
        folder = os.path.join(target, os.path.relpath(root, source))
        os.makedirs(folder, exist_ok=True)
        for path in (os.path.join(root, name) for name in files):
            if os.path.isfile(path) and os.access(path, os.R_OK):
                count, size = count + 1, size + os.path.getsize(path)
                if count > _MAX_COPIED or size > _MAX_COPY_BYTES:
                    return False
                shutil.copy(path, folder)
    return True


def _ended_with_the_rest(first: int) -> int:
    """The status of the first child, once all others have ended too, or have had their time."""
    code = 0
    signal.signal(signal.SIGALRM, lambda *_: os._exit(code))
    while True:
        try:
            process, status = os.wait()
        except ChildProcessError:
            return code
        if process == first:
            code = os.waitstatus_to_exitcode(status) % 256
            signal.alarm(_REST_S)


def _started(task: Callable[[], int]) -> int:
    child = os.fork()
    if child == 0:
        os._exit(task())
    return child


def _ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) % 256


def _exec(command: list[str]) -> int:
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return 127


def _write(process: str, name: str, text: str) -> None:
    with open(f"/proc/{process}/{name}", "w", encoding="ascii") as file:
        file.write(text)


def _text(name: str) -> str:
    with open(f"/proc/self/{name}", encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def _opened(path: str) -> int:
    return os.open(path, os.O_PATH)


def _mount(source: str, target: str, kind: str = "none", flags: int = 0, data: str = "") -> None:
    given = [os.fsencode(text) for text in (source, target, kind)]
    _check(_LIBC.mount(*given, ctypes.c_ulong(flags), os.fsencode(data)))


def _check(code: int) -> None:
    if code:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
