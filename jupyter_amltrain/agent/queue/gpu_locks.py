"""GPU locks that are visible to all users of a machine: each user has a queue, but GPUs are shared.

The lock of a GPU or MIG instance is a listening Unix socket with an abstract name that contains
its UUID. Only one process can bind the name; the kernel frees it when the last process with the
socket has ended, and reports the uid of the listener to every process that connects. So no data
of another user is read, and no file is left behind.

The dispatcher takes the locks before a job starts and passes them to the guardian and the
supervisor of the run, which keep them exactly until the run ends, independent of the dispatcher.
The processes of the job itself never have them. Processes in another network namespace (most
containers) do not see the locks; there the process lists of the GPUs protect.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import struct
import sys
from typing import Any, Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ..telemetry.gpu_names import gpu_name

#: Backlog of connections; each one is a queue that requests our uid.
BACKLOG = 128
#: Max locks of one job.
MAX_LOCKS = 250
#: Uid of a holder that cannot be determined.
UNKNOWN = -1

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
#: Locks that this process received with its job.
_held: List[int] = []


def available() -> bool:
    """Whether this system supports the locks: only Linux, like the GPU drivers."""
    return sys.platform.startswith("linux")


def _name(uuid: str) -> str:
    # Separates tests, which share invented UUIDs.
    return "\0amltrain-gpu-%s%s" % (os.environ.get("AMLTRAIN_GPU_LOCK_SCOPE", ""), uuid)


def take_lock(uuid: str) -> Optional[int]:
    """Take the lock of a GPU; return its descriptor, or ``None`` if it is taken.

    Raises
    ------
    OSError
        The lock cannot be created now (for example, too many open files).
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


