"""The supervisor's helpers, sampler and sink: started again when they die, dismissed at the end."""

from __future__ import annotations

import os
import select
import signal
import sys
import traceback
from typing import Callable, Iterable, Optional

from . import clock, failpoints
from .forked import close_others, fresh_signals, log_line
from .processes import end_with_parent

_FIRST_BACKOFF, _LAST_BACKOFF = 0.05, 5.0
#: Seconds that a helper gets to go after SIGKILL.
KILL_TIMEOUT_S = 3.0


class Helper:
    """A forked process of ours that is forked again when it dies."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pid = 0
        self.deaths = 0
        self.due: Optional[float] = None  #: when to fork it, monotonic

    def fork(self, folder: str, body: Callable[[], int], keep: Iterable[int] = ()) -> None:
        """Fork it; the child runs `body` with the descriptors `keep` and ends with its code."""
        self.due = None
        us = os.getpid()
        try:
            self.pid = os.fork()
        except OSError as error:  # no processes left: later
            log_line(folder, "supervisor: cannot fork the %s: %s" % (self.name, error))
            self.died()
            return
        if self.pid:
            return
        code = 70
        try:
            fresh_signals()
            failpoints.hit("after_helper_fork")
            end_with_parent(us)
            close_others(keep)
            code = body()
        except BaseException:  # a forked child must never return into its parent's code
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def died(self) -> None:
        """Plan the next start: at once at first, then ever later."""
        self.pid = 0
        wait = 0.0 if not self.deaths else min(_LAST_BACKOFF, _FIRST_BACKOFF * 2**self.deaths)
        self.deaths += 1
        self.due = clock.mono() + wait


def dismiss(pid: int, patience: float = 3.0) -> None:
    """End a helper: ask, wait, insist; who hangs in a driver is left to its parent's end."""
    if not pid:
        return
    until = clock.mono() + patience
    number = signal.SIGTERM
    while True:
        try:
            os.kill(pid, number)
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
        except OSError:  # reaped before
            return
        if clock.mono() > until:
            if number == signal.SIGKILL:
                return
            number = signal.SIGKILL
            until = clock.mono() + KILL_TIMEOUT_S
        select.select([], [], [], 0.002)
