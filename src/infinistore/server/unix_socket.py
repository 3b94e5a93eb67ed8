"""Who owns the unix socket: a lock decides that dies with its process.

A bound socket's file outlives kill -9, and probing it by connect() cannot tell a dead owner from a
busy one. The lock file beside it can: the kernel drops a flock with its holder.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from collections.abc import Mapping
from pathlib import Path

from infinistore.errors import SetupError

PATH_BYTES_MAX = 107  # sun_path holds 108 with its closing zero


def default_path(port: int, environ: Mapping[str, str] = os.environ) -> Path:
    """Where the socket of the server on `port` goes; a chosen port (0) is not known in advance."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime and os.path.isdir(runtime) and os.access(runtime, os.W_OK):
        folder = Path(runtime) / "infinistore"
    else:
        folder = Path("/tmp") / f"infinistore-{os.getuid()}"
    return folder / (f"{port}.sock" if port else f"pid-{os.getpid()}.sock")


def prepare_folder(folder: Path) -> None:
    """Makes our own folder, private to this user. Raises `SetupError` if it is not ours alone."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.lstat()
    except OSError as error:
        raise SetupError(
            f"cannot make {folder} for the unix socket: {error.strerror}; "
            "give --unix-socket PATH, or --unix-socket none for TCP only"
        ) from error
    private = stat.S_ISDIR(facts.st_mode) and facts.st_mode & 0o077 == 0
    if not private or facts.st_uid != os.getuid():  # another user may have made it first, in /tmp
        raise SetupError(
            f"{folder} must be a folder of this user with mode 0700; "
            "remove it, or give --unix-socket PATH in a folder of yours"
        )


class SocketClaim:
    """The right to bind `path`, held until `release()` or the process's end."""

    def __init__(self, path: Path) -> None:
        """Raises `SetupError` if a live server holds it. Removes what a dead one left."""
        if len(os.fsencode(path)) > PATH_BYTES_MAX:
            raise SetupError(
                f"the unix socket's path has {len(os.fsencode(path))} bytes, more than the "
                f"{PATH_BYTES_MAX} of the system; give a shorter --unix-socket"
            )
        self.path = path
        self._lock_path = _lock_path(path)
        lock = _try_lock(self._lock_path, create=True)
        if lock is None:
            raise SetupError(
                f"the unix socket {path} belongs to a running server; "
                "stop that one, or give another --port or --unix-socket"
            )
        self._lock = lock
        try:
            _remove_socket(path)
        except SetupError:
            self._unlock()
            raise

    def release(self) -> None:
        """Removes socket and lock; a second call does nothing."""
        if self._lock < 0:
            return
        if self.path.is_socket():
            self.path.unlink(missing_ok=True)
        self._unlock()

    def _unlock(self) -> None:
        self._lock_path.unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = -1


def _lock_path(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _try_lock(path: Path, *, create: bool) -> int | None:
    """The locked file's descriptor, or None if another process holds it (or it is not there)."""
    while True:
        try:
            flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
            lock = os.open(path, flags, 0o600)
        except FileNotFoundError as error:
            if not create:
                return None
            raise SetupError(f"{path.parent} is missing; make it first") from error
        except OSError as error:
            raise SetupError(f"cannot open {path}: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            return None
        # Its last holder removes the file: a lock on a name that is gone protects nothing.
        try:
            if os.fstat(lock).st_ino == os.stat(path).st_ino:
                return lock
        except FileNotFoundError:
            pass
        os.close(lock)


def _remove_socket(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise SetupError(f"cannot look at {path}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise SetupError(f"{path} exists and is no socket; remove it or give another --unix-socket")
    if _is_listening(path):  # some other program's: those know nothing of our lock
        raise SetupError(f"the unix socket {path} is in use; give another --unix-socket")
    path.unlink(missing_ok=True)


def _is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fsencode(path))
        except BlockingIOError:  # a full queue: someone listens
            return True
        except OSError:
            return False
        return True


def sweep(folder: Path) -> list[Path]:
    """Removes the sockets that killed servers left in our own folder; returns them."""
    swept = []
    for lock_path in sorted(folder.glob("*.sock.lock")):
        try:
            lock = _try_lock(lock_path, create=False)
        except SetupError:  # not ours to open: not ours to sweep
            continue
        if lock is None:
            continue
        path = lock_path.with_name(lock_path.name.removesuffix(".lock"))
        if path.is_socket():
            path.unlink(missing_ok=True)
            swept.append(path)
        lock_path.unlink(missing_ok=True)
        os.close(lock)
    return swept
