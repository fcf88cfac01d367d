"""Hook in a job's Python that lets the agent ask a process that hangs for its stack (``stall.py``).

It is in the first Python of a rank only, and in the one of a job without ranks. This file must load no module that a
script might then find loaded (so not ``__future__``).
"""

import os

TYPE_CHECKING = False  # do not import the module typing into the user's program
if TYPE_CHECKING:
    from typing import Any


def start(path: str, load: "Any") -> None:
    """Let a signal write the stack into a file, whose first line says whose it is.

    Parameters
    ----------
    path
        The file.
    load
        Not used.
    """
    import _signal  # type: ignore[import-not-found]  # the module signal takes milliseconds
    import faulthandler

    del os.environ["AMLTRAIN_STACK"]  # not for children
    with open("/proc/self/stat") as stat:
        started = stat.read().rpartition(")")[2].split()[19]
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    # It stays open; the agent shortens it, so each write goes to its end.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    _signal.signal(_signal.SIGRTMIN + 9, _signal.SIG_IGN)  # for the end of Python, which takes the handler away
    faulthandler.register(_signal.SIGRTMIN + 9, file=handle, all_threads=False)
    os.write(handle, ("%d %s %d\n" % (os.getpid(), started, handle)).encode())
