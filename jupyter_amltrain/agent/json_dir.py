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
_LONGEST = 100


def default_queue() -> str:
    """``$AMLTRAIN_QUEUE``, else ``/var/tmp/amltrain-<uid>``: local to this machine."""
    return os.environ.get("AMLTRAIN_QUEUE") or "/var/tmp/amltrain-%d" % os.getuid()


def open_queue(path: str) -> str:
    """Make and check the queue folder; its absolute path.

    Raises
    ------
    AgentError
        ``StateError`` when it cannot be made, or is not ours alone.
    """
    path = os.path.abspath(path)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        found = os.lstat(path)
        # Before anything is made in it: a link leads to where its owner wants our files.
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise AgentError("StateError", _not_ours(path, found))
        if found.st_mode & 0o077:
            os.chmod(path, 0o700)
        for name in ("tickets", "slots"):
            os.makedirs(os.path.join(path, name), mode=0o700, exist_ok=True)
    except OSError as error:
        raise AgentError(
            "StateError",
            "Cannot make the queue folder %s: %s. Set AMLTRAIN_QUEUE to a local folder that can be written."
            % (path, error.strerror or error),
        ) from error
    return path


def _not_ours(path: str, found: os.stat_result) -> str:
    """Why a queue folder is refused, and what its user can do: in a sticky folder he cannot remove it."""
    if found.st_uid != os.getuid():
        what = "belongs to another user (uid %d)" % found.st_uid
    elif stat.S_ISLNK(found.st_mode):
        what = "is a link"
    else:
        what = "is not a folder"
    parent = os.stat(os.path.dirname(path))
    removable = os.getuid() in (0, found.st_uid, parent.st_uid) or not parent.st_mode & stat.S_ISVTX
    remove = "Remove it, or set" if removable else "Set"
    return (
        "Cannot use the queue folder %s: it %s. %s the environment variable AMLTRAIN_QUEUE to a local folder of yours."
        % (path, what, remove)
    )


class Address:
    """Where the dispatcher listens; use as a context manager around bind or connect."""

    def __init__(self, queue: str) -> None:
        self.path = os.path.join(queue, SOCKET)
        self._handle: Optional[int] = None
        if len(os.fsencode(self.path)) > _LONGEST and not sys.platform.startswith("linux"):
            digest = hashlib.sha256(os.fsencode(queue)).hexdigest()[:16]
            folder = "/tmp/amltrain-%d-%s" % (os.getuid(), digest)
            open_queue(folder)
            self.path = os.path.join(folder, SOCKET)

    def __enter__(self) -> str:
        if len(os.fsencode(self.path)) <= _LONGEST:
            return self.path
        # A long path is reached through a handle of its folder.
        self._handle = os.open(os.path.dirname(self.path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return "/proc/self/fd/%d/%s" % (self._handle, SOCKET)

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
        #: What the last `load` could not read, a line each.
        self.unreadable: List[str] = []

    def _path(self, number: int) -> str:
        return os.path.join(self.folder, "%010d.json" % number)

    def put(self, number: int, value: Dict[str, Any]) -> None:
        """Write or replace file `number`."""
        write_json(self._path(number), value)

    def remove(self, number: int) -> None:
        """Remove file `number` if it is there."""
        try:
            os.unlink(self._path(number))
        except FileNotFoundError:
            pass

    def hold(self, number: int) -> None:
        """Lock file `number` for our life: seen from where our pid cannot be."""
        import fcntl

        try:
            handle = os.open(self._path(number), os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(handle, fcntl.LOCK_SH)
        except OSError:  # then only our pid tells that we live
            pass

    def held(self, number: int) -> bool:
        """Whether a process, of whatever PID namespace, holds file `number`."""
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
        """File names in order of their numbers."""
        try:
            return iter(sorted(n for n in os.listdir(self.folder) if n.endswith(".json")))
        except OSError:
            return iter(())

    def load(self) -> Dict[int, Dict[str, Any]]:
        """All files by number, in order; one that cannot be read is left out, and left alone."""
        found = {}
        self.unreadable = []
        for name in self.names():
            path = os.path.join(self.folder, name)
            try:
                value = read_json(path, "Queue folder")
            except (AgentError, OSError) as error:
                self.unreadable.append("left alone %s: %s" % (path, error))
                continue
            if value is not None and _sound(value) and self._path(value["number"]) == path:
                found[value["number"]] = value
            elif os.path.lexists(path):  # else it ended meanwhile
                self.unreadable.append("left alone %s: damaged" % path)
        return found

    def last(self) -> int:
        """The highest number in use, readable or not; 0 for none."""
        stems = [name[: -len(".json")] for name in self.names()]
        return max([0, *(int(stem) for stem in stems if stem.isdigit())])


def _sound(value: Dict[str, Any]) -> bool:
    return (
        isinstance(value.get("number"), int) and isinstance(value.get("home"), str) and valid_run_id(value.get("run"))
    )
