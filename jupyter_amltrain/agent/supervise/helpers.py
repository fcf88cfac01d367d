"""The supervisor's helpers, sampler and sink: started again when they die, stopped at the end."""

from __future__ import annotations

import os
import select
import signal
import sys
import traceback
from typing import Any, Callable, FrozenSet, Iterable, List, Mapping, Optional

from .. import protocol, testing
from ..json_dir import LOCK, NumberedJsonDir
from ..process_setup import close_others, log_line, reset_signals
from ..processes import alive, end_with_parent
from ..protocol import AgentError, read_json, read_state, run_folder


def protected_pids(queue: str, home: str, run: str) -> FrozenSet[int]:
    """Pids of a queue's dispatcher and of the guardians and supervisors of its other runs.

    Parameters
    ----------
    queue
        The queue of the run; the dispatcher of another one is the job's own affair.
    home, run
        The run whose processes are about to be removed.
    """
    found: List[Optional[Mapping[str, Any]]] = []
    try:
        found.append(read_json(os.path.join(queue, LOCK), "Queue folder"))
    except (OSError, AgentError):
        pass
    for record in NumberedJsonDir(os.path.join(queue, "slots")).load().values():
        if (record["home"], record["run"]) == (home, run):
            continue
        found += [record.get("guardian"), record.get("supervisor") or _stated_supervisor(record)]
    return frozenset(who["pid"] for who in found if who and alive(who))


def _stated_supervisor(record: Mapping[str, Any]) -> Optional[Mapping[str, Any]]:
    """The supervisor by a run's ``state.json``, for a record that was written before it was known."""
    try:
        who = (read_state(run_folder(record["home"], record["run"])) or {}).get("supervisor")
    except (OSError, AgentError):
        return None
    return who if isinstance(who, dict) else None  # a job may have written anything


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
            reset_signals()
            testing.hit("after_helper_fork")
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
        self.due = protocol.mono() + wait


def dismiss(pid: int, patience: float = 3.0) -> None:
    """End a helper: ask, wait, insist; who hangs in a driver is left to its parent's end."""
    if not pid:
        return
    until = protocol.mono() + patience
    number = signal.SIGTERM
    while True:
        try:
            os.kill(pid, number)
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
        except OSError:  # reaped before
            return
        if protocol.mono() > until:
            if number == signal.SIGKILL:
                return
            number = signal.SIGKILL
            until = protocol.mono() + KILL_TIMEOUT_S
        select.select([], [], [], 0.002)
