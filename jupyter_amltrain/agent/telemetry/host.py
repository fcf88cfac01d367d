"""Resource use of a run's processes and their host, from /proc. Sums and differences only.

Columns are described once, in :data:`COLUMNS`; a reader follows the header line.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Set, Tuple

from .. import protocol
from ..processes import LINUX, Process, descendants, pids_with_mark, process_table

#: Name and unit of each column after ``seq`` and ``t``.
COLUMNS: Tuple[Tuple[str, str], ...] = (
    ("cpu", "percent of one core"),
    ("memory", "bytes"),
    ("processes", "1"),
    ("host_cpu", "percent of all cores"),
    ("host_memory", "bytes"),
    ("read_bytes", "bytes"),
    ("write_bytes", "bytes"),
    # Of the machine or the container with the visible network, since it came up.
    ("net_rx", "bytes"),
    ("net_tx", "bytes"),
)

Value = Optional[float]

#: Checks of a process's mark until the process counts as not belonging to a run.
MAX_MARK_CHECKS = 3


def memory_total() -> Optional[int]:
    """Return the bytes of main memory of this machine, or the memory limit of this process."""
    total = _meminfo().get("MemTotal")
    for path in _limit_files():
        try:
            with open(path) as file:
                limit = int(file.read())
        except (OSError, ValueError):
            continue
        if total is None or limit < total:
            total = limit
    return total


def _limit_files() -> List[str]:
    """Return the files with the memory limits of the control groups that this process may be in."""
    found = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
    try:
        with open("/proc/self/cgroup") as file:
            lines = file.read().splitlines()
    except OSError:
        return found
    for line in lines:  # "0::/path" of version 2, "5:memory:/path" of version 1 (cgroups(7))
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        root, name = (
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes") if controllers else ("/sys/fs/cgroup", "memory.max")
        )
        parts = [part for part in path.split("/") if part]
        found += [os.path.join(root, *parts[: end + 1], name) for end in range(len(parts))]
    return found


def memory_available() -> int:
    """Return the bytes of memory that programs can still take without swapping; 0 if unknown."""
    return _meminfo().get("MemAvailable", 0)


def _meminfo() -> Dict[str, int]:
    sizes = {}
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                name, _, rest = line.partition(":")
                sizes[name] = int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):  # not Linux, or another format: unknown
        pass
    return sizes


def _host_ticks() -> Optional[Tuple[int, int]]:
    """Return busy and total ticks of all cores since boot (proc(5): /proc/stat)."""
    try:
        with open("/proc/stat") as file:
            ticks = [int(x) for x in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    if len(ticks) < 5:
        return None
    # idle and iowait; guest time is already in user time
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def _io(pid: int) -> Optional[Tuple[int, int]]:
    try:
        with open("/proc/%d/io" % pid) as file:
            fields = dict(line.split(": ") for line in file.read().splitlines())
        return int(fields["read_bytes"]), int(fields["write_bytes"])
    except (OSError, ValueError, KeyError):
        return None


def _network() -> Tuple[Value, Value]:
    """Return bytes received and sent by all interfaces but the loopback (proc(5): /proc/net/dev)."""
    received = sent = 0
    try:
        with open("/proc/net/dev") as file:
            for line in file.readlines()[2:]:
                name, _, rest = line.partition(":")
                if name.strip() != "lo":
                    numbers = rest.split()
                    received += int(numbers[0])
                    sent += int(numbers[8])
    except (OSError, ValueError, IndexError):
        return None, None
    return received, sent


class Usage:
    """Readings of one process tree.

    Parameters
    ----------
    root
        The supervisor: its descendants in other sessions than this process's are the run.
        ``None``: there is no run, and its values are unknown.
    mark
        Beginning of the mark of all processes of the run on this machine, where several
        supervisors share it; descendants of marked processes count too.
    shortest
        Seconds that the first value of `cpu` spans at least: one clock tick of 10 ms is 1000 % of one millisecond.

    Attributes
    ----------
    rows
        The run's processes by pid at the last reading.
    """

    def __init__(self, root: Optional[int], mark: str = "", shortest: float = 0.0) -> None:
        self.root = root
        self.shortest = shortest
        self.mark = mark
        #: Unmarked processes by pid and start, and how often they were checked: between
        #: its fork and its exec a process shows its parent's environment.
        self._unmarked: Dict[Tuple[int, Any], int] = {}
        self.rows: Dict[int, Process] = {}
        self.session = os.getsid(0)
        self.hertz = os.sysconf("SC_CLK_TCK")
        self.page = os.sysconf("SC_PAGE_SIZE")
        self._before: Dict[int, Process] = {}
        self._io: Dict[int, Tuple[int, int]] = {}
        self._ended_ticks = 0
        self._ended_io = [0, 0]
        self._ticks: Optional[Tuple[float, int]] = None
        self._host: Optional[Tuple[int, int]] = None

    def members(self) -> Dict[int, Process]:
        """Return the current processes of the run."""
        if self.root is None:
            return {}
        rows = process_table()
        if self.mark:
            return self._marked(rows)
        pids: Set[int] = {pid for pid in descendants(self.root, rows) if rows[pid].session != self.session}
        return {pid: rows[pid] for pid in pids}

    def _marked(self, rows: Dict[int, Process]) -> Dict[int, Process]:
        candidates = [pid for pid, row in rows.items() if self._unmarked.get((pid, row.start), 0) < MAX_MARK_CHECKS]
        pids = pids_with_mark(self.mark, candidates, whole=False)
        self._unmarked = {
            (pid, row.start): self._unmarked.get((pid, row.start), 0) + 1
            for pid, row in rows.items()
            if pid not in pids
        }
        for pid in list(pids):
            pids |= descendants(pid, rows)
        return {pid: rows[pid] for pid in pids}

    def read(self) -> List[Value]:
        """Return one value for each column; ``None`` where it is unknown (yet)."""
        if not LINUX:
            return [None] * len(COLUMNS)
        rows = self.rows = self.members()
        now = protocol.mono()
        ticks = self._total_ticks(rows)
        cpu: Value = None
        if self._ticks is None:
            self._ticks = (now, ticks)
        elif now - self._ticks[0] > self.shortest:
            cpu = round(max(0, ticks - self._ticks[1]) / self.hertz / (now - self._ticks[0]) * 100, 1)
            self._ticks, self.shortest = (now, ticks), 0.0
        host = _host_ticks()
        host_cpu: Value = None
        if host and self._host and host[1] > self._host[1]:
            host_cpu = round((host[0] - self._host[0]) / (host[1] - self._host[1]) * 100, 1)
        self._host = host
        memory = _meminfo()
        used = memory["MemTotal"] - memory["MemAvailable"] if "MemAvailable" in memory else None
        received, sent = _network()
        if self.root is None:
            return [None, None, None, host_cpu, used, None, None, received, sent]
        read, written = self._total_io(rows)
        rss = sum(row.rss for row in rows.values()) * self.page
        self._before = rows
        return [cpu, rss, len(rows), host_cpu, used, read, written, received, sent]

    def _ended(self, rows: Dict[int, Process]) -> List[Process]:
        return [row for pid, row in self._before.items() if pid not in rows or rows[pid].start != row.start]

    def _total_ticks(self, rows: Dict[int, Process]) -> int:
        for row in self._ended(rows):
            # A process of the run that reaped it has its time, also by way of others that have ended.
            parent = row.parent
            while parent not in rows and parent in self._before:
                parent = self._before[parent].parent
            if parent not in rows:
                self._ended_ticks += row.own_time + row.child_time
        return self._ended_ticks + sum(row.own_time + row.child_time for row in rows.values())

    def _total_io(self, rows: Dict[int, Process]) -> Tuple[Value, Value]:
        for row in self._ended(rows):
            last = self._io.pop(row.pid, (0, 0))
            self._ended_io[0] += last[0]
            self._ended_io[1] += last[1]
        for pid in rows:
            now = _io(pid)
            if now is not None:
                self._io[pid] = now
        if not self._io and rows and self._ended_io == [0, 0]:
            return None, None
        return (
            self._ended_io[0] + sum(x[0] for x in self._io.values()),
            self._ended_io[1] + sum(x[1] for x in self._io.values()),
        )


def header(period: float, cpus: int) -> Dict[str, Any]:
    """Return the first line of a telemetry file."""
    return {
        "schema": 1,
        "columns": ["seq", "t"] + [name for name, _ in COLUMNS],
        "units": ["1", "unix s"] + [unit for _, unit in COLUMNS],
        "memory_total": memory_total(),
        "cpus": cpus,
        "period": period,
    }
