"""Changes of ``state.json``: phases, ends, and what is left to say when nobody watches."""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Callable, Dict, FrozenSet, Mapping, Optional

from . import clock, ownership
from .processes import alive, boot_id, children, members, node, send
from .protocol import (
    CANCEL,
    CANCELED,
    FAILED,
    LOST,
    QUEUED,
    STATE,
    TERMINAL,
    read_state,
    run_folder,
    write_json,
)

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
    now = clock.wall() if now is None else now
    phases = state["phases"]
    if phases and phases[-1]["end"] is None:
        phases[-1]["end"] = now
        phases[-1]["seconds"] = None if seconds is None else round(seconds, 6)
    if name not in TERMINAL:
        phases.append({"name": name, "start": now, "end": None, "seconds": None})
    state["state"] = name


def save(folder: str, state: State, durable: bool = False) -> None:
    """Write `state` with a new version number; what a job has put in the file's place is moved aside.

    Raises
    ------
    OSError
        It cannot be written now.
    """
    state["version"] += 1
    state["changed"] = clock.wall()
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
    save(folder, state, durable=True)


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
    began, pause, empty = clock.mono(), 0.001, 0
    known: FrozenSet[int] = frozenset()
    while True:
        tick()
        childless = root is not None and reap()
        rows = members(mark, root, spare, leader, apart)
        empty = 0 if rows else empty + 1
        if not rows and (childless or (empty >= scans and not (root is not None and _has_child(spare | apart)))):
            return ""
        spent = clock.mono() - began
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
    save(folder, state, durable=True)
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
    record = None if queue is None or known_dead else ownership.records(queue).get((home, run))
    if record is not None and ownership.supervisors(record, {}):
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


def save_patiently(gone: Callable[[], bool], write: Callable[[], Any]) -> None:
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
    passed = clock.wall() - moment
    return passed if passed >= 0 else float("inf")
