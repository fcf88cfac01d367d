"""Helpers of the supervisor (sampler and MLflow sink): restarted when they die, stopped at the end."""

from __future__ import annotations

import os
import select
import signal
import sys
import traceback
from typing import Any, Callable, FrozenSet, Iterable, List, Mapping, Optional, Protocol

from .. import protocol, testing
from ..json_dir import LOCK, NumberedJsonDir
from ..process_setup import close_others, log_line, reset_signals
from ..processes import end_with_parent, is_alive
from ..protocol import AgentError, read_json, read_state, run_folder
from .process import SinkEndpoint


def protected_pids(queue: str, home: str, run: str) -> FrozenSet[int]:
    """Return pids of the dispatcher of a queue and of the guardians and supervisors of its other runs.

    Parameters
    ----------
    queue
        The queue of the run; dispatchers of other queues are not protected.
    home, run
        The run whose processes are about to be removed.
    """
    processes: List[Optional[Mapping[str, Any]]] = []
    try:
        processes.append(read_json(os.path.join(queue, LOCK), "Queue folder"))
    except (OSError, AgentError):  # no dispatcher, or a damaged file: then nothing is known of it
        pass
    for record in NumberedJsonDir(os.path.join(queue, "slots")).load().values():
        if (record["home"], record["run"]) == (home, run):
            continue
        processes += [record.get("guardian"), record.get("supervisor") or _stated_supervisor(record)]
    return frozenset(process["pid"] for process in processes if process and is_alive(process))


def _stated_supervisor(record: Mapping[str, Any]) -> Optional[Mapping[str, Any]]:
    """Return the supervisor in ``state.json`` of a run, for a record written before the supervisor was known."""
    try:
        supervisor = (read_state(run_folder(record["home"], record["run"])) or {}).get("supervisor")
    except (OSError, AgentError):
        return None
    return supervisor if isinstance(supervisor, dict) else None  # a job may have written anything


_MIN_BACKOFF_S, _MAX_BACKOFF_S = 0.05, 5.0

#: Seconds that the end of a run waits for a helper that does one thing.
FINISH_TIMEOUT_S = 3.0

#: Seconds for a helper to end after SIGKILL.
KILL_TIMEOUT_S = 3.0


#: Seconds between the start of the job and the forks of its helpers: on two cores these forks would double the time to
#: the first line of the job. The socket of the sink listens already, so clients only wait.
HELPERS_DELAY_S = 0.15


class Helper:
    """A forked helper process that is restarted when it dies.

    Parameters
    ----------
    once
        The helper does one thing and ends; it is not restarted.
    """

    def __init__(self, name: str, once: bool = False) -> None:
        self.name = name
        self.once = once
        self.is_done = False  #: it has ended and is not needed again
        self.pid = 0
        self.deaths = 0
        self.delay_s = HELPERS_DELAY_S  #: from the start of the job
        self.due: Optional[float] = None  #: when to fork it, monotonic

    def fork(
        self, folder: str, body: Callable[[], int], keep: Iterable[int] = (), *, holds_sigterm: bool = False
    ) -> None:
        """Fork the helper; the child runs `body` with the descriptors `keep` and exits with its result.

        Parameters
        ----------
        holds_sigterm
            SIGTERM waits until `body` takes it: what a helper does at its end is done, too, if it has just started.
        """
        self.due = None
        parent = os.getpid()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,) if holds_sigterm else ())
        try:
            self.pid = os.fork()
        except OSError as error:  # process limit reached: retry later
            log_line(folder, "supervisor: cannot fork the %s: %s" % (self.name, error))
            self.schedule_restart()
            return
        finally:
            if os.getpid() == parent:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if self.pid:
            return
        code = 70
        try:
            reset_signals()
            testing.hit("after_helper_fork")
            end_with_parent(parent)
            close_others(keep)
            code = body()
        except BaseException:  # a forked child must never return into its parent's code
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def on_ended(self, status: int, folder: str) -> None:
        """Handle the end of the process."""
        if self.once:
            self.pid, self.is_done = 0, True
            return
        log_line(folder, "supervisor: the %s ended (status %d); starting it again" % (self.name, status))
        self.schedule_restart()

    def schedule_restart(self) -> None:
        """Schedule the next start: at first without a delay, then with exponential backoff."""
        self.pid = 0
        wait = 0.0 if not self.deaths else min(_MAX_BACKOFF_S, _MIN_BACKOFF_S * 2**self.deaths)
        self.deaths += 1
        self.due = protocol.mono() + wait


class Helpers(Protocol):
    """The helper processes of a run."""

    sampler: Helper
    sink: Helper
    provenance: Helper
    #: All helpers.
    all_helpers: List[Helper]
    #: Socket of the MLflow sink; ``None`` without a sink.
    sink_endpoint: Optional[SinkEndpoint]

    def open_sink(self) -> None:
        """Open the socket of the sink, if the job has one."""

    def initial_helpers(self, poll: select.poll) -> List[Helper]:
        """Return the helpers that are started with the job."""

    def fork(self, helper: Helper, ready: Optional[int] = None) -> None:
        """Fork a helper; the sampler writes a byte to `ready` after its first GPU reading."""


def fork_due(helpers: Helpers, now: float, has_folder: Callable[[], bool]) -> None:
    """Fork the helpers that are due."""
    for helper in helpers.all_helpers:
        if helper.due is None or now < helper.due:
            continue
        if has_folder():
            helpers.fork(helper)
        else:  # a helper would create the removed run folder again
            helper.schedule_restart()


def finish_helper(helpers: Helpers, helper: Helper, has_folder: bool) -> None:
    """Wait for a helper that does one thing; fork it first if its job ended before it was due."""
    if helper.is_done or not (helper.pid or helper.due) or not has_folder:
        return
    if not helper.pid:
        helpers.fork(helper)
    if helper.pid and not wait_helper(helper.pid, FINISH_TIMEOUT_S):
        stop_helper(helper.pid)
    helper.pid, helper.is_done, helper.due = 0, True, None


def wait_helper(pid: int, timeout_s: float) -> bool:
    """Wait for the end of a helper; return whether it has ended."""
    until = protocol.mono() + timeout_s
    while protocol.mono() < until:
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return True
        except OSError:  # reaped before
            return True
        select.select([], [], [], 0.002)
    return False


def stop_helper(pid: int, timeout_s: float = 3.0, tick: Callable[[], None] = lambda: None) -> None:
    """End a helper: SIGTERM, wait, SIGKILL. One that hangs in a driver is left behind. `tick` is called meanwhile."""
    if not pid:
        return
    until = protocol.mono() + timeout_s
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
        tick()
