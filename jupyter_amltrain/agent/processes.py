"""Processes of this machine: process table, identities, run membership and signals."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from functools import lru_cache
from typing import Any, Dict, FrozenSet, Iterable, List, Mapping, NamedTuple, Optional, Set, Tuple

from .protocol import MARK

LINUX = sys.platform.startswith("linux")


class Process(NamedTuple):
    """One row of the process table; times in clock ticks, `rss` in pages."""

    pid: int
    state: str
    parent: int
    session: int
    own_time: int  #: user and system
    child_time: int  #: of reaped children
    start: Any  #: ticks since boot; the start time printed by `ps` on other systems than Linux
    rss: int
    threads: int


def parse_stat(data: bytes) -> Optional[Process]:
    """Parse ``/proc/<pid>/stat`` (proc(5)); the name in brackets may contain any bytes."""
    close = data.rfind(b")")
    if close < 0:
        return None
    f = data[close + 2 :].split()
    if len(f) < 22:
        return None
    return Process(
        int(data[: data.index(b" ")]),
        f[0].decode(),
        int(f[1]),
        int(f[3]),
        int(f[11]) + int(f[12]),
        int(f[13]) + int(f[14]),
        int(f[19]),
        int(f[21]),
        int(f[17]),
    )


def find_process(pid: int) -> Optional[Process]:
    """Return the process `pid`, or ``None`` when there is none."""
    if not LINUX:
        return _ps_table().get(pid)
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return parse_stat(file.read())
    except (OSError, ValueError):
        return None


def process_table() -> Dict[int, Process]:
    """Return all processes of this machine by pid."""
    rows = {}
    if not LINUX:
        return _ps_table()
    names = os.listdir("/proc")
    for name in names:
        if name.isdigit():
            row = find_process(int(name))
            if row is not None:
                rows[row.pid] = row
    return rows


def _ps_table() -> Dict[int, Process]:
    columns = "pid=,ppid=,pgid=,stat=,rss=,lstart="
    listed = subprocess.run(["ps", "-axo", columns], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    rows = {}
    for line in listed.stdout.decode("utf-8", "replace").splitlines():
        f = line.split(None, 5)
        if len(f) == 6:
            pages = int(f[4]) * 1024 // os.sysconf("SC_PAGE_SIZE")
            # The process group stands in for the session, which BSD's ps does not print.
            rows[int(f[0])] = Process(int(f[0]), f[3][0], int(f[1]), int(f[2]), 0, 0, f[5].strip(), pages, 1)
    return rows


def identity(pid: int) -> Optional[Dict[str, Any]]:
    """Return ``{"pid", "start"}`` of a live process: the start time tells reused pids apart."""
    row = find_process(pid)
    return None if row is None or row.state in "ZX" else {"pid": pid, "start": row.start}


def is_alive(process: Optional[Mapping[str, Any]]) -> bool:
    """Whether a process, given by its identity, is running and not a zombie; the identity may come from a job."""
    if not isinstance(process, dict) or not isinstance(process.get("pid"), int):
        return False
    current = identity(process["pid"])
    return current is not None and current["start"] == process.get("start")


def resume(process: Optional[Mapping[str, Any]]) -> bool:
    """Continue a process, given by its identity, if it is stopped; return whether it was."""
    if not process or not isinstance(process.get("pid"), int):
        return False
    row = find_process(process["pid"])
    if row is None or row.state not in "Tt" or row.start != process.get("start"):
        return False
    try:
        os.kill(row.pid, signal.SIGCONT)
    except OSError:
        return False
    return True


@lru_cache(maxsize=None)
def boot_id() -> str:
    """Return an id that changes with every boot of the machine."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:  # not Linux
        pass
    listed = subprocess.run(
        ["sysctl", "-n", "kern.boottime"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
    )
    return listed.stdout.decode("utf-8", "replace").split("}")[0].strip("{ ")


@lru_cache(maxsize=None)
def pid_scope() -> str:
    """Return the scope in which pids are valid: this machine and, on Linux, this PID namespace.

    A state root on a shared disk is read by several machines, and by containers that
    share the name and the boot of one machine.
    """
    try:
        return "%s %s" % (socket.gethostname(), os.readlink("/proc/self/ns/pid"))
    except OSError:
        return socket.gethostname()


def become_subreaper() -> bool:
    """Adopt orphaned descendants as our children (Linux; elsewhere init adopts them)."""
    if not LINUX:
        return False
    # Imported here: the kernel also imports this module and needs no ctypes.
    import ctypes

    # PR_SET_CHILD_SUBREAPER of linux/prctl.h.
    return bool(ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0) == 0)


def end_with_parent(parent: int) -> None:
    """Receive SIGTERM when the parent dies (Linux), or immediately if `parent` is dead already.

    The kernel sends the signal only for a death after the call (PR_SET_PDEATHSIG in prctl(2)).
    """
    if LINUX:
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM, 0, 0, 0)  # number: linux/prctl.h
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def descendants(root: int, rows: Mapping[int, Process], apart: FrozenSet[int] = frozenset()) -> Set[int]:
    """Return pids of the descendants of `root`, without the process trees of `apart`."""
    children: Dict[int, List[int]] = {}
    for row in rows.values():
        children.setdefault(row.parent, []).append(row.pid)
    result: Set[int] = set()
    pending = [root]
    while pending:
        for pid in children.get(pending.pop(), ()):
            if pid not in result and pid != root and pid not in apart:
                result.add(pid)
                pending.append(pid)
    return result


