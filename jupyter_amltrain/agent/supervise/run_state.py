"""State of a run: its file, its phases and ends, and who supervises it."""

from __future__ import annotations

import errno
import os
import signal
import time
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Tuple

from .. import protocol
from ..json_dir import NumberedJsonDir
from ..processes import LINUX, alive, boot_id, children, members, node, send
from ..protocol import (
    CANCEL,
    CANCELED,
    FAILED,
    FINALIZING,
    JOB,
    LOST,
    QUEUED,
    RUNNING,
    STATE,
    TERMINAL,
    AgentError,
    read_json,
    read_state,
    run_folder,
    write_json,
)

Json = Dict[str, Any]

#: Seconds that a supervisor which has written the end of its run gets to leave.
LEAVE_TIMEOUT_S = 2.0


def records(queue: str) -> Dict[Tuple[str, str], Json]:
    """Slot records of a queue by state root and run."""
    found = NumberedJsonDir(os.path.join(queue, "slots")).load()
    return {(record["home"], record["run"]): record for record in found.values()}


def supervisors(record: Optional[Mapping[str, Any]], state: Mapping[str, Any]) -> List[Mapping[str, Any]]:
    """Live supervisor and guardian of a run of this machine, the supervisor first.

    Parameters
    ----------
    record
        Its slot record, where there is one: a job cannot change it by its run folder.
    state
        Its ``state.json``, believed where there is no record.
    """
    source = state
    if record is not None and record.get("boot") == boot_id() and record.get("node", node()) == node():
        source = record if record.get("supervisor") else dict(record, supervisor=state.get("supervisor"))
    elif state.get("node") != node():
        return []
    return [who for who in (source.get("supervisor"), source.get("guardian")) if isinstance(who, dict) and alive(who)]


def check_ends(queue: str, home: str, runs: Mapping[str, Json]) -> Dict[str, Json]:
    """Runs whose files say that they have ended while their supervisors still look after them.

    A supervisor leaves at once when it has written an end, so an end that is there while
    it stays was written by the job.

    Returns
    -------
    dict
        Run to the state to show in place of the false one.
    """
    ended = {run: state for run, state in runs.items() if state["state"] in TERMINAL}
    if not ended:
        return {}
    known = records(queue)
    suspects = {run: known[home, run] for run in ended if (home, run) in known}
    until = protocol.mono() + LEAVE_TIMEOUT_S
    pause = 0.001
    while suspects:
        suspects = {run: record for run, record in suspects.items() if supervisors(record, {})}
        if not suspects or protocol.mono() > until:
            break
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return {run: _running(ended[run]) for run in suspects}


def _running(state: Mapping[str, Any]) -> Json:
    """A false end as the running state that it hides."""
    phases = state.get("phases")
    named = [dict(phase) for phase in phases or () if isinstance(phase, dict)] if isinstance(phases, list) else []
    if named:
        named[-1].update(end=None, seconds=None)
    name = FINALIZING if named and named[-1].get("name") == FINALIZING else RUNNING
    detail = "its state file was changed by somebody else: it has not ended"
    return dict(state, state=name, phases=named, detail=detail, reason=None, exit_code=None, signal=None)


State = Dict[str, Any]

#: Seconds given to processes that were sent SIGKILL before we report them as unkillable.
KILL_TIMEOUT_S = 20.0

#: Looks at the process table that must find nobody, where nothing else proves that a run has no process left:
#: one look misses a process whose parent forks it and leaves while the table is read.
EMPTY_SCANS = 5

#: The same for a list of children that may not be empty, because others live on.
CHILD_LOOKS = 5

#: Kills of new children in one go: a chain of forks is faster than the process table is read.
MAX_CHAIN_KILLS = 1000


def enter(state: State, name: str, seconds: Optional[float] = None, now: Optional[float] = None) -> None:
    """Go on to the state `name`: close the running phase, open the next unless it is an end.

    Parameters
    ----------
    seconds
        Length of the phase that ends, by the monotonic clock.
    now
        Unix seconds of the change, where it was another process that decided it.
    """
    now = protocol.wall() if now is None else now
    phases = state["phases"]
    if phases and phases[-1]["end"] is None:
        phases[-1]["end"] = now
        phases[-1]["seconds"] = None if seconds is None else round(seconds, 6)
    if name not in TERMINAL:
        phases.append({"name": name, "start": now, "end": None, "seconds": None})
    state["state"] = name


def write_state(folder: str, state: State, durable: bool = False) -> None:
    """Write `state` with a new version number; what a job has put in the file's place is moved aside.

    Raises
    ------
    OSError
        It cannot be written now.
    """
    state["version"] += 1
    state["changed"] = protocol.wall()
    if os.path.lexists(os.path.join(folder, CANCEL)):
        state["cancel_requested"] = True
    path = os.path.join(folder, STATE)
    try:
        write_json(path, state, durable)
    except OSError:
        if not _clear(folder):
            raise
        write_json(path, state, durable)


