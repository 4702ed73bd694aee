"""Where certificates are kept: one JSON file per environment, in the first folder that can be had.

Nothing here raises. A folder that cannot be written is passed by; a file that is damaged, or that speaks of another
environment, is as good as none.
"""

import contextlib
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from qacg_kernels.certificates.certificate import Certificate
from qacg_kernels.certificates.environment import digest_of

OVERRIDE = "QACG_CERTIFICATES"


def folders() -> Iterator[Path]:
    """Where a certificate may lie, most wanted first: QACG_CERTIFICATES, the user's cache, a temporary folder."""
    override = os.environ.get(OVERRIDE)
    if override:
        yield Path(override)
        return
    cache = os.environ.get("XDG_CACHE_HOME")
    if cache:
        yield Path(cache) / "qacg_kernels" / "certificates"
    with contextlib.suppress(RuntimeError):  # no HOME, and a user without a name
        yield Path.home() / ".cache" / "qacg_kernels" / "certificates"
    yield _temporary()


def _temporary() -> Path:
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    return Path(tempfile.gettempdir()) / f"qacg_kernels-{user}"


def _is_ours(folder: Path) -> bool:
    """Whether nobody else could have put a certificate there; asked of folders that others may have made."""
    if not hasattr(os, "getuid"):
        return True
    state = folder.lstat()
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid() and not state.st_mode & 0o022


def _file(folder: Path, environment: dict[str, str]) -> Path:
    return folder / f"{digest_of(environment)}.json"


def read(environment: dict[str, str]) -> tuple[Certificate, Path] | None:
    """The certificate of an environment and its file; None where there is none that can be used."""
    for folder in folders():
        try:
            if folder == _temporary() and not _is_ours(folder):
                continue
            path = _file(folder, environment)
            certificate = Certificate.parse(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if certificate.environment == environment:
            return certificate, path
    return None


def write(certificate: Certificate) -> Path | None:
    """Keeps a certificate, whole or not at all, together with what its file already says; None: no folder took it.

    Several processes may write at once. Each renames a file of its own into place, and the last one stays.
    """
    for folder in folders():
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700 if folder == _temporary() else 0o777)
            if folder == _temporary() and not _is_ours(folder):
                continue
            path = _file(folder, certificate.environment)
            _replace(path, _with_known(certificate, path).dump())
        except OSError:
            continue
        return path
    return None


def _with_known(certificate: Certificate, path: Path) -> Certificate:
    try:
        known = Certificate.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return certificate
    return known.merged(certificate) if known.environment == certificate.environment else certificate


def _replace(path: Path, text: str) -> None:
    unfinished = path.with_name(f".{path.stem}.{os.getpid()}.{secrets.token_hex(4)}")
    # With the permissions that the user's umask gives: a container's builder writes what its user reads.
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise
