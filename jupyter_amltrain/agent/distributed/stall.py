"""Runs that make no progress: where they are; of ranks, where each is while the others wait in a collective call.

A run of several processes stops silently when one of them never reaches the call in which the others wait. When the run
has written no log and no metric for a while, each rank writes its stack, twice. The result is what was seen, not
a guess: which ranks wait, and in which line the others are. The run goes on. A run of one process that uses neither
processor nor GPU meanwhile shows the line in which it is.

Python's :mod:`faulthandler` writes the stack of a process that is blocked, too (``stack_hook.py``).
"""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ..plain_text import without_codes
from ..protocol import METRICS, read_regular
from ..telemetry.recent_use import RecentUse
from .launchers import RANKS

#: Seconds without a line and a metric until the stacks are read; ``$AMLTRAIN_STALL`` sets others.
DEFAULT_STALL_S = 300.0
#: Seconds between two looks at the sizes of the files, as a part of the above.
_LOOKS = 10
#: Seconds until the stacks are there.
ANSWER_S = 1.0
_STACK_BYTES, _SOURCE_BYTES = 64 << 10, 1 << 20
#: ``File "path", line 12 in name`` of faulthandler.
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)', re.MULTILINE)
#: Modules whose calls wait for the other ranks. A backward pass waits for the gradients of all ranks.
_WAITING = re.compile(r"/(?:torch/distributed|horovod|mpi4py|deepspeed/comm)/")
_BACKWARD = "_engine_run_backward"
#: Frames between a collective call and the place where it waits.
_WRAPPERS = ("wrapper", "inner", "wrapped_fn")


class Frame(NamedTuple):
    """A call on a stack."""

    file: str
    line: int
    name: str


class Stack(NamedTuple):
    """The main thread of a rank, innermost call first."""

    frames: Tuple[Frame, ...]

    @property
    def waits_in(self) -> str:
        """Name of the collective call in which the rank waits; empty if it does not."""
        # Only the innermost call counts: a library may compute, compile or read files inside its collective calls.
        inner = next((frame for frame in self.frames if frame.name not in _WRAPPERS), None)
        if inner is None:
            return ""
        if inner.name == _BACKWARD:
            return "backward"
        return inner.name if _WAITING.search(inner.file) else ""


def signal_number() -> int:
    """Return the signal that asks for a stack, which programs rarely use; 0 where there is none."""
    return int(getattr(signal, "SIGRTMIN", 0)) and int(signal.SIGRTMIN) + 9


def stacks(text: str) -> List[Stack]:
    """Return the stacks in a file of faulthandler, oldest first."""
    parts = re.split(r"^(?:Current thread|Thread|Stack) .*$", text, flags=re.MULTILINE)[1:]
    found = [tuple(Frame(m["file"], int(m["line"]), m["name"]) for m in _FRAME.finditer(part)) for part in parts]
    return [Stack(frames) for frames in found if frames]


def sentence(found: Mapping[int, Stack], script: str, line_offset: int, what: str) -> str:
    """Return where the ranks are, if some wait for the others; else an empty text.

    Parameters
    ----------
    script
        File name of the script; its innermost line is shown.
    line_offset
        Line of the script minus line of the cell.
    what
        ``cell`` or ``script``.
    """
    waiting = {rank: stack.waits_in for rank, stack in found.items() if stack.waits_in}
    others = [rank for rank in sorted(found) if rank not in waiting]
    if not waiting or not others:
        return ""
    parts = []
    for rank in others[:4]:
        frame = next((one for one in found[rank].frames if os.path.basename(one.file) == script), None)
        if frame is None:
            frame = found[rank].frames[0]
            parts.append("rank %d is in %s (%s:%d)" % (rank, frame.name, os.path.basename(frame.file), frame.line))
        else:
            parts.append("rank %d is in line %d of the %s" % (rank, frame.line - line_offset, what))
    if len(others) > 4:
        parts.append("and %d more" % (len(others) - 4))
    calls = ", ".join(sorted(set(waiting.values())))
    names = ", ".join(str(rank) for rank in sorted(waiting)[:8]) + (", ..." if len(waiting) > 8 else "")
    return "%s, while rank%s %s wait%s in %s" % (
        ", ".join(parts), "s" if len(waiting) > 1 else "", names, "" if len(waiting) > 1 else "s", calls,
    )  # fmt: skip


def place_of(stack: Stack, script: str, line_offset: int, what: str) -> str:
    """Return where a process is: ``line 4 of the cell (x = queue.get()), in wait (threading.py:320)``.

    Parameters
    ----------
    script, line_offset, what
        As for :func:`sentence`.
    """
    inner = stack.frames[0]
    call = "in %s (%s:%d)" % (inner.name, os.path.basename(inner.file), inner.line)
    own = next((one for one in stack.frames if os.path.basename(one.file) == script), None)
    if own is None:
        return call
    code = _line_of(own)
    text = "line %d of the %s" % (own.line - line_offset, what) + (" (%s)" % code if code else "")
    return text if own is inner else "%s, %s" % (text, call)