def _clear(folder: str) -> bool:
    """Make way for a state file: a folder in its place is moved aside, a closed run folder is opened."""
    path, done = os.path.join(folder, STATE), False
    try:
        if os.stat(folder).st_mode & 0o700 != 0o700:
            os.chmod(folder, 0o700)
            done = True
        if os.path.isdir(path) and not os.path.islink(path):
            os.rename(path, os.path.join(folder, ".%s.%s" % (STATE, os.urandom(6).hex())))
            done = True
    except OSError:
        pass
    return done


def end_in_queue(folder: str, state: State, name: str, reason: str, detail: str, seconds: float) -> None:
    """End a job that never started."""
    enter(state, name, seconds)
    state["reason"], state["detail"] = reason, detail
    write_state(folder, state, durable=True)


def cancel_in_queue(folder: str, state: State, seconds: float) -> None:
    """Cancel a job that never started."""
    end_in_queue(folder, state, CANCELED, CANCELED, "canceled before it started", seconds)


def fail_in_queue(folder: str, state: State, detail: str, seconds: float) -> None:
    """Fail a job that cannot be started."""
    end_in_queue(folder, state, FAILED, "launch", detail, seconds)


def kill_all(
    mark: str,
    root: Optional[int],
    leader: Optional[Mapping[str, Any]] = None,
    spare: FrozenSet[int] = frozenset(),
    gentle: float = 0.0,
    apart: FrozenSet[int] = frozenset(),
    scans: int = EMPTY_SCANS,
    tick: Callable[[], None] = lambda: None,
) -> str:
    """SIGKILL every process of a run until none is left.

    Parameters
    ----------
    mark, root, leader, spare, apart
        As in `processes.members`.
    gentle
        Seconds in which they may still end by themselves.
    scans
        Looks in a row that must find nobody, unless we are `root` and have no child at all. As `root` we also look
        for children, who may be of a chain of forks that no look at the process table meets.
    tick
        Called between looks.

    Returns
    -------
    str
        What could not be killed; empty when nothing is left.
    """
    began, pause, empty = protocol.mono(), 0.001, 0
    known: FrozenSet[int] = frozenset()
    while True:
        tick()
        childless = root is not None and reap()
        rows = members(mark, root, spare, leader, apart)
        empty = 0 if rows else empty + 1
        if not rows and (childless or (empty >= scans and not (root is not None and _has_child(spare | apart)))):
            return ""
        spent = protocol.mono() - began
        if spent > gentle + KILL_TIMEOUT_S:
            pids = [row.pid for row in rows] or [pid for pid in children(os.getpid()) if pid not in spare | apart]
            return "could not be killed: pid %s" % ", ".join(map(str, pids))
        if spent >= gentle:
            send(rows, signal.SIGKILL)
            if root is not None:
                _kill_orphans(spare | apart)
        if not rows:
            continue
        time.sleep(pause)
        seen = frozenset(row.pid for row in rows)
        pause = min(pause * 2, 0.1) if seen == known else 0.001
        known = seen


def _has_child(spare: FrozenSet[int]) -> bool:
    """Whether we have another child than these, live or not collected yet."""
    me = os.getpid()
    return any(pid not in spare for _ in range(CHILD_LOOKS) for pid in children(me))


def _kill_orphans(spare: FrozenSet[int]) -> None:
    """SIGKILL our children, among them every orphan of the run, until no new one comes."""
    killed = set()
    for _ in range(MAX_CHAIN_KILLS):
        new = [pid for pid in children(os.getpid()) if pid not in spare and pid not in killed]
        if not new:
            return
        for pid in new:
            killed.add(pid)
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass


