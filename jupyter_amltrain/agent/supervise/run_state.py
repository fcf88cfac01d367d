"""State of a run: its file, its phases and outcome, and the processes that supervise it."""

from __future__ import annotations

import errno
import os
import signal
import time
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from .. import protocol
from ..json_dir import NumberedJsonDir
from ..processes import LINUX, boot_id, children, is_alive, pid_scope, run_members, signal_processes
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

#: Seconds for a supervisor to end after it has written the end of its run.
LEAVE_TIMEOUT_S = 2.0


def records(queue: str) -> Dict[Tuple[str, str], Json]:
    """Return slot records of a queue by state root and run."""
    stored = NumberedJsonDir(os.path.join(queue, "slots")).load()
    return {(record["home"], record["run"]): record for record in stored.values()}


def supervisors(record: Optional[Mapping[str, Any]], state: Mapping[str, Any]) -> List[Mapping[str, Any]]:
    """Return live supervisor and guardian of a run of this machine, the supervisor first.

    Parameters
    ----------
    record
        Its slot record, if any: a job cannot change it through its run folder.
    state
        Its ``state.json``, used if there is no record.
    """
    source = state
    if record is not None and record.get("boot") == boot_id() and record.get("node", pid_scope()) == pid_scope():
        source = record if record.get("supervisor") else dict(record, supervisor=state.get("supervisor"))
    elif state.get("node") != pid_scope():
        return []
    return [
        process
        for process in (source.get("supervisor"), source.get("guardian"))
        if isinstance(process, dict) and is_alive(process)
    ]


def check_ends(queue: str, home: str, runs: Mapping[str, Json]) -> Dict[str, Json]:
    """Return runs with a final state in their files although their supervisors are still running.

    A supervisor ends immediately after it has written a final state, so a final state beside
    a running supervisor was written by the job.

    Returns
    -------
    dict
        Maps each such run to the state to show instead of the false one.
    """
    ended = {run: state for run, state in runs.items() if state["state"] in TERMINAL}
    if not ended:
        return {}
    by_run = records(queue)
    suspects = {run: by_run[home, run] for run in ended if (home, run) in by_run}
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
    """Convert a false final state back to the running state that it replaced."""
    phases = state.get("phases")
    named = [dict(phase) for phase in phases or () if isinstance(phase, dict)] if isinstance(phases, list) else []
    if named:
        named[-1].update(end=None, seconds=None)
    name = FINALIZING if named and named[-1].get("name") == FINALIZING else RUNNING
    detail = "its state file was changed by another process; the run has not ended"
    return dict(state, state=name, phases=named, detail=detail, reason=None, exit_code=None, signal=None)


State = Dict[str, Any]

#: Seconds after SIGKILL before processes are reported as unkillable.
KILL_TIMEOUT_S = 20.0

#: Scans of the process table that must find no process before a run counts as ended, without other proof:
#: a single scan misses a process whose parent forks it and ends while the table is read.
EMPTY_SCANS = 5

#: The same for the list of children, which is not empty if other children keep running.
CHILD_SCANS = 5

#: Max kills of new children in a row: a chain of forks is faster than a scan of the process table.
MAX_CHAIN_KILLS = 1000


