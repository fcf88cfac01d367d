"""State root: the folder of this user that every kernel shares.

``$AMLTRAIN_HOME``, else the platform's state folder. It contains runs, targets and
caches, so that a kernel in any folder can attach; only MLflow's store is per project.
Folders are 0700, files 0600, every file contains a schema number.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jupyter_amltrain.agent.protocol import read_regular
from jupyter_amltrain.errors import CommandError, StateError

#: Schema of everything below the root. A newer schema is rejected, older ones are read.
SCHEMA = 1

_PROJECT = ".amltrain"
# Errors of lock calls on file systems without locks.
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


class StateRoot:
    """The state root, created if needed and checked.

    Parameters
    ----------
    path
        The folder; default ``$AMLTRAIN_HOME`` or the platform's state folder.

    Raises
    ------
    StateError
        The folder cannot be created or written, or has a newer schema.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(path) if path is not None else default_path()
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in ("runs", "staging", "agent", "logs"):
                (self.path / name).mkdir(mode=0o700, exist_ok=True)
            marker = self.path / "schema.json"
            if not marker.exists():
                write_json(marker, {"schema": SCHEMA})
            elif not os.access(self.path / "runs", os.W_OK):
                raise PermissionError(errno.EACCES, "not writable", str(self.path / "runs"))
        except OSError as error:
            raise StateError(
                f"Cannot store runs in {self.path}: {error.strerror or error}.",
                hint="Set AMLTRAIN_HOME to a folder that you can write, then restart the kernel.",
            ) from error
        check_schema(read_json(marker), marker)

    @property
    def runs(self) -> Path:
        """Folder of the run folders."""
        return self.path / "runs"

    @property
    def staging(self) -> Path:
        """Folder of files that are prepared for a run."""
        return self.path / "staging"

    @property
    def logs(self) -> Path:
        """Folder of this package's own logs."""
        return self.path / "logs"

    @property
    def targets(self) -> Path:
        """File of the named targets."""
        return self.path / "targets.json"

    @property
    def workspaces(self) -> Path:
        """File of the connected workspaces."""
        return self.path / "workspaces.json"


def default_path() -> Path:
    """``$AMLTRAIN_HOME`` or the platform's state folder."""
    if value := os.environ.get("AMLTRAIN_HOME"):
        return Path(value).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_state_path("amltrain"))


def working_folder() -> str:
    """Absolute path of the working folder.

    Raises
    ------
    CommandError
        The working folder was deleted.
    """
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise CommandError(
            "The working folder was deleted.", hint="Change to an existing folder: %cd ~ (in a shell: cd ~)"
        ) from None


def project_store(project: str | os.PathLike[str]) -> Path:
    """Folder of the project's MLflow store."""
    return Path(project) / _PROJECT


def write_json(path: Path, value: Any) -> None:
    """Replace `path` atomically with `value` as JSON, mode 0600."""
    fd, temporary = tempfile.mkstemp(prefix=path.name, suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            json.dump(value, file, separators=(",", ":"))
        os.replace(temporary, path)
    except BaseException:  # remove the unfinished file after any error, and raise it again
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def read_json(path: Path) -> Any:
    """Return the JSON value in `path`.

    Raises
    ------
    StateError
        The file is missing or not JSON.
    """
    try:
        return json.loads(read_regular(str(path)))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StateError(
            f"Cannot read {path}: {reason}.", hint="Delete the file if it is damaged, and try again."
        ) from error


def check_schema(value: Any, path: Path) -> None:
    """Raise ``StateError`` if `value` is damaged or a newer version wrote it."""
    number = value.get("schema") if isinstance(value, dict) else None
    if not isinstance(number, int) or isinstance(number, bool):
        raise StateError(
            f"{path} is damaged: it is not a JSON object with a schema number.",
            hint="Delete the file, or restore a backup.",
        )
    if number > SCHEMA:
        raise StateError(
            f"{path} was written by a newer jupyter_amltrain (schema {number}, this one reads up to {SCHEMA}).",
            hint="Upgrade: pip install -U jupyter_amltrain",
        )


def has_locks(path: Path) -> bool:
    """Whether the file system of the file `path` (created if missing) supports locks.

    Uses `flock` directly, because versions of `filelock` handle its errors differently.
    """
    try:
        import fcntl
    except ImportError:  # Windows: every file system supports locks
        return True
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        pass  # another process holds the lock, so locks are supported
    except OSError as error:
        return error.errno not in _NO_LOCKS
    finally:
        os.close(fd)
    return True


@contextlib.contextmanager
def locked(path: Path, timeout: float = 10.0) -> Iterator[None]:
    """Hold the lock file `path` (created with mode 0600).

    On a file system without locks (some network homes) the existence of a lock file
    is the lock.

    Raises
    ------
    StateError
        Another process held the lock for `timeout` seconds.
    """
    import filelock

    lock: filelock.BaseFileLock
    try:
        if has_locks(path):
            lock = filelock.FileLock(path, timeout=timeout, mode=0o600)
        else:
            lock = filelock.SoftFileLock(f"{path}.soft", timeout=timeout, mode=0o600)
        lock.acquire()
    except filelock.Timeout as error:
        raise StateError(
            f"{path} has been locked by another process for {timeout:g} s.",
            hint="Try again; if no other kernel is running, delete that file.",
        ) from error
    except OSError as error:
        raise StateError(
            f"Cannot lock {path}: {error.strerror or error}.", hint="Make its folder writable, and try again."
        ) from error
    try:
        yield
    finally:
        lock.release()