def listener_uid(uuid: str) -> Optional[int]:
    """Return the uid of the holder of a lock, as :func:`holder_uid`, without trying to take it.

    A holder that does not listen is not found; guardians and supervisors do listen.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(_name(uuid))
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError as error:
            return None if error.errno == errno.ECONNREFUSED else UNKNOWN
    return int(_CREDENTIALS.unpack(credentials)[1])


def holder_uid(uuid: str) -> Optional[int]:
    """Return the uid of the holder of a lock; `UNKNOWN` if it cannot be determined, ``None`` for a free lock."""
    uid = listener_uid(uuid)
    if uid is not None:
        return uid
    # Free, or a process has bound the name and does not listen. Try to take it to find out.
    try:
        lock = take_lock(uuid)
    except OSError:
        return UNKNOWN
    if lock is None:
        return UNKNOWN
    os.close(lock)
    return None


class LockedGpus(NamedTuple):
    """GPUs for a job, and their locks."""

    devices: List[str]
    locks: List[int]  #: descriptors; close them with `drop`
    forced: List[str]  #: those of `devices` that another process has locked


class Locks:
    """GPU locks as seen by a dispatcher."""

    def __init__(self) -> None:
        #: Uid by UUID of the locks that another process held at the last try.
        self.others: Dict[str, int] = {}
        #: Descriptors, by UUID, of the locks of GPUs that several runs share; ``None``: only the runs have it.
        self._shared: Dict[str, Optional[int]] = {}

    def keep_shared(self, uuids: Collection[str]) -> None:
        """Keep the locks of the GPUs that several runs share now; the others are free when their runs have ended.

        The runs of an earlier dispatcher have a lock that cannot be copied: this one takes it when they have ended.
        """
        for uuid in [uuid for uuid in self._shared if uuid not in uuids]:
            close_locks([lock for lock in (self._shared.pop(uuid),) if lock is not None])
        if available():
            for uuid in uuids:
                if self._shared.get(uuid) is None:
                    self._shared[uuid] = take_lock(uuid)

    def take(
        self, free: Sequence[str], count: int, force: bool = False, is_fraction: bool = False
    ) -> Optional[LockedGpus]:
        """Take the locks of the first `count` available GPUs; return ``None`` if there are fewer.

        Parameters
        ----------
        force
            Also take GPUs that another process has locked if the others are not enough.
        is_fraction
            Whether other runs of this queue may have the GPUs, too; their locks are shared.
        """
        if not available():
            return LockedGpus(list(free[:count]), [], []) if len(free) >= count else None
        taken: Dict[str, Optional[int]] = {}
        locked: List[str] = []
        try:
            for uuid in free:
                if len(taken) == count:
                    break
                if is_fraction and uuid in self._shared:
                    shared = self._shared[uuid]
                    taken[uuid] = None if shared is None else os.dup(shared)
                    continue
                lock = take_lock(uuid)
                if lock is None:
                    locked.append(uuid)
                    self._update_holder(uuid)
                else:
                    taken[uuid] = lock
                    self.others.pop(uuid, None)
        except OSError:
            close_locks([lock for lock in taken.values() if lock is not None])
            raise
        locks = [lock for lock in taken.values() if lock is not None]
        forced = locked[: count - len(taken)] if force else []
        if len(taken) + len(forced) < count:
            close_locks(locks)
            return None
        devices = [uuid for uuid in free if uuid in taken or uuid in forced]
        if is_fraction:
            self._shared.update(
                (uuid, os.dup(lock)) for uuid, lock in taken.items() if lock and uuid not in self._shared
            )
        return LockedGpus(devices, locks, forced)

    def is_held(self, uuid: str) -> bool:
        """Whether another process that had a lock at the last try still has it."""
        return uuid in self.others and holder_uid(uuid) is not None

    def _update_holder(self, uuid: str) -> None:
        uid = holder_uid(uuid)
        if uid is None:  # released a moment ago: the next try takes it
            self.others.pop(uuid, None)
        elif uid != UNKNOWN or uuid not in self.others:
            self.others[uuid] = uid

    def text(self, gpus: Sequence[Mapping[str, Any]], free: Sequence[str]) -> str:
        """Return which of the apparently free GPUs another process has locked, as part of a sentence."""
        parts = []
        for gpu in gpus:
            if gpu["uuid"] in free and gpu["uuid"] in self.others:
                suffix = "" if gpu.get("processes") is None else ", with no process on it"
                parts.append("%s is reserved by %s%s" % (gpu_name(gpu), user_text(self.others[gpu["uuid"]]), suffix))
        return "; ".join(parts) + " (use --share-gpus to start anyway)" if parts else ""

    def forced_text(self, gpus: Sequence[Mapping[str, Any]], forced: Sequence[str]) -> str:
        """Return the note for the record of a run that uses GPUs locked by others."""
        return "%s: shared because of --share-gpus." % "; ".join(
            "%s is reserved by %s" % (gpu_name(gpu), user_text(self.others.get(gpu["uuid"], UNKNOWN)))
            for gpu in gpus
            if gpu["uuid"] in forced
        )


def user_text(uid: int) -> str:
    """Return the display name of a user: ``ann (uid 1000)``."""
    if uid == UNKNOWN:
        return "a process of an unknown user"
    if uid == os.getuid():
        return "another queue of this user"
    try:
        import pwd

        return "%s (uid %d)" % (pwd.getpwuid(uid).pw_name, uid)
    except (KeyError, ImportError):
        return "uid %d" % uid


def close_locks(locks: Sequence[int]) -> None:
    """Close descriptors of locks; a lock stays taken while another process has it."""
    for lock in locks:
        try:
            os.close(lock)
        except OSError:  # closed already
            pass


# -- transfer to other processes --------------------------------------------------------------------


def send_with_locks(handle: int, data: Any, locks: Sequence[int]) -> int:
    """Write to a socket, with the locks attached to the first bytes; return the number of bytes written.

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


def receive_with_locks(handle: int, size: int) -> bytes:
    """Read from a socket; attached locks are kept until this process ends."""
    size_of_rights = socket.CMSG_SPACE(MAX_LOCKS * array.array("i").itemsize)
    with socket.socket(fileno=os.dup(handle)) as connection:
        data, rights, _, _ = connection.recvmsg(size, size_of_rights, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
    for level, kind, raw in rights:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors = array.array("i")
            descriptors.frombytes(raw[: len(raw) - len(raw) % descriptors.itemsize])
            _held.extend(descriptors)
    return data


def accept_probes() -> None:
    """Accept and close connections of queues that requested our uid: the kernel has already reported it."""
    for lock in _held:
        with socket.socket(fileno=os.dup(lock)) as listening:
            try:
                for _ in range(BACKLOG):
                    listening.accept()[0].close()
            except OSError:  # the backlog is empty
                pass
