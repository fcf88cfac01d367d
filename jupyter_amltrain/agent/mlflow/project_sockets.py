"""MLflow's server of a project on another machine: sockets of this machine that SSH forwards there.

A kernel that is connected opens one for each project of its living runs. Without a kernel there is none, and a job
waits a moment and is refused.
"""

import hashlib
import os
import re
import socket
import time
from typing import List, Optional, Tuple

from ..json_dir import open_queue
from .project_server import RESPONSE_TIMEOUT_S, unavailable

#: Folder of the queue with one folder for each project.
FOLDER = "mlflow"

#: Seconds to wait for a kernel that just connects; the client of a job gives a request ten.
WAIT_S = 8.0

_PROJECT = re.compile(r"[0-9a-f]{16}")
_CHECK_S = 0.25
_MAX_QUEUE_BYTES = 60


def open_folder(queue: str, project: str) -> str:
    """Return the folder (0700) for a project's sockets; those that nobody serves are removed.

    Raises
    ------
    AgentError
        It cannot be created, or is not private to this user.
    ValueError
        `project` is not an id of 16 hex digits.
    """
    folder = _folder(queue, project)
    open_queue(_base(queue))
    os.makedirs(folder, mode=0o700, exist_ok=True)
    for path in _sockets(folder):
        connection = _connected(path)
        if connection is not None:
            connection.close()
        else:
            try:
                os.unlink(path)
            except OSError:  # of a kernel that has removed it itself
                pass
    return folder


class ProjectSockets:
    """The forwarded sockets of one project; a :class:`~.project_server.ServerPlace`.

    Parameters
    ----------
    queue
        The queue folder of this machine.
    project
        Id of the project: 16 hex digits.
    """

    def __init__(self, queue: str, project: str) -> None:
        self._folder = _folder(queue, project)

    def connect(self) -> Tuple[socket.socket, str]:
        """Return a connection to the newest socket that a kernel serves; wait for one if there is none.

        There is no secret: only this user can enter the folder.
        """
        until = time.monotonic() + WAIT_S
        while True:
            for path in _sockets(self._folder):
                connection = _connected(path)
                if connection is not None:
                    return connection, ""
            if time.monotonic() > until:
                raise unavailable(
                    "is on the computer of the notebook, and no notebook of the project is connected to this machine"
                )
            time.sleep(_CHECK_S)

    def close(self) -> None:
        """Do nothing: the server is a process of the kernel."""


def _folder(queue: str, project: str) -> str:
    if not _PROJECT.fullmatch(project):
        raise ValueError(project)
    return os.path.join(_base(queue), FOLDER, project)


def _base(queue: str) -> str:
    """Return the queue folder, or a private one with a shorter path: that of a socket has at most 107 bytes."""
    if len(os.fsencode(queue)) <= _MAX_QUEUE_BYTES:
        return queue
    return "/tmp/amltrain-%d-%s" % (os.getuid(), hashlib.sha256(os.fsencode(queue)).hexdigest()[:16])


def _sockets(folder: str) -> List[str]:
    """Return the sockets of a project, the newest first."""
    found = []
    try:
        for entry in os.scandir(folder):
            found.append((-entry.stat(follow_symlinks=False).st_mtime, entry.path))
    except OSError:  # no kernel has ever been connected, or one leaves just now
        pass
    return [path for _, path in sorted(found)]


def _connected(path: str) -> Optional[socket.socket]:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(RESPONSE_TIMEOUT_S)
    try:
        connection.connect(path)
        return connection
    except OSError:
        connection.close()
        return None