def enter(state: State, name: str, seconds: Optional[float] = None, now: Optional[float] = None) -> None:
    """Change to the state `name`: close the current phase, open the next one unless the state is final.

    Parameters
    ----------
    seconds
        Length of the closed phase by the monotonic clock.
    now
        Unix seconds of the change, if another process decided it.
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
    """Write `state` with a new version number; an obstacle that a job has created is moved aside.

    Raises
    ------
    OSError
        The state cannot be written now.
    """
    state["version"] += 1
    state["changed"] = protocol.wall()
    if os.path.lexists(os.path.join(folder, CANCEL)):
        state["cancel_requested"] = True
    path = os.path.join(folder, STATE)
    try:
        write_json(path, state, durable)
    except OSError:
        if not _make_writable(folder):
            raise
        write_json(path, state, durable)


def _make_writable(folder: str) -> bool:
    """Make a state file writable again: move a folder of that name aside, restore permissions of the run folder."""
    path, changed = os.path.join(folder, STATE), False
    try:
        if os.stat(folder).st_mode & 0o700 != 0o700:
            os.chmod(folder, 0o700)
            changed = True
        if os.path.isdir(path) and not os.path.islink(path):
            os.rename(path, os.path.join(folder, ".%s.%s" % (STATE, os.urandom(6).hex())))
            changed = True
    except OSError:  # the write that follows reports the error
        pass
    return changed


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
    grace_s: float = 0.0,
    apart: FrozenSet[int] = frozenset(),
    scans: int = EMPTY_SCANS,
    tick: Callable[[], None] = lambda: None,
) -> str:
    """Send SIGKILL to every process of a run until none is left; return a text about those that are left.

    Parameters
    ----------
    mark, root, leader, spare, apart
        As in :func:`~..processes.run_members`.
    grace_s
        Seconds for the processes to end without SIGKILL.
    scans
        Scans in a row that must find no process, unless this process is `root` and has no child. As `root` it also
        checks its children, because a chain of forks can escape every scan of the process table.
    tick
        Called between scans.
    """
    began, pause, empty = protocol.mono(), 0.001, 0
    known: FrozenSet[int] = frozenset()
    while True:
        tick()
        childless = root is not None and reap_children()
        rows = run_members(mark, root, spare, leader, apart)
        empty = 0 if rows else empty + 1
        if not rows and (childless or (empty >= scans and not (root is not None and _has_child(spare | apart)))):
            return ""
        spent = protocol.mono() - began
        if spent > grace_s + KILL_TIMEOUT_S:
            return _stuck_text([row.pid for row in rows], spare | apart)
        if spent >= grace_s:
            signal_processes(rows, signal.SIGKILL)
            if root is not None:
                _kill_orphans(spare | apart)
        if not rows:
            continue
        time.sleep(pause)
        seen = frozenset(row.pid for row in rows)
        pause = min(pause * 2, 0.1) if seen == known else 0.001
        known = seen


def _stuck_text(pids: Sequence[int], spare: FrozenSet[int]) -> str:
    pids = pids or [pid for pid in children(os.getpid()) if pid not in spare]
    return "could not be killed: pid %s" % ", ".join(map(str, pids))


def _has_child(spare: FrozenSet[int]) -> bool:
    """Whether this process has a child outside of `spare`, live or not reaped yet."""
    own_pid = os.getpid()
    return any(pid not in spare for _ in range(CHILD_SCANS) for pid in children(own_pid))


def _kill_orphans(spare: FrozenSet[int]) -> None:
    """Kill all children, including every orphan of the run, until no new one appears."""
    killed = set()
    for _ in range(MAX_CHAIN_KILLS):
        new = [pid for pid in children(os.getpid()) if pid not in spare and pid not in killed]
        if not new:
            return
        for pid in new:
            killed.add(pid)
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:  # it has ended
                pass


def unreaped_status(pid: int) -> Optional[int]:
    """Return the wait status of an ended child, which stays unreaped; ``None`` while it runs."""
    if not hasattr(os, "waitid"):
        return None
    try:
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except OSError:
        return None
    if ended is None:
        return None
    status = ended.si_status
    status = status << 8 if ended.si_code == os.CLD_EXITED else status
    return status | (0x80 if ended.si_code == os.CLD_DUMPED else 0)


def reap_children() -> bool:
    """Reap all ended children; return whether no child is left, ended or live."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def mark_lost(folder: str, state: State, reason: str) -> State:
    """Write ``lost`` to a run that has no supervisor and no guardian any more."""
    enter(state, LOST)
    state["reason"], state["detail"] = LOST, reason
    write_state(folder, state, durable=True)
    return state


def refresh_state(home: str, run: str, state: State, known_dead: bool = False, queue: Optional[str] = None) -> State:
    """Return `state`, or mark the run lost if it has no supervisor and no guardian any more.

    Only for runs of this machine: a state root on a shared disk also contains runs
    of other machines, whose processes are not visible from here.

    Parameters
    ----------
    known_dead
        Supervisor and guardian are known to have ended, although their pids are not valid here.
    queue
        The queue folder. Its record names the supervisor even if the job has changed the state.
    """
    if state["state"] in TERMINAL or state["state"] == QUEUED or (state.get("node") != pid_scope() and not known_dead):
        return state
    rebooted = state.get("boot") != boot_id()
    if not rebooted and not known_dead and (is_alive(state.get("supervisor")) or is_alive(state.get("guardian"))):
        return state
    record = None if queue is None or known_dead else records(queue).get((home, run))
    if record is not None and (supervisors(record, {}) or record.get("ticket")):  # its dispatcher may start it again
        return state
    state, detail = end_of_dead(home, run, state, known_dead)
    return mark_lost(run_folder(home, run), state, detail) if detail else state


def end_of_dead(home: str, run: str, state: State, known_dead: bool) -> Tuple[State, str]:
    """Remove the processes of a run without supervisor and guardian; return its newest state and what happened.

    The text is empty if the run has ended.
    """
    folder = run_folder(home, run)
    rebooted = state.get("boot") != boot_id()
    # The supervisor may have written the final state meanwhile.
    mark = state.get("mark", "")
    try:
        newer = read_state(folder)
    except OSError:  # a job has replaced the file
        newer = None
    if newer is not None and isinstance(newer.get("version"), int) and isinstance(newer.get("phases"), list):
        state = newer
    if state["state"] in TERMINAL:
        return state, ""
    if rebooted:
        return state, "the machine was restarted while the job ran"
    stuck = kill_unsupervised(run, mark, state, known_dead)
    if known_dead:
        return state, "supervisor and guardian of the run ended with the container that they ran in"
    detail = "supervisor and guardian of the run were killed; its processes were removed"
    return state, detail + (" (%s)" % stuck if stuck else "")


