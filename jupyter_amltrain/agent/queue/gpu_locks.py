"""Locks of GPUs that all users of a machine see: queues are a user's own, GPUs are not.

The lock of a GPU or MIG instance is a listening Unix socket with an abstract name, made of
its UUID. Only one process can have the name; the kernel frees it when the last process that
has the socket is gone, and tells whoever connects the uid of the one that listens. So nothing
is read that another user wrote, and no file is left behind.

The dispatcher takes the locks before a job starts and hands them to the guardian and the
supervisor of the run, in which they live exactly as long as the run, whatever becomes of the
dispatcher. The job's own processes never have them. Processes in another network
name space (most containers) do not see the locks; there the lists of processes protect.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import struct
import sys
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ..telemetry.gpu_names import gpu_name

#: Connections that nobody accepted yet; each stands for a queue that asked for our uid.
BACKLOG = 128
#: Locks at most that one job can have.
MAX_LOCKS = 250
#: Uid of a holder that does not tell.
UNKNOWN = -1

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
#: Locks that this process has got with its job.
_held: List[int] = []


def available() -> bool:
    """Whether this system has locks: Linux, where the drivers are."""
    return sys.platform.startswith("linux")


def _name(uuid: str) -> str:
    # Tests, which share made-up UUIDs, are apart.
    return "\0amltrain-gpu-%s%s" % (os.environ.get("AMLTRAIN_GPU_LOCK_SCOPE", ""), uuid)


def take(uuid: str) -> Optional[int]:
    """Take the lock of a GPU; its descriptor, or ``None`` where somebody has it.

    Raises
    ------
    OSError
        Locks cannot be made now (too many open files, and the like).
    """
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lock.bind(_name(uuid))
        lock.listen(BACKLOG)
        lock.setblocking(False)
        return lock.detach()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    finally:
        lock.close()


def holder(uuid: str) -> Optional[int]:
    """Return the uid that has a lock; `UNKNOWN` where it does not tell, ``None`` where nobody has it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(_name(uuid))
            found = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError as error:
            # Refused: free, or somebody has the name and does not listen. Only a try to take it tells.
            if error.errno != errno.ECONNREFUSED:
                return UNKNOWN
            try:
                lock = take(uuid)
            except OSError:
                return UNKNOWN
            if lock is None:
                return UNKNOWN
            os.close(lock)
            return None
    return int(_CREDENTIALS.unpack(found)[1])


class Taken(NamedTuple):
    """GPUs that a job may be given, and their locks."""

    devices: List[str]
    locks: List[int]  #: descriptors; close them with `drop`
    forced: List[str]  #: those of `devices` that somebody else has locked


NOTHING = Taken([], [], [])


class Locks:
    """What a dispatcher knows of the locks."""

    def __init__(self) -> None:
        #: Uid by UUID, of the locks that somebody else had at the last try.
        self.others: Dict[str, int] = {}

    def take(self, free: Sequence[str], count: int, force: bool = False) -> Optional[Taken]:
        """Take the locks of `count` of these GPUs, first ones first; ``None`` where there are not so many.

        Parameters
        ----------
        force
            Take GPUs that somebody else has locked where others are not enough.
        """
        if not available():
            return Taken(list(free[:count]), [], []) if len(free) >= count else None
        taken: Dict[str, int] = {}
        locked: List[str] = []
        try:
            for uuid in free:
                if len(taken) == count:
                    break
                lock = take(uuid)
                if lock is None:
                    locked.append(uuid)
                    self._look(uuid)
                else:
                    taken[uuid] = lock
                    self.others.pop(uuid, None)
        except OSError:
            drop(list(taken.values()))
            raise
        forced = locked[: count - len(taken)] if force else []
        if len(taken) + len(forced) < count:
            drop(list(taken.values()))
            return None
        devices = [uuid for uuid in free if uuid in taken or uuid in forced]
        return Taken(devices, list(taken.values()), forced)

    def _look(self, uuid: str) -> None:
        found = holder(uuid)
        if found is None:  # given back a moment ago: the next try takes it
            self.others.pop(uuid, None)
        elif found != UNKNOWN or uuid not in self.others:
            self.others[uuid] = found

    def text(self, gpus: Sequence[Mapping[str, Any]], free: Sequence[str]) -> str:
        """Return which of the GPUs that look free somebody else has locked, as a part of a sentence."""
        parts = []
        for gpu in gpus:
            if gpu["uuid"] in free and gpu["uuid"] in self.others:
                idle = "" if gpu.get("processes") is None else ", with no process on it"
                parts.append("%s is reserved by %s%s" % (gpu_name(gpu), who(self.others[gpu["uuid"]]), idle))
        return "; ".join(parts) + " (--share-gpus starts all the same)" if parts else ""

    def forced_text(self, gpus: Sequence[Mapping[str, Any]], forced: Sequence[str]) -> str:
        """Return the sentence for the record of a run that got GPUs which others have locked."""
        return "%s: shared, as --share-gpus asks." % "; ".join(
            "%s is reserved by %s" % (gpu_name(gpu), who(self.others.get(gpu["uuid"], UNKNOWN)))
            for gpu in gpus
            if gpu["uuid"] in forced
        )


def who(uid: int) -> str:
    """Return a user for people: ``ann (uid 1000)``."""
    if uid == UNKNOWN:
        return "a process that does not say whose it is"
    if uid == os.getuid():
        return "another queue of this user"
    try:
        import pwd

        return "%s (uid %d)" % (pwd.getpwuid(uid).pw_name, uid)
    except (KeyError, ImportError):
        return "uid %d" % uid


def drop(locks: Sequence[int]) -> None:
    """Close descriptors of locks; a lock lives on in other processes that have it."""
    for lock in locks:
        try:
            os.close(lock)
        except OSError:
            pass


# -- handing over --------------------------------------------------------------------


def send(handle: int, data: Any, locks: Sequence[int]) -> int:
    """Write to a socket, with the locks beside the first bytes; the number of bytes that were written.

    Raises
    ------
    OSError
        As `os.write`.
    """
    if not locks:
        return os.write(handle, data)
    with socket.socket(fileno=os.dup(handle)) as connection:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", locks))
        return connection.sendmsg([data], [rights])


def receive(handle: int, size: int) -> bytes:
    """Read from a socket; locks that come along are this process's until it ends."""
    room = socket.CMSG_SPACE(MAX_LOCKS * array.array("i").itemsize)
    with socket.socket(fileno=os.dup(handle)) as connection:
        data, rights, _, _ = connection.recvmsg(size, room, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
    for level, kind, raw in rights:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found = array.array("i")
            found.frombytes(raw[: len(raw) - len(raw) % found.itemsize])
            _held.extend(found)
    return data


def answer() -> None:
    """Take the connections of those who have asked for our uid: the kernel has told it, there is nothing to say."""
    for lock in _held:
        with socket.socket(fileno=os.dup(lock)) as listening:
            try:
                for _ in range(BACKLOG):
                    listening.accept()[0].close()
            except OSError:  # nobody is left
                pass
