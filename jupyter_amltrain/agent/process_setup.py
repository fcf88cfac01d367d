"""What each of our forked processes does first, and the run's log of the agent."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any, Iterable, Tuple

from .protocol import AGENT_LOG

_OURS = (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP)


# A job may put a FIFO in the file's place: we never wait for its reader.
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0)


def log_line(folder: str, text: str) -> None:
    """Append a line to ``log/agent.txt`` of a run; no secrets. Ignores failures."""
    try:
        handle = os.open(os.path.join(folder, AGENT_LOG), _APPEND, 0o600)
        try:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            os.write(handle, ("%s %s\n" % (stamp, text)).encode("utf-8", "replace"))
        finally:
            os.close(handle)
    except OSError:  # a full disk must not stop a job
        pass


def close_others(keep: Iterable[int]) -> None:
    """Close every descriptor but 0, 1, 2 and `keep`.

    A descriptor of the dispatcher that lived on in a child would hold its lock, and
    the end of a pipe in a child would hide its owner's death.
    """
    kept = {0, 1, 2, *keep}
    try:
        open_now = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        open_now = list(range(3, 1024))
    for number in open_now:
        if number not in kept:
            try:
                os.close(number)
            except OSError:
                pass


def fresh_signals() -> None:
    """Undo the parent's handlers."""
    signal.set_wakeup_fd(-1)
    for number in _OURS:
        signal.signal(number, signal.SIG_DFL)


def _nothing(number: int, frame: Any) -> None:
    """A handler that only makes the wakeup descriptor readable."""


def wake_on(*numbers: signal.Signals) -> Tuple[int, int]:
    """A pipe that becomes readable when one of the signals comes: (read end, write end)."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, _nothing)
    return reader, writer


def drain(handle: int) -> bytes:
    """All that a non-blocking descriptor holds."""
    data = b""
    try:
        while True:
            piece = os.read(handle, 4096)
            if not piece:
                break
            data += piece
    except OSError:
        pass
    return data


def stdio_to(path: str) -> None:
    """Input from nowhere, output and errors appended to `path`."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    try:
        out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError:
        out = nowhere
    for number in (1, 2):
        os.dup2(out, number)
    for handle in {nowhere, out} - {0, 1, 2}:
        os.close(handle)
    sys.stdout.flush()
