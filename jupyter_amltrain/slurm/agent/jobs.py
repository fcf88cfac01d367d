"""The user's jobs as Slurm lists them: one call for all runs of a target, at most every 2.5 s."""

from __future__ import annotations

import os
import threading
from typing import Dict, NamedTuple, Optional, Tuple

from jupyter_amltrain.agent import protocol
from jupyter_amltrain.agent.protocol import AgentError

from . import commands

#: Shortest time between two calls of squeue (seconds).
INTERVAL_S = 2.5
#: Seconds for squeue, for which all readers of states wait; and until one that had no answer is called again.
_TIMEOUT_S, _RETRY_S = 6.0, 15.0
_FORMAT = "%i|%A|%T|%S|%l|%M|%D|%N|%P|%r|%j"


class Job(NamedTuple):
    """A job in the list."""

    id: str  #: of a task of an array ``7_3``
    number: str  #: the same, or of a task of an array that has started its own
    state: str
    start: Optional[float]  #: Unix seconds: when it has started, or is expected to
    limit: Optional[float]  #: seconds
    seconds: Optional[float]  #: that it has run
    nodes: int
    hosts: str
    partition: str
    name: str
    reason: str
    place: Optional[Tuple[int, int]] = None  #: its number among the own jobs that wait, and their number


class Jobs(NamedTuple):
    """The list at a moment.

    Attributes
    ----------
    error
        Why there is no newer one; ``None`` if there is.
    at, wall
        Monotonic and Unix seconds of the list.
    """

    by_id: Dict[str, Job]
    error: Optional[AgentError]
    at: float
    wall: float = 0.0

    def find(self, job: str) -> Optional[Job]:
        """Return a job, or the task of an array; tasks that were canceled together before they started are one job."""
        found = self.by_id.get(job)
        return self.by_id.get(job.partition("_")[0]) if found is None else found


def parse(text: str) -> Dict[str, Job]:
    """Return the jobs in what squeue prints; of a job that is requeued the last line counts."""
    found: Dict[str, Job] = {}
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|", 10)]
        if len(parts) == 11:
            job, number, state, start, limit, seconds, nodes, hosts, partition, reason, name = parts
            found[job] = Job(
                job, number, state, _moment(start), commands.duration(limit), commands.duration(seconds),
                commands.whole(nodes), hosts, partition, name, reason,
            )  # fmt: skip
    # In the order in which Slurm lists them.
    waiting = [job for job in found.values() if job.state == "PENDING"]
    found.update({job.id: job._replace(place=(n, len(waiting))) for n, job in enumerate(waiting, 1)})
    return found


def _moment(text: str) -> Optional[float]:
    try:
        return float(text)  # SLURM_TIME_FORMAT=%s
    except ValueError:
        return None


class JobList:
    """The list, which is read again when somebody asks and it is older than that."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._last = Jobs({}, None, float("-inf"))

    def get(self, max_age_s: float = INTERVAL_S) -> Jobs:
        """Return the list; with the last one an error if Slurm does not answer. Blocks."""
        requested_at = protocol.mono()
        with self._guard:
            kept_s = max_age_s if self._last.error is None else _RETRY_S
            if requested_at - self._last.at < kept_s:  # also what another thread has read meanwhile
                return self._last
            try:
                wall = protocol.wall()
                text = commands.run("squeue", "--noheader", "--array", "--user", user_name(), "--states=all",
                                    "--format", _FORMAT, timeout_s=_TIMEOUT_S)  # fmt: skip
                self._last = Jobs(parse(text), None, protocol.mono(), wall)
            except AgentError as error:
                self._last = Jobs(self._last.by_id, error, protocol.mono(), self._last.wall)
            return self._last

    def forget(self) -> None:
        """Let the next call read the list again: a job was submitted or canceled."""
        self._last = self._last._replace(at=float("-inf"))


def user_name() -> str:
    """Return the name of this process's user."""
    import pwd  # a kernel on Windows imports this file, too

    return pwd.getpwuid(os.getuid()).pw_name


JOBS = JobList()
