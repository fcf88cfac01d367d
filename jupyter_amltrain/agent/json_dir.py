"""The queue folder: numbered files of tickets and slot records, and the socket's address."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from typing import Any, Dict, Iterator, List, Optional

from .protocol import AgentError, read_json, valid_run_id, write_json

LOCK, SOCKET, LOG_FILE, WAITING = "dispatcher.lock", "agent.sock", "dispatcher.txt", "waiting.json"
# sun_path holds 108 bytes on Linux, 104 on BSD, with the closing zero.
_MAX_ADDRESS_BYTES = 100


def default_queue() -> str:
    """Return ``$AMLTRAIN_QUEUE``, else ``/var/tmp/amltrain-<uid>``: local to this machine."""
    return os.environ.get("AMLTRAIN_QUEUE") or "/var/tmp/amltrain-%d" % os.getuid()


def open_queue(path: str) -> str:
    """Create and check the queue folder; return its absolute path.

    Raises
    ------
    AgentError
        ``StateError`` when it cannot be created, or is not private to this user.
    """
    path = os.path.abspath(path)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:  # of another process, or foreign: checked below
            pass
        status = os.lstat(path)
        # Checked before any file is created: a link could direct our files to a place of its owner's choice.
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            raise AgentError("StateError", _foreign_folder_text(path, status))
        if status.st_mode & 0o077:
            os.chmod(path, 0o700)
        for name in ("tickets", "slots"):
            os.makedirs(os.path.join(path, name), mode=0o700, exist_ok=True)
    except OSError as error:
        raise AgentError(
            "StateError",
            "Cannot create the queue folder %s: %s. Set AMLTRAIN_QUEUE to a writable local folder."
            % (path, error.strerror or error),
        ) from error
    return path


def _foreign_folder_text(path: str, status: os.stat_result) -> str:
    """Error text for a queue folder of another user, with a fix: in a sticky folder it cannot be removed."""
    if status.st_uid != os.getuid():
        problem = "belongs to another user (uid %d)" % status.st_uid
    elif stat.S_ISLNK(status.st_mode):
        problem = "is a link"
    else:
        problem = "is not a folder"
    parent = os.stat(os.path.dirname(path))
    removable = os.getuid() in (0, status.st_uid, parent.st_uid) or not parent.st_mode & stat.S_ISVTX
    remove = "Remove it, or set" if removable else "Set"
    return "Cannot use the queue folder %s: it %s. %s AMLTRAIN_QUEUE to a local folder that you own." % (
        path,
        problem,
        remove,
    )


class Address:
    """Address of a socket in a folder, by default the dispatcher's; a context manager around bind or connect."""

    def __init__(self, queue: str, name: str = SOCKET) -> None:
        self._name = name
        self.path = os.path.join(queue, name)
        self._handle: Optional[int] = None
        if len(os.fsencode(self.path)) > _MAX_ADDRESS_BYTES and not sys.platform.startswith("linux"):
            digest = hashlib.sha256(os.fsencode(queue)).hexdigest()[:16]
            folder = "/tmp/amltrain-%d-%s" % (os.getuid(), digest)
            open_queue(folder)
            self.path = os.path.join(folder, name)

    def __enter__(self) -> str:
        if len(os.fsencode(self.path)) <= _MAX_ADDRESS_BYTES:
            return self.path
        # A path that is too long for a socket address is reached through a descriptor of its folder.
        self._handle = os.open(os.path.dirname(self.path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return "/proc/self/fd/%d/%s" % (self._handle, self._name)

    def __exit__(self, *error: object) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


class NumberedJsonDir:
    """A folder of ``<number>.json``; only the dispatcher writes it.

    Parameters
    ----------
    folder
        Existing folder, 0700.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        #: One line for each file that the last `load` could not read.
        self.unreadable: List[str] = []

    def _path(self, number: int) -> str:
        return os.path.join(self.folder, "%010d.json" % number)

    def put(self, number: int, value: Dict[str, Any]) -> None:
        """Write or replace file `number`."""
        write_json(self._path(number), value)

    def remove(self, number: int) -> None:
        """Remove file `number` if it exists."""
        try:
            os.unlink(self._path(number))
        except FileNotFoundError:  # removed already
            pass

    def lock(self, number: int) -> None:
        """Lock file `number` until this process ends; the lock is visible in other PID namespaces."""
        import fcntl

        try:
            handle = os.open(self._path(number), os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(handle, fcntl.LOCK_SH)
        except OSError:  # readers then rely on the pid alone
            pass

    def is_locked(self, number: int) -> bool:
        """Whether a process of any PID namespace has locked file `number`."""
        import fcntl

        try:
            handle = os.open(self._path(number), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    def names(self) -> Iterator[str]:
        """Return file names in the order of their numbers."""
        try:
            return iter(sorted(n for n in os.listdir(self.folder) if n.endswith(".json")))
        except OSError:
            return iter(())

    def load(self) -> Dict[int, Dict[str, Any]]:
        """Return all files by number, in order; unreadable files are skipped and left unchanged."""
        values = {}
        self.unreadable = []
        for name in self.names():
            path = os.path.join(self.folder, name)
            try:
                value = read_json(path, "Queue folder")
            except (AgentError, OSError) as error:
                self.unreadable.append("skipped %s: %s" % (path, error))
                continue
            if value is not None and _is_valid(value) and self._path(value["number"]) == path:
                values[value["number"]] = value
            elif os.path.lexists(path):  # else it was removed meanwhile
                self.unreadable.append("skipped %s: damaged" % path)
        return values

    def last_number(self) -> int:
        """Return the highest number in use, readable or not; 0 if there is none."""
        stems = [name[: -len(".json")] for name in self.names()]
        return max([0, *(int(stem) for stem in stems if stem.isdigit())])


def _is_valid(value: Dict[str, Any]) -> bool:
    return (
        isinstance(value.get("number"), int) and isinstance(value.get("home"), str) and valid_run_id(value.get("run"))
    )
