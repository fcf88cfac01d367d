"""Locks on files that are shared by the processes of this machine."""

from __future__ import annotations

import os
import time
from typing import Optional

from . import protocol
from .protocol import private_folder

#: Tries to get a shared lock, and seconds between them: others hold it exclusively only for a moment.
_SHARED_TRIES, _SHARED_PAUSE_S = 20, 0.005


def take_lock(folder: str, name: str, exclusive: bool, wait: bool = False) -> Optional[int]:
    """Lock a file; return the descriptor that holds the lock, ``None`` if another process holds it.

    Raises
    ------
    AgentError
        ``StateError`` when the folder of the locks cannot be written.
    """
    import fcntl

    private_folder(folder)
    path = os.path.join(folder, name)
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise protocol.not_writable(path, error) from error
    operation = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    try:
        fcntl.flock(handle, operation if wait else operation | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    except OSError:  # a file system without locks: processes may repeat each other's work
        pass
    return handle


def take_shared_lock(folder: str, name: str) -> Optional[int]:
    """Lock a file for reading; as `take_lock`, with some patience."""
    handle = take_lock(folder, name, exclusive=False)
    for _ in range(_SHARED_TRIES):
        if handle is not None:
            break
        time.sleep(_SHARED_PAUSE_S)
        handle = take_lock(folder, name, exclusive=False)
    return handle
