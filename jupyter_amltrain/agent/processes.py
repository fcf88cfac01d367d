"""Processes of this machine: who they are, whose they are, and their end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from functools import lru_cache
from typing import Any, Dict, FrozenSet, Iterable, List, Mapping, NamedTuple, Optional, Set

from .protocol import MARK

LINUX = sys.platform.startswith("linux")


class Process(NamedTuple):
    """One row of the process table; times in clock ticks, `rss` in pages."""

    pid: int
    state: str
    parent: int
    session: int
    own_time: int  #: user and system
    child_time: int  #: of children that it has reaped
    start: Any  #: ticks since boot; elsewhere than on Linux the text of `ps`
    rss: int
    threads: int


def parse_stat(data: bytes) -> Optional[Process]:
    """Parse ``/proc/<pid>/stat`` (proc(5)); the name in brackets may hold anything."""
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


def look(pid: int) -> Optional[Process]:
    """The process `pid`, or ``None`` when there is none."""
    if not LINUX:
        return _listed_by_ps().get(pid)
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return parse_stat(file.read())
    except (OSError, ValueError):
        return None


def table() -> Dict[int, Process]:
    """All processes of this machine by pid."""
    found = {}
    if not LINUX:
        return _listed_by_ps()
    names = os.listdir("/proc")
    for name in names:
        if name.isdigit():
            row = look(int(name))
            if row is not None:
                found[row.pid] = row
    return found


def _listed_by_ps() -> Dict[int, Process]:
    columns = "pid=,ppid=,pgid=,stat=,rss=,lstart="
    listed = subprocess.run(["ps", "-axo", columns], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    found = {}
    for line in listed.stdout.decode("utf-8", "replace").splitlines():
        f = line.split(None, 5)
        if len(f) == 6:
            pages = int(f[4]) * 1024 // os.sysconf("SC_PAGE_SIZE")
            # The group stands in for the session, which BSD's ps does not tell.
            found[int(f[0])] = Process(int(f[0]), f[3][0], int(f[1]), int(f[2]), 0, 0, f[5].strip(), pages, 1)
    return found


def identity(pid: int) -> Optional[Dict[str, Any]]:
    """``{"pid", "start"}`` of a live process: a pid alone may be somebody else's tomorrow."""
    row = look(pid)
    return None if row is None or row.state in "ZX" else {"pid": pid, "start": row.start}


def alive(who: Optional[Mapping[str, Any]]) -> bool:
    """Whether the process with the identity `who` still runs (a zombie does not); a job may have written `who`."""
    if not isinstance(who, dict) or not isinstance(who.get("pid"), int):
        return False
    found = identity(who["pid"])
    return found is not None and found["start"] == who.get("start")


def resume(who: Optional[Mapping[str, Any]]) -> bool:
    """Let the process with the identity `who` go on if somebody stopped it; whether it had to."""
    if not who or not isinstance(who.get("pid"), int):
        return False
    row = look(who["pid"])
    if row is None or row.state not in "Tt" or row.start != who.get("start"):
        return False
    try:
        os.kill(row.pid, signal.SIGCONT)
    except OSError:
        return False
    return True


@lru_cache(maxsize=None)
def boot_id() -> str:
    """Changes with every boot of the machine."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        pass
    listed = subprocess.run(
        ["sysctl", "-n", "kern.boottime"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
    )
    return listed.stdout.decode("utf-8", "replace").split("}")[0].strip("{ ")


@lru_cache(maxsize=None)
def node() -> str:
    """Where our pids mean what they say: this machine and, on Linux, this PID namespace.

    A state root on a shared disk is read by several machines, and by containers that
    have one machine's name and boot.
    """
    try:
        return "%s %s" % (socket.gethostname(), os.readlink("/proc/self/ns/pid"))
    except OSError:
        return socket.gethostname()


def become_subreaper() -> bool:
    """Let orphans below us become our children (Linux; elsewhere they are init's)."""
    if not LINUX:
        return False
    # Not at the top: the kernel imports this module and needs no ctypes.
    import ctypes

    # PR_SET_CHILD_SUBREAPER of linux/prctl.h.
    return bool(ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0) == 0)


def end_with_parent(parent: int) -> None:
    """Let SIGTERM come to us when our parent dies (Linux), and at once when `parent` is dead already.

    The signal is only for a death after the call (PR_SET_PDEATHSIG in prctl(2)).
    """
    if LINUX:
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM, 0, 0, 0)  # number: linux/prctl.h
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def descendants(root: int, rows: Mapping[int, Process], apart: FrozenSet[int] = frozenset()) -> Set[int]:
    """Pids below `root`, without `root` and without the trees of `apart`."""
    children: Dict[int, List[int]] = {}
    for row in rows.values():
        children.setdefault(row.parent, []).append(row.pid)
    found: Set[int] = set()
    todo = [root]
    while todo:
        for pid in children.get(todo.pop(), ()):
            if pid not in found and pid != root and pid not in apart:
                found.add(pid)
                todo.append(pid)
    return found


