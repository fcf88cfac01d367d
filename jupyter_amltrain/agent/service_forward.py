"""Sends what a run logs to the service's MLflow, in a process of its own that may be killed at any time.

It knows nothing but the run folder and the job's token. It never holds the training up,
gives up where it is not wanted, and says so in one line of the job's log.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from . import clock, failpoints
from .forked import wake_on
from .protocol import TELEMETRY, AgentError, read_json, write_json
from .service_endpoint import REQUEST_TIMEOUT_S, Closed, Endpoint, Later, Refused
from .service_points import Item, Journal, Telemetry, behind

#: Where a forwarder goes on that was killed.
CURSOR = "telemetry/forwarded-%d.json"
#: Items of one batch. The service takes 250 metrics, MLflow 100 parameters and 100 tags.
LIMITS = {"metrics": 250, "params": 100, "tags": 100}
#: The same name refused so often is not sent again; so many refusals in all are enough.
MAX_REFUSED_OF_NAME, MAX_REFUSED = 3, 300
#: Longest pause between two tries, in periods.
MAX_PAUSE_PERIODS = 30.0


def period() -> float:
    """Seconds between sendings: ``$AMLTRAIN_FORWARD_PERIOD``, else 10; 0 sends nothing at all."""
    return _seconds("AMLTRAIN_FORWARD_PERIOD", 10.0)


def farewell() -> float:
    """Seconds for the last sending when the job has ended: ``$AMLTRAIN_FORWARD_LAST``, else 5."""
    return _seconds("AMLTRAIN_FORWARD_LAST", 5.0)


def _seconds(name: str, default: float) -> float:
    try:
        return max(0.0, float(os.environ[name]))
    except (KeyError, ValueError):
        return default


class Task(NamedTuple):
    """What one process of the job has to forward."""

    folder: str
    node: int
    nodes: int
    journal: str  #: path of the sink's journal, or nothing
    run_id: str  #: the job's run in it
    telemetry: bool


def say(text: str) -> None:
    """One line into the job's log; never an error."""
    try:
        os.write(2, ("amltrain: %s\n" % text).encode("utf-8", "backslashreplace"))
    except OSError:
        pass


class Forwarder:
    """See the module's docstring.

    Parameters
    ----------
    task, endpoint
        What is sent, and where to.
    every
        Seconds of one point of telemetry.
    speak
        Called with a sentence for the job's log.
    """

    def __init__(self, task: Task, endpoint: Endpoint, every: float, speak: Callable[[str], None] = say) -> None:
        self.task, self.endpoint, self.speak = task, endpoint, speak
        self.path = os.path.join(task.folder, CURSOR % task.node)
        at = self._cursor()
        self.journal: Optional[Journal] = None
        self.telemetry: Optional[Telemetry] = None
        if task.journal:
            self.journal = Journal(task.journal, task.run_id, int(at.get("journal", 0)))
            self.journal.system = bool(at.get("system"))
        if task.telemetry:
            path = os.path.join(task.folder, TELEMETRY % task.node)
            self.telemetry = Telemetry(
                path, task.node, task.nodes, every, int(at.get("ticks", 0)), int(at.get("step", 0))
            )
        self.items: List[Item] = []
        #: Of the chunk that is being sent: its first byte, and how many of its items are there.
        self.begin, self.sent = (self.journal.offset if self.journal else 0), 0
        self.skip = int(at.get("sent", 0))
        self.deadline: Optional[float] = None
        self.told = False  #: whether the job's log has its line on a service that cannot be reached
        self.refused: Dict[Tuple[str, str], int] = {}
        self.ticks, self.step = int(at.get("ticks", 0)), int(at.get("step", 0))

    def _cursor(self) -> Mapping[str, Any]:
        try:
            return read_json(self.path) or {}
        except (OSError, AgentError):
            return {}

    def _save(self) -> None:
        value = {"schema": 1, "journal": self.begin, "sent": self.sent, "ticks": self.ticks, "step": self.step}
        value["system"] = self.journal.system if self.journal else False
        try:
            write_json(self.path, value)
        except OSError:  # then a killed one sends again what was sent
            pass

    # -- rounds -----------------------------------------------------------------

    def round(self, last: bool = False) -> None:
        """Send all that there is.

        Raises
        ------
        Later, Closed
            The endpoint does not take it now, or never.
        """
        while self.journal is not None:
            if not self.items:
                self.begin, self.sent = self.journal.offset, 0
                self.items = self.journal.read()
                del self.items[: self.skip]
                self.sent, self.skip = self.skip, 0
                if not self.items:
                    if self.journal.offset == self.begin:
                        break
                    continue
            count = _fitting(self.items)
            self._deliver(self.items[:count])
            del self.items[:count]
            self.sent += count
            if not self.items:
                self.begin, self.sent = self.journal.offset, 0
            self._save()
        if self.telemetry is None:
            return
        self.telemetry.read(last)
        while self.telemetry.waiting:
            bucket = self.telemetry.waiting[0]
            if self.journal is None or not self.journal.system:  # the script's own go first
                for at in range(0, len(bucket.items), LIMITS["metrics"]):
                    self._deliver(bucket.items[at : at + LIMITS["metrics"]])
            self.telemetry.waiting.popleft()
            self.ticks, self.step = bucket.end, self.step + 1
            self._save()

    def _deliver(self, items: List[Item]) -> None:
        """Send a batch; of one that is refused, all but what is not taken."""
        items = [item for item in items if self.refused.get((item.kind, item.body["key"]), 0) < MAX_REFUSED_OF_NAME]
        if not items:
            return
        batch: Dict[str, List[Dict[str, Any]]] = {"metrics": [], "params": [], "tags": []}
        for item in items:
            batch[item.kind].append(item.body)
        left = REQUEST_TIMEOUT_S if self.deadline is None else self.deadline - clock.mono()
        if left <= 0:
            raise Later("the job has ended")
        try:
            failpoints.hit("forward_batch")
            self.endpoint.log_batch(batch, min(REQUEST_TIMEOUT_S, left))
        except Refused as error:
            if len(items) > 1:
                middle = len(items) // 2
                self._deliver(items[:middle])
                self._deliver(items[middle:])
                return
            key = (items[0].kind, items[0].body["key"])
            if not self.refused:
                self.speak("the service's MLflow does not take %r: %s" % (key[1], error))
            self.refused[key] = self.refused.get(key, 0) + 1
            if sum(self.refused.values()) >= MAX_REFUSED:
                raise Closed("it has refused too much") from None

    def left(self) -> bool:
        """Whether something was not sent."""
        waiting = self.journal is not None and (self.items or behind(self.journal.path, self.journal.offset))
        return bool(waiting or (self.telemetry is not None and self.telemetry.waiting))