def reap() -> bool:
    """Collect all ended children; whether no child is left, not even a live one."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def mark_lost(folder: str, state: State, why: str) -> State:
    """Write ``lost`` over a state that nobody will end any more."""
    enter(state, LOST)
    state["reason"], state["detail"] = LOST, why
    write_state(folder, state, durable=True)
    return state


def settle(home: str, run: str, state: State, known_dead: bool = False, queue: Optional[str] = None) -> State:
    """`state`, or the ``lost`` that it has become.

    Only this machine may say so: a state root on a shared disk also holds runs
    of others, whose processes cannot be seen from here.

    Parameters
    ----------
    known_dead
        Supervisor and guardian are known to be gone, though their pids mean nothing here.
    queue
        The queue folder, whose record of the run tells who looks after it when the state was changed by the job.
    """
    if state["state"] in TERMINAL or state["state"] == QUEUED or (state.get("node") != node() and not known_dead):
        return state
    rebooted = state.get("boot") != boot_id()
    if not rebooted and not known_dead and (alive(state.get("supervisor")) or alive(state.get("guardian"))):
        return state
    record = None if queue is None or known_dead else records(queue).get((home, run))
    if record is not None and supervisors(record, {}):
        return state
    folder = run_folder(home, run)
    # The supervisor's last act is to write the end: it may have come between.
    mark = state.get("mark", "")
    try:
        newer = read_state(folder)
    except OSError:  # a job put something else in the file's place
        newer = None
    if newer is not None and isinstance(newer.get("version"), int) and isinstance(newer.get("phases"), list):
        state = newer
    if state["state"] in TERMINAL:
        return state
    if rebooted:
        return mark_lost(folder, state, "the machine was restarted while the job ran")
    if known_dead:  # and no pid of its state may be touched
        return mark_lost(folder, state, "supervisor and guardian of the run ended with the container that they ran in")
    stuck = kill_all("%s:%s" % (run, mark), None, state.get("rank"))
    why = "supervisor and guardian of the run were killed; its processes were removed"
    return mark_lost(folder, state, why + (" (%s)" % stuck if stuck else ""))


def write_state_with_retry(gone: Callable[[], bool], write: Callable[[], Any]) -> None:
    """Try `write` once a second until the disk takes it; give up when `gone` says that the folder is."""
    while True:
        try:
            write()
            return
        except OSError:
            if gone():
                return
            time.sleep(1.0)


def seconds_since(moment: float) -> float:
    """Seconds from the unix time `moment`; a clock set back gives a long time, not a negative one."""
    passed = protocol.wall() - moment
    return passed if passed >= 0 else float("inf")


#: Seconds that a run folder may be away at the end of its run before its record is given up.
FOLDER_RETURN_TIMEOUT_S = float(os.environ.get("AMLTRAIN_FOLDER_RETURN_TIMEOUT") or 20.0)


class StateFile:
    """``state.json`` of one run, whose only writer we are.

    The folder is held open, so that it is found again after a job has renamed it.

    Parameters
    ----------
    folder
        The run folder.
    submission
        What ``job.json`` of the folder names, by which a copy of the folder is known.
    """

    def __init__(self, folder: str, submission: str = "") -> None:
        self.folder = folder
        self._submission = submission
        self._handle = -1
        self._written: Optional[Tuple[int, int, int]] = None
        if LINUX:  # elsewhere a descriptor is no path
            try:
                self._handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError:
                pass

    @property
    def place(self) -> str:
        """Path of the folder, wherever it is now."""
        if self._handle >= 0 and not self._is_ours(self.folder):
            held = "/proc/self/fd/%d" % self._handle
            if self._is_ours(held):
                return held
        return self.folder

    def exists(self) -> bool:
        """Whether the folder is somewhere, for as far as we can tell."""
        return self._is_ours(self.place)

    def cancel_requested(self) -> bool:
        """Whether the file that asks for the run's end is there."""
        return os.path.lexists(os.path.join(self.place, CANCEL))

    def save(self, state: Dict[str, Any], durable: bool = False) -> None:
        """Write a state; see `lifecycle.save`.

        Raises
        ------
        OSError
            It cannot be written now, or the folder was removed: whoever did that wants no run there.
        """
        if self._handle >= 0 and not self.exists():
            raise FileNotFoundError(errno.ENOENT, "the run folder was removed", self.folder)
        write_state(self.place, state, durable)
        self._written = self._signature()

    def changed(self) -> bool:
        """Whether somebody else wrote, replaced or removed the file since `save`."""
        return self._written is not None and self._signature() != self._written and self.exists()

    def save_patiently(self, state: Dict[str, Any], tick: Callable[[], None]) -> None:
        """Write the last state, once a second until the disk takes it; give up when the folder stays away.

        Parameters
        ----------
        tick
            Called before each try.
        """
        seen = protocol.mono()

        def write() -> None:
            tick()
            self.save(state, durable=True)

        def gone() -> bool:
            nonlocal seen
            if self.exists():
                seen = protocol.mono()
            return protocol.mono() - seen > FOLDER_RETURN_TIMEOUT_S

        write_state_with_retry(gone, write)

    def _signature(self) -> Optional[Tuple[int, int, int]]:
        try:
            found = os.lstat(os.path.join(self.place, STATE))
        except OSError:
            return None
        return found.st_ino, found.st_ctime_ns, found.st_size

    def _is_ours(self, folder: str) -> bool:
        try:
            here = os.stat(folder)
        except OSError:
            return False
        if self._handle >= 0:
            held = os.fstat(self._handle)
            if (here.st_dev, here.st_ino) == (held.st_dev, held.st_ino):
                return held.st_nlink > 0 and os.path.isdir(folder)
        if not self._submission:
            return self._handle < 0
        try:
            job = read_json(os.path.join(folder, JOB)) or {}
        except (AgentError, OSError):
            return False
        return job.get("submission") == self._submission