def kill_unsupervised(run: str, mark: str, state: State, known_dead: bool) -> str:
    """Remove container and processes of a run without supervisor and guardian; return what could not be killed."""
    if state.get("container"):  # it may run on although nobody supervises it
        from .container import Container

        Container("%s:%s" % (run, mark), os.environ).discard()  # an engine that hangs must not stop the queue
    # Of processes that are known to be dead no pid may be signaled.
    return "" if known_dead else kill_all("%s:%s" % (run, mark), None, state.get("rank"))


def write_state_with_retry(is_removed: Callable[[], bool], write: Callable[[], Any]) -> None:
    """Call `write` once a second until it succeeds or `is_removed` returns true."""
    while True:
        try:
            write()
            return
        except OSError:
            if is_removed():
                return
            time.sleep(1.0)


def seconds_since(moment: float) -> float:
    """Return the seconds since the Unix time `moment`; infinite if the clock was set back."""
    passed = protocol.wall() - moment
    return passed if passed >= 0 else float("inf")


#: Seconds that a run folder may be missing at the end of its run before the state is given up.
FOLDER_RETURN_TIMEOUT_S = float(os.environ.get("AMLTRAIN_FOLDER_RETURN_TIMEOUT") or 20.0)


class StateFile:
    """``state.json`` of one run; this process is its only writer.

    The folder is kept open so that it is found even after a job has renamed it.

    Parameters
    ----------
    folder
        The run folder.
    submission
        Submission in ``job.json``, which identifies a copy of the folder.
    """

    def __init__(self, folder: str, submission: str = "") -> None:
        self.folder = folder
        self._submission = submission
        self._handle = -1
        self._written: Optional[Tuple[int, int, int]] = None
        if LINUX:  # only Linux can use a descriptor as a path
            try:
                self._handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError:  # then the path is used
                pass

    @property
    def path(self) -> str:
        """Current path of the folder."""
        if self._handle >= 0 and not self._is_ours(self.folder):
            descriptor_path = "/proc/self/fd/%d" % self._handle
            if self._is_ours(descriptor_path):
                return descriptor_path
        return self.folder

    def exists(self) -> bool:
        """Whether the folder exists, under any name."""
        return self._is_ours(self.path)

    def cancel_requested(self) -> bool:
        """Whether the cancel file exists."""
        return os.path.lexists(os.path.join(self.path, CANCEL))

    def save(self, state: Dict[str, Any], durable: bool = False) -> None:
        """Write a state; see `write_state`.

        Raises
        ------
        OSError
            The state cannot be written now, or the folder was removed (and is not created again).
        """
        if self._handle >= 0 and not self.exists():
            raise FileNotFoundError(errno.ENOENT, "the run folder was removed", self.folder)
        write_state(self.path, state, durable)
        self._written = self._signature()

    def changed(self) -> bool:
        """Whether another process wrote, replaced or removed the file since `save`."""
        return self._written is not None and self._signature() != self._written and self.exists()

    def save_with_retry(self, state: Dict[str, Any], tick: Callable[[], None]) -> None:
        """Write the final state, with a retry every second; give up when the folder stays missing.

        Parameters
        ----------
        tick
            Called before each try.
        """
        last_seen = protocol.mono()

        def write() -> None:
            tick()
            self.save(state, durable=True)

        def is_removed() -> bool:
            nonlocal last_seen
            if self.exists():
                last_seen = protocol.mono()
            return protocol.mono() - last_seen > FOLDER_RETURN_TIMEOUT_S

        write_state_with_retry(is_removed, write)

    def _signature(self) -> Optional[Tuple[int, int, int]]:
        try:
            status = os.lstat(os.path.join(self.path, STATE))
        except OSError:
            return None
        return status.st_ino, status.st_ctime_ns, status.st_size

    def _is_ours(self, folder: str) -> bool:
        try:
            status = os.stat(folder)
        except OSError:
            return False
        if self._handle >= 0:
            held_status = os.fstat(self._handle)
            if (status.st_dev, status.st_ino) == (held_status.st_dev, held_status.st_ino):
                return held_status.st_nlink > 0 and os.path.isdir(folder)
        if not self._submission:
            return self._handle < 0
        try:
            job = read_json(os.path.join(folder, JOB)) or {}
        except (AgentError, OSError):
            return False
        return job.get("submission") == self._submission