def _fitting(items: List[Item]) -> int:
    """How many of the first items make one batch."""
    room = dict(LIMITS)
    for count, item in enumerate(items):
        if not room[item.kind] or count == LIMITS["metrics"]:
            return count
        room[item.kind] -= 1
    return len(items)


def run(task: Task, endpoint: Endpoint, last: bool = False) -> int:
    """Body of the forked process: a round each period, and a last one at SIGTERM.

    It is forked with SIGTERM blocked: to be told at once means the last round, too.

    Parameters
    ----------
    last
        The job has ended already.
    """
    every, wakeup = period(), wake_on(signal.SIGTERM)[0]
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    parent = os.getppid()
    forwarder = Forwarder(task, endpoint, every)
    pause, failures = every, 0
    while True:
        if last or select.select([wakeup], [], [], pause)[0] or os.getppid() != parent:
            return _last(forwarder)
        try:
            forwarder.round()
            pause, failures = every, 0
        except Later as error:
            failures += 1
            pause = max(error.pause, min(every * 2 ** (failures - 1), every * MAX_PAUSE_PERIODS))
            if failures == 3 and not forwarder.told:
                forwarder.told = True
                where = _where(task.folder)
                say("the service's MLflow cannot be written (%s); trying again; metrics are in %s" % (error, where))
        except Closed as error:
            _tell_closed(forwarder, error)
            return _rest(wakeup)


def _last(forwarder: Forwarder) -> int:
    """Send what is left, in a few seconds."""
    until = forwarder.deadline = clock.mono() + farewell()
    while True:
        try:
            forwarder.round(True)
            return 0
        except Later as error:
            pause = max(error.pause, 0.25)
            if clock.mono() + pause >= until:
                if forwarder.left() and not forwarder.told:
                    where = _where(forwarder.task.folder)
                    say("not all metrics reached the service's MLflow (%s); they are in %s" % (error, where))
                return 0
            time.sleep(pause)
        except Closed as error:
            _tell_closed(forwarder, error)
            return 0


def _tell_closed(forwarder: Forwarder, error: Closed) -> None:
    where = _where(forwarder.task.folder)
    say("the service's MLflow is not written any more: %s; metrics are in %s" % (error, where))


def _where(folder: str) -> str:
    try:
        return os.path.relpath(folder)
    except (OSError, ValueError):
        return folder


def _rest(wakeup: int) -> int:
    """Wait for the end: a helper that ended would be started again."""
    parent = os.getppid()
    while os.getppid() == parent:
        if select.select([wakeup], [], [], 5.0)[0]:
            break
    return 0