def marked(mark: str, rows: Iterable[int], whole: bool = True) -> Set[int]:
    """Pids whose environment at their start held ``AMLTRAIN_RUN=<mark>``; not `whole`: a mark that begins so."""
    wanted = ("%s=%s" % (MARK, mark)).encode()
    found = set()
    for pid in rows:
        try:
            with open("/proc/%d/environ" % pid, "rb") as file:
                data = file.read()
        except OSError:  # another user's, or gone
            continue
        if (b"\0" + data + b"\0").find(b"\0" + wanted + (b"\0" if whole else b"")) >= 0:
            found.add(pid)
    return found


def members(
    mark: str,
    root: Optional[int],
    spare: FrozenSet[int] = frozenset(),
    leader: Optional[Mapping[str, Any]] = None,
    apart: FrozenSet[int] = frozenset(),
) -> List[Process]:
    """The live processes of a run.

    Parameters
    ----------
    mark
        The run's mark: finds those that left the process tree.
    root
        The process whose descendants belong to the run; finds those that
        cleared their environment.
    spare
        Pids that are not counted, with nothing said of their children.
    leader
        Identity of the rank, which led a session: finds more when the tree is gone.
    apart
        Pids that do not belong to the run with all below them, wherever they stand.
    """
    rows = table()
    found = marked(mark, rows)
    if isinstance(leader, dict) and isinstance(leader.get("pid"), int):  # a job may have written it
        # A pid is not given out again while a session has its number; but once the
        # session has ended it may, and the next session is not ours.
        now = rows.get(leader["pid"])
        if now is None or now.start == leader.get("start"):
            found |= {row.pid for row in rows.values() if row.session == leader["pid"]}
    if root is not None:
        found |= descendants(root, rows, apart)
    for pid in list(found):
        found |= descendants(pid, rows, apart)
    found -= spare
    found -= {os.getpid(), root or 0}
    return [rows[pid] for pid in sorted(found) if rows[pid].state not in "ZX"]


def children(pid: int) -> List[int]:
    """Live and ended children of a process that is single-threaded, for a quick look without the whole table.

    One that is forked during the look may be missing.
    """
    try:
        with open("/proc/%d/task/%d/children" % (pid, pid)) as file:
            return [int(word) for word in file.read().split()]
    except (OSError, ValueError):  # a kernel without CONFIG_PROC_CHILDREN
        return [row.pid for row in table().values() if row.parent == pid]


def send(rows: Iterable[Process], number: int) -> int:
    """Signal each process that is still the one that was seen; how many were reached."""
    count = 0
    for row in rows:
        now = look(row.pid)
        if now is None or now.start != row.start:
            continue
        try:
            os.kill(row.pid, number)
            count += 1
        except OSError:
            pass
    return count


def signal_name(number: int) -> str:
    """``SIGSEGV`` for 11."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


#: Characters of a command and of a user's name.
MAX_NAME = 60


def user_of(pid: int) -> str:
    """Name (or number) of a process's user; empty for a process that is not here."""
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
    """Command name as the kernel has it (15 characters); empty for a process that is not here."""
    try:
        with open("/proc/%d/comm" % pid, "rb") as file:
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""


def command_of(pid: int) -> str:
    """Program and script of a process, such as ``python train.py``; its other arguments may hold secrets."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            words = file.read(4096).decode("utf-8", "replace").split("\0")
    except OSError:
        return ""
    return (brief(words) or comm_of(pid))[:MAX_NAME]


def brief(words: List[str]) -> str:
    """The program of a command line, and the script or module that an interpreter runs."""
    program = os.path.basename(words[0].split(" ")[0]) if words else ""
    if not program.startswith(("python", "pypy", "torchrun", "accelerate", "deepspeed")):
        return program
    rest = [word for word in words[1:] if word]
    for at, word in enumerate(rest):
        if word == "-m" and at + 1 < len(rest):
            return "%s -m %s" % (program, rest[at + 1])
        if word == "-c":
            break
        if not word.startswith("-"):
            # What stands after an option may be its value, so only a script's name is told.
            if word.endswith((".py", ".pyz")):
                return "%s %s" % (program, os.path.basename(word))
            break
    return program
