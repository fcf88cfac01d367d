"""Setup of forked agent processes (signals, descriptors, standard streams), and the agent log of a run."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any, Iterable, Tuple

from .protocol import AGENT_LOG

_HANDLED_SIGNALS = (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP)


# A job may replace the file by a FIFO: never wait for its reader.
_APPEND_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0)


def log_line(folder: str, text: str) -> None:
    """Append a line to ``log/agent.txt`` of a run; must not contain secrets. Ignores write errors."""
    try:
        handle = os.open(os.path.join(folder, AGENT_LOG), _APPEND_FLAGS, 0o600)
        try:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            os.write(handle, ("%s %s\n" % (stamp, text)).encode("utf-8", "backslashreplace"))
        finally:
            os.close(handle)
    except OSError:  # a full disk must not stop a job
        pass


def close_others(keep: Iterable[int]) -> None:
    """Close every descriptor but 0, 1, 2 and `keep`.

    A descriptor of the dispatcher that stays open in a child would keep its lock, and
    a pipe end that stays open in a child would hide the death of its owner.
    """
    keep_open = {0, 1, 2, *keep}
    try:
        open_now = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        open_now = list(range(3, 1024))
    for number in open_now:
        if number not in keep_open:
            try:
                os.close(number)
            except OSError:  # closed already
                pass


def reset_signals() -> None:
    """Reset the signal handlers that the parent has installed."""
    signal.set_wakeup_fd(-1)
    for number in _HANDLED_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def _ignore(number: int, frame: Any) -> None:
    """Signal handler whose only effect is that the wakeup descriptor becomes readable."""


def wakeup_pipe(*numbers: signal.Signals) -> Tuple[int, int]:
    """Return a pipe that becomes readable when one of the signals arrives: (read end, write end)."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, _ignore)
    return reader, writer


def drain(handle: int) -> bytes:
    """Read everything that a non-blocking descriptor has."""
    data = b""
    try:
        while True:
            piece = os.read(handle, 4096)
            if not piece:
                break
            data += piece
    except OSError:  # nothing more to read now
        pass
    return data


def redirect_stdio(path: str) -> None:
    """Read standard input from the null device; append output and errors to `path`."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    try:
        out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError:
        out = null
    for number in (1, 2):
        os.dup2(out, number)
    for handle in {null, out} - {0, 1, 2}:
        os.close(handle)
    sys.stdout.flush()
