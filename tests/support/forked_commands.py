"""Commands of qacg as forked processes, which tests kill, run on a small disk, or change.

A fork has everything imported, so that a kill at a random moment interrupts the command and not the start of Python.
The forking process must not have computed anything with torch, because a fork would lack torch's threads.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_FAULT = 70  # exit status of a fork whose preparation failed


def preload() -> None:
    """Imports the modules that commands import inside functions."""
    from importlib import import_module

    for name in ("cli", "models.auto", "sentiment.predictor", "sentiment.training.trainer"):
        import_module(f"qacg_models.{name}")


@dataclass(frozen=True)
class Outcome:
    """The result of a command: exit status (negative: the signal that ended it), output, and duration in seconds."""

    status: int
    out: str
    err: str
    seconds: float

    @property
    def killed(self) -> bool:
        return self.status == -signal.SIGKILL

    @property
    def last_line(self) -> str:
        return (self.err.splitlines() or [""])[-1]


def run(
    arguments: list[str],
    log: Path,
    *,
    kill_after: float | None = None,
    before: Callable[[], None] = lambda: None,
    after: Callable[[], None] = lambda: None,
) -> Outcome:
    """Runs `qacg` with these arguments.

    Args:
        arguments: the command's arguments.
        log: path without suffix of the files log.out and log.err, which get the command's output.
        kill_after: seconds after which the command gets SIGKILL, if it has not ended by then.
        before, after: functions that the fork calls before and after the command.
    """
    files = [log.with_suffix(suffix) for suffix in (".out", ".err")]
    sys.stdout.flush()
    started = time.monotonic()
    child = os.fork()
    if not child:
        _in_fork(arguments, files, before, after)
    if kill_after is not None:
        while time.monotonic() - started < kill_after:
            time.sleep(0.0005)
        os.kill(child, signal.SIGKILL)  # the process id stays reserved until waitpid
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    seconds = time.monotonic() - started
    return Outcome(status, *(path.read_text(encoding="utf-8", errors="replace") for path in files), seconds)


def _in_fork(arguments: list[str], files: list[Path], before: Callable[[], None], after: Callable[[], None]) -> None:
    status = _FAULT
    try:
        for number, path in enumerate(files, 1):
            handle = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
            os.dup2(handle, number)
            os.close(handle)
        from qacg_models.cli.program import main

        before()
        status = main(arguments)
        after()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def mount_small_disk(folder: Path, size: int) -> None:
    """Mounts an empty file system of `size` bytes for this process only. The process must have a single thread.

    Raises:
        OSError: new namespaces, or mounts in them, are not allowed here.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    _call(libc.unshare, _CLONE_NEWUSER | _CLONE_NEWNS)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    _call(libc.mount, b"tmpfs", os.fsencode(folder), b"tmpfs", ctypes.c_ulong(0), f"size={size}".encode())


def _call(function: Callable[..., int], *arguments: object) -> None:
    if function(*arguments):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def can_mount(folder: Path) -> bool:
    """Whether `mount_small_disk` works on this machine."""
    child = os.fork()
    if not child:
        try:
            mount_small_disk(folder, 1 << 20)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def limit_files(size: int) -> None:
    """Limits the size of each file that this process writes, which causes errors as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def run_with_little_room(arguments: list[str], folder: Path, size: int, log: Path, mounts: bool) -> Outcome:
    """Runs a command that writes to `folder`, which has limited space, and keeps the files that it wrote.

    Args:
        arguments: the command's arguments.
        folder: the folder.
        size: the space in bytes.
        log: path without suffix of the files that get the command's output.
        mounts: whether the folder is a file system of this size; else no single file can become larger.
    """

    def confined() -> None:
        if mounts:
            mount_small_disk(folder, size)
        else:
            limit_files(size)

    kept = folder.with_name(f"{folder.name}.kept")
    outcome = run(arguments, log, before=confined, after=lambda: shutil.copytree(folder, kept) if mounts else None)
    if kept.exists():
        folder.rmdir()
        kept.rename(folder)
    return outcome