def _line_of(frame: Frame) -> str:
    try:
        lines = read_regular(frame.file, _SOURCE_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    text = lines[frame.line - 1].strip()[:80] if 0 < frame.line <= len(lines) else ""
    return without_codes(text)


class StallWatch:
    """Watches a run that makes no progress; part of the supervisor.

    Parameters
    ----------
    folder
        The run folder.
    job
        Content of its ``job.json``.
    """

    def __init__(self, folder: str, job: Mapping[str, Any]) -> None:
        self._folder = folder
        spec: Mapping[str, Any] = job.get("spec") or {}
        self._script = os.path.basename(str(spec.get("script_name") or "script.py"))
        offset = spec.get("line_offset")
        self._offset = offset if isinstance(offset, int) else 0
        self._what = "cell" if spec.get("script") or spec.get("is_cell") else "script"
        self._limit = _limit()
        self._use = None if job.get("ranks") else RecentUse(folder)
        self._sizes: Dict[str, int] = {}
        self._since = self._next = time.monotonic()
        self._first: Optional[Dict[int, Stack]] = None
        self._has_requested = False
        #: What is shown now.
        self.text = ""

    @property
    def period(self) -> float:
        """Seconds between two calls of :meth:`update`."""
        return max(0.2, min(self._limit / _LOOKS, 30.0))

    def update(self) -> bool:
        """Look at the files, and ask the ranks if nothing has changed for long; return whether `text` is another."""
        now = time.monotonic()
        before: str = self.text
        if now < self._next:
            return False
        self._next = now + self.period
        sizes = self._read_sizes()
        is_idle = self._use is None or self._use.is_idle()
        if sizes != self._sizes or not is_idle:
            self._sizes, self._since, self._first, self._has_requested, self.text = sizes, now, None, False, ""
        elif now - self._since > self._limit and not self.text:
            found = self._look()
            if found:
                missing = "no log and no metric" if self._use is None else "no log, metric, CPU or GPU use"
                self.text = "%s for %d s: %s" % (missing, now - self._since, found)
        return self.text != before

    def _look(self) -> str:
        """Ask for the stacks, or read them; return where the ranks are if no stack has changed since the last time."""
        if not self._has_requested:
            self._has_requested = request(self._folder)
            self._next = time.monotonic() + ANSWER_S
            return ""
        self._has_requested = False
        before, self._first = self._first, _read_stacks(self._folder)
        if before != self._first or not self._first:
            return ""
        if self._use is not None:
            return place_of(next(iter(self._first.values())), self._script, self._offset, self._what)
        return sentence(self._first, self._script, self._offset, self._what)

    def _read_sizes(self) -> Dict[str, int]:
        sizes = {}
        for name in ("log", os.path.dirname(METRICS)):
            try:
                for entry in os.scandir(os.path.join(self._folder, name)):
                    sizes["%s/%s" % (name, entry.name)] = entry.stat().st_size
            except OSError:  # not there yet
                pass
        return sizes


def stack_files(folder: str) -> List[Tuple[int, str]]:
    """Return rank and path of the files of a run into which its processes write their stacks."""
    place = os.path.join(folder, RANKS)
    try:
        names = [name for name in os.listdir(place) if name.endswith(".stack") and name[:-6].isdigit()]
    except OSError:
        return []
    return [(int(name[:-6]), os.path.join(place, name)) for name in names]


def request(folder: str) -> bool:
    """Ask each process that has a file for its stack; return whether there is one."""
    requested = False
    for _, path in stack_files(folder):
        try:
            with open(path) as file:
                head = file.readline()
            pid, start, handle = (*head.split(), "")[:3]
            # A rank that has ended may have left its number to another process, and its descriptor to another file.
            if start == _start_time(int(pid)) and (not handle or _is_open(int(pid), handle, path)):
                os.truncate(path, len(head))
                os.kill(int(pid), signal_number())
                requested = True
        except (OSError, ValueError):
            continue
    return requested


def _is_open(pid: int, handle: str, path: str) -> bool:
    opened, expected = os.stat("/proc/%d/fd/%d" % (pid, int(handle))), os.stat(path)
    return (opened.st_dev, opened.st_ino) == (expected.st_dev, expected.st_ino)


def read_stack(path: str) -> Tuple[int, Optional[Stack]]:
    """Return the pid of a file's process and its last stack."""
    try:
        with open(path, errors="replace") as file:
            text = file.read(_STACK_BYTES)
        seen = stacks(text)
        return int(text.split()[0]), seen[-1] if seen else None
    except (OSError, ValueError, IndexError):
        return 0, None


def _read_stacks(folder: str) -> Dict[int, Stack]:
    found = {rank: read_stack(path)[1] for rank, path in stack_files(folder)}
    return {rank: stack for rank, stack in found.items() if stack is not None}


def _limit() -> float:
    try:
        return max(1.0, float(os.environ["AMLTRAIN_STALL"]))
    except (KeyError, ValueError):
        return DEFAULT_STALL_S


def _start_time(pid: int) -> str:
    """Return the time at which a process has started, in clock ticks since the boot."""
    with open("/proc/%d/stat" % pid) as file:
        return file.read().rpartition(")")[2].split()[19]
