"""No room left on a job's machine: main memory, shared memory or a disk as the cause of a failure."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import Dict, List, Optional, Tuple

from ..protocol import FAILED, LOG_OF_RANK, TELEMETRY
from ..telemetry.host import COLUMNS, memory_total
from .out_of_memory import in_size
from .outcome import Outcome, tail_of

#: Kinds of a cause.
HOST_MEMORY, SHARED_MEMORY, DISK = "host-memory", "shared-memory", "disk-full"

SHM = "/dev/shm"

#: Characters at the end of a log in which the error stands.
_END_CHARS = 4000
_FULL = re.compile(
    r"\[Errno (?:28|122|69)\]|No space left on device|Disk quota exceeded|ENOSPC|database or disk is full"
)
_QUOTA = re.compile(r"\[Errno (?:122|69)\]|Disk quota exceeded")
_PATH = re.compile(r"(?:No space left on device|Disk quota exceeded): ['\"]([^'\"\n]+)['\"]")
#: PyTorch's loader says it of a worker; a program of one process is killed by the signal.
_BUS = re.compile(r"out of shared memory|insufficient shared memory|killed by signal: Bus error")

#: Part of a file system, and bytes, below which it counts as full: a failed write leaves a rest.
_FREE_PART, _FREE_BYTES = 0.005, 32 << 20
#: Part of main memory that the usual shared memory has at least; that of a container is a small one.
_USUAL_SHM = 0.2

#: Place of the memory in a reading, after its number and time.
_MEMORY = 2 + [name for name, _ in COLUMNS].index("memory")


def cause_of(folder: str, outcome: Outcome, cwd: str, number: int = 0, rank: int = 0) -> Optional[Dict[str, str]]:
    """Return ``{"kind", "text", "action"}`` of a run that failed for want of room; ``None`` for other failures.

    Parameters
    ----------
    folder
        The run folder.
    cwd
        Working folder of the job.
    number, rank
        Number of the machine within the run; process that failed, in a run of several.
    """
    if outcome.state != FAILED:
        return None
    if outcome.reason == "oom":
        return _of_main_memory(folder, number)
    end = tail_of(os.path.join(folder, LOG_OF_RANK % rank))[-_END_CHARS:]
    if outcome.signal == signal.SIGBUS or (outcome.exit_code and _BUS.search(end)):
        return _of_shared_memory(is_named=bool(_BUS.search(end)))
    if outcome.exit_code and _FULL.search(end):
        paths = _PATH.findall(end)
        return _of_disk(
            os.path.join(cwd, paths[-1]) if paths else "", [cwd, folder, os.environ.get("TMPDIR", "/tmp"), SHM], end
        )
    return None


def _of_main_memory(folder: str, number: int) -> Optional[Dict[str, str]]:
    used, total = _last_use(folder, number), memory_total()
    if used is None or total is None:
        return None
    return {
        "kind": HOST_MEMORY,
        "text": "its processes had %s of %s when they were last seen" % (in_size(used), in_size(total)),
        "action": "Load less at a time, or use a machine with more memory",
    }


def _last_use(folder: str, number: int) -> Optional[int]:
    """Return the most memory of the run's processes in the last readings (bytes)."""
    found: List[int] = []
    for line in tail_of(os.path.join(folder, TELEMETRY % number)).splitlines():
        try:
            values = json.loads(line)
            found.append(int(values[_MEMORY]))
        except (ValueError, TypeError, LookupError):  # the header, a line that is cut off, no value
            continue
    return max(found[-30:], default=None)


def _of_shared_memory(is_named: bool) -> Optional[Dict[str, str]]:
    total, free = _space(SHM) or (0, 0)
    memory = memory_total() or 0
    is_small = 0 < total < _USUAL_SHM * memory
    if not is_named and not is_small and not (total and _is_full(total, free)):
        return None  # a file that was mapped may have been cut short
    return {
        "kind": SHARED_MEMORY,
        "text": "the machine's shared memory (%s, %s) was full" % (SHM, in_size(total) if total else "of unknown size"),
        "action": "Use fewer workers for the data (num_workers=0 needs none), or enlarge it: in a container"
        " --shm-size 8g, else sudo mount -o remount,size=8G %s" % SHM,
    }


def _of_disk(path: str, others: List[str], end: str) -> Optional[Dict[str, str]]:
    """Return the cause for the file system of `path`, or for that of `others` which is full."""
    if path.startswith(SHM + "/"):
        return _of_shared_memory(is_named=True)
    if _QUOTA.search(end):
        where = " of %s" % path if path else ""
        return {"kind": DISK, "text": "the quota%s is used up" % where, "action": "Delete files there, or ask for more"}
    for place in [path] if path else others:
        folder, space = _existing(place), _space(_existing(place))
        if space and (path or _is_full(*space)):
            if folder == SHM:
                return _of_shared_memory(is_named=True)
            again = "" if _is_full(*space) else " again"  # the job's own files may be gone
            text = "the disk of %s was full (%s of %s free%s)" % (
                folder, in_size(space[1]), in_size(space[0]), again
            )  # fmt: skip
            return {"kind": DISK, "text": text, "action": "Delete files there, or write to another disk"}
    return {"kind": DISK, "text": "a disk was full", "action": "Delete files there, or write to another disk"}


def _existing(path: str) -> str:
    """Return the path, or the nearest folder above it that exists."""
    while path and path != os.sep and not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def _space(path: str) -> Optional[Tuple[int, int]]:
    """Return the size and the free bytes of a file system; ``None`` if they cannot be read."""
    try:
        found = os.statvfs(path)
    except (OSError, ValueError):
        return None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def _is_full(total: int, free: int) -> bool:
    return free < min(_FREE_BYTES, total * _FREE_PART) or free == 0
