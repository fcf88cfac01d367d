"""A process of ours that the kernel starts, and the pipe to it.

What goes over the pipe: :mod:`jupyter_amltrain.frames`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from jupyter_amltrain import frames


def start(module: str, *arguments: str, log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """``python -m module`` in a session of its own; what it says goes to the end of `log`."""
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=out,
            bufsize=0,
            env=env,
            start_new_session=True,
        )
    finally:
        os.close(out)


def environment() -> dict[str, str]:
    """A copy of ours, by which the process finds this package also where it is not installed."""
    env = dict(os.environ)
    root = str(Path(__file__).resolve().parent.parent)
    known = env.get("PYTHONPATH")
    env["PYTHONPATH"] = root + os.pathsep + known if known else root
    return env


def ending(code: int) -> str:
    """How it ended, in words, from its exit code."""
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


class Inlet:
    """The input of the process: whole frames, one after the other, whichever thread sends them.

    A frame of more than some kilobytes goes in pieces, and a request that is given up goes on being written:
    what another thread sends meanwhile must not get into it.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        self._stream = process.stdin
        self._turn = threading.Lock()

    def write(self, frame: bytes) -> None:
        """Write frames. Raises ``OSError`` or ``ValueError`` when nobody reads any more."""
        with self._turn:
            # asked for each time: the number of a closed pipe is soon another file's
            frames.write(lambda view: os.write(self._stream.fileno(), view), frame)

    def write_quietly(self, frame: bytes) -> None:
        """The same, where it does not matter whether anybody reads."""
        with contextlib.suppress(OSError, ValueError):
            self.write(frame)

    def close(self) -> None:
        """Tell the process to end; a frame that is on its way is finished first."""
        mine = self._turn.acquire(timeout=1.0)
        try:
            with contextlib.suppress(OSError):
                self._stream.close()
        finally:
            if mine:
                self._turn.release()
