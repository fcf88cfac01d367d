"""The loop that writes ``telemetry/node-0.jsonl``: a header, then one array a tick.

Ticks are numbered 0, 1, 2... without gap or repeat, also over a restart of the
sampler and a full disk: a number is used up only when its whole line is written.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, List

from . import clock, failpoints
from .host import Usage, header
from .protocol import TELEMETRY, cut_torn_tail
from .slots import usable_cpus


def period() -> float:
    """Seconds between samples: ``$AMLTRAIN_SAMPLE_PERIOD``, else 1."""
    try:
        return max(0.01, float(os.environ["AMLTRAIN_SAMPLE_PERIOD"]))
    except (KeyError, ValueError):
        return 1.0


class Telemetry:
    """The file, opened at the right number.

    Raises
    ------
    OSError
        It cannot be opened.
    """

    def __init__(self, folder: str, every: float) -> None:
        path = os.path.join(folder, TELEMETRY)
        last = cut_torn_tail(path)
        self.handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        self.next = 0
        self.headed = bool(last)
        if last.startswith(b"["):
            self.next = int(json.loads(last.decode())[0]) + 1
        self.header = header(every, usable_cpus())

    def add(self, values: List[Any]) -> bool:
        """Append a sample; whether the disk took it whole."""
        if not self.headed:
            self.headed = self._write(self.header)
            if not self.headed:
                return False
        if not self._write([self.next, round(clock.wall(), 3)] + values):
            return False
        self.next += 1
        return True

    def _write(self, value: Any) -> bool:
        line = json.dumps(value, separators=(",", ":")).encode() + b"\n"
        size = os.fstat(self.handle).st_size
        try:
            if os.write(self.handle, line) == len(line):
                return True
        except OSError:
            pass
        os.ftruncate(self.handle, size)
        return False


def run(folder: str, root: int) -> int:
    """Body of a forked sampler; ends when it is told to or its supervisor is gone.

    Parameters
    ----------
    root
        Pid of the supervisor.
    """
    every = period()
    usage = Usage(root)
    file = Telemetry(folder, every)
    # The first differences need a tick before them.
    usage.read()
    due = clock.mono() + min(every, 0.2)
    while os.getppid() == root:
        time.sleep(max(0.0, due - clock.mono()))
        failpoints.hit("sampler_tick")
        file.add(usage.read())
        # A late tick moves the later ones: no burst after a stopped machine.
        due = max(due + every, clock.mono())
    return 0