def pids_with_mark(mark: str, rows: Iterable[int], whole: bool = True) -> Set[int]:
    """Return pids started with ``AMLTRAIN_RUN=<mark>`` in their environment; without `whole` the mark is a prefix."""
    entry = ("%s=%s" % (MARK, mark)).encode()
    pids = set()
    for pid in rows:
        try:
            with open("/proc/%d/environ" % pid, "rb") as file:
                data = file.read()
        except OSError:  # of another user, or ended
            continue
        if (b"\0" + data + b"\0").find(b"\0" + entry + (b"\0" if whole else b"")) >= 0:
            pids.add(pid)
    return pids


def run_members(
    mark: str,
    root: Optional[int],
    spare: FrozenSet[int] = frozenset(),
    leader: Optional[Mapping[str, Any]] = None,
    apart: FrozenSet[int] = frozenset(),
) -> List[Process]:
    """Return the live processes of a run.

    Parameters
    ----------
    mark
        The mark of the run: finds processes that left the process tree.
    root
        The process whose descendants belong to the run: finds processes that
        cleared their environment.
    spare
        Pids that are left out; their children are not.
    leader
        Identity of the rank, the leader of a session: finds processes by their session when the tree is broken.
    apart
        Pids that do not belong to the run, together with all of their descendants.
    """
    rows = process_table()
    pids = pids_with_mark(mark, rows)
    if isinstance(leader, dict) and isinstance(leader.get("pid"), int):  # a job may have written it
        # A pid is not reused while a session has its number. Once the session has
        # ended it may be, and the next session is not part of the run.
        current = rows.get(leader["pid"])
        if current is None or current.start == leader.get("start"):
            pids |= {row.pid for row in rows.values() if row.session == leader["pid"]}
    if root is not None:
        pids |= descendants(root, rows, apart)
    for pid in list(pids):
        pids |= descendants(pid, rows, apart)
    pids -= spare
    pids -= {os.getpid(), root or 0}
    return [rows[pid] for pid in sorted(pids) if rows[pid].state not in "ZX"]


def children(pid: int) -> List[int]:
    """Return live and ended children of a single-threaded process without reading the whole process table.

    A child that is forked during the call may be missing.
    """
    try:
        with open("/proc/%d/task/%d/children" % (pid, pid)) as file:
            return [int(word) for word in file.read().split()]
    except (OSError, ValueError):  # a kernel without CONFIG_PROC_CHILDREN
        return [row.pid for row in process_table().values() if row.parent == pid]


def signal_processes(rows: Iterable[Process], number: int) -> int:
    """Signal each process whose pid was not reused; return the number of signals sent."""
    count = 0
    for row in rows:
        current = find_process(row.pid)
        if current is None or current.start != row.start:
            continue
        try:
            os.kill(row.pid, number)
            count += 1
        except OSError:  # it has ended
            pass
    return count


def signal_name(number: int) -> str:
    """Return the name of a signal: ``SIGSEGV`` for 11."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


#: Max characters of a command and of a user name.
MAX_NAME = 60


def user_of(pid: int) -> str:
    """Return the user name (or uid) of a process; empty for a process that is not visible here."""
    try:
        uid = os.stat("/proc/%d" % pid).st_uid
    except OSError:
        return ""
    try:
        import pwd

        return pwd.getpwuid(uid).pw_name[:MAX_NAME]
    except (ImportError, KeyError):
        return str(uid)


def comm_of(pid: int) -> str:
    """Return the command name of a process (15 characters); empty for a process that is not visible here."""
    try:
        with open("/proc/%d/comm" % pid, "rb") as file:
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""


def command_of(pid: int) -> str:
    """Return program and script of a process, such as ``python train.py``; other arguments may contain secrets."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            words = file.read(4096).decode("utf-8", "replace").split("\0")
    except OSError:
        return ""
    return (short_command(words) or comm_of(pid))[:MAX_NAME]


def run_of(pid: int) -> str:
    """Return the id of the run whose job a process belongs to; empty for others, and those of other users."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            data = b"\0" + file.read()
    except OSError:  # of another user, or ended
        return ""
    entry = ("\0%s=" % MARK).encode()
    start = data.find(entry)
    mark = data[start + len(entry) :].split(b"\0")[0] if start >= 0 else b""
    return mark.partition(b":")[0].decode("utf-8", "replace")[:100]


def program_of(pid: int) -> str:
    """Return the run of a process, as ``run digits-k3f9``, or its command."""
    run = run_of(pid)
    return "run %s" % run if run else command_of(pid)


def short_command(words: List[str]) -> str:
    """Return the program of a command line, with the script or module that an interpreter runs."""
    program = os.path.basename(words[0].split(" ")[0]) if words else ""
    if not program.startswith(("python", "pypy", "torchrun", "accelerate", "deepspeed")):
        return program
    rest = [word for word in words[1:] if word]
    for index, word in enumerate(rest):
        if word == "-m" and index + 1 < len(rest):
            return "%s -m %s" % (program, rest[index + 1])
        if word == "-c":
            break
        if not word.startswith("-"):
            # The word after an option may be its value, so only the name of a script is returned.
            if word.endswith((".py", ".pyz")):
                return "%s %s" % (program, os.path.basename(word))
            break
    return program


def cgroup_paths(cgroups: str = "/proc/self/cgroup") -> List[Tuple[str, str]]:
    """Return controllers and path of each of our cgroups; the controllers of version 2 are empty (cgroups(7))."""
    try:
        with open(cgroups) as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    parts = [line.split(":", 2) for line in lines]
    return [(part[1], part[2]) for part in parts if len(part) == 3]
