"""Forked process that prepares something for a run before its process starts."""

from __future__ import annotations

import json
import os
import select
from typing import Any, Callable, Dict, List, Optional, Protocol

from .. import protocol
from ..process_setup import drain
from ..protocol import LOG
from .assignment import Assignment
from .container import Container
from .helpers import Helper

Json = Dict[str, Any]

#: Seconds between two changes of the run's state by progress.
PROGRESS_INTERVAL_S = 0.5


class PreparedRun(Protocol):
    """What the preparation of a run needs of its supervisor."""

    task: Assignment
    state: Dict[str, Any]
    poll: select.poll
    container: Optional[Container]
    host: Any

    def listen(self, pause: float) -> List[int]:
        """Sleep until an event, at most `pause` seconds; return the readable descriptors."""

    def should_end(self) -> bool:
        """Whether the run is to end."""

    def save(self) -> None:
        """Write the state."""


class WorkerLost(Exception):
    """The process could not be started, or was killed; the message says which."""


class WorkerCanceled(Exception):
    """The run is to end; the end of the run kills the process."""


class WorkerChannel:
    """What a worker reports to the supervisor, and the run's log that it writes to."""

    def __init__(self, folder: str, writer: int, prefix: str) -> None:
        self._writer, self._prefix = writer, prefix
        self._log = os.open(os.path.join(folder, LOG), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def log(self, line: str) -> None:
        """Write a line to the log of the run."""
        write_line(self._log, self._prefix + line)

    def progress(self, text: str) -> None:
        """Report progress for the state of the run."""
        self._send({"progress": text})

    def finish(self, result: Json) -> None:
        """Report the result; the supervisor continues."""
        self._send({"result": result})
        os.close(self._writer)

    def _send(self, message: Json) -> None:
        try:
            os.write(self._writer, json.dumps(message).encode() + b"\n")
        except OSError:  # the supervisor has ended the work
            pass


class Worker:
    """A forked process that reports progress and one result.

    Parameters
    ----------
    name
        For the log of the agent.
    prefix
        Prefix of its lines in the log of the run.
    body
        Runs in the process; returns its exit code.
    """

    def __init__(self, run: PreparedRun, name: str, prefix: str, body: Callable[[WorkerChannel], int]) -> None:
        self._run = run
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._helper = Helper(name)
        folder = run.task.folder
        self._helper.fork(folder, lambda: body(WorkerChannel(folder, writer, prefix)), [writer])
        os.close(writer)

    def wait(self, doing: str) -> Json:
        """Wait for the result.

        Parameters
        ----------
        doing
            Beginning of the detail of the run while it reports progress.

        Raises
        ------
        WorkerLost, WorkerCanceled
            There is no result.
        """
        run = self._run
        if not self._helper.pid:
            os.close(self._reader)
            raise WorkerLost("no process could be started")
        run.poll.register(self._reader, select.POLLIN)
        shown, progress = protocol.mono(), ""
        partial = b""
        try:
            while True:
                is_readable = self._reader in run.listen(PROGRESS_INTERVAL_S)
                if run.should_end():
                    raise WorkerCanceled
                if progress and protocol.mono() - shown >= PROGRESS_INTERVAL_S:
                    run.state["detail"] = "%s: %s" % (doing, progress)
                    shown, progress = protocol.mono(), ""
                    run.save()
                if not is_readable:
                    continue
                data = drain(self._reader)
                if not data:
                    raise WorkerLost("its process was killed")
                *lines, partial = (partial + data).split(b"\n")
                for line in lines:
                    message = json.loads(line.decode())
                    if "result" in message:
                        return dict(message["result"])
                    progress = message["progress"]
        finally:
            run.poll.unregister(self._reader)
            os.close(self._reader)


def write_line(handle: int, line: str) -> None:
    """Write a line to a log."""
    try:
        os.write(handle, line.encode("utf-8", "replace") + b"\n")
    except OSError:  # a full disk: the work itself reports it
        pass
