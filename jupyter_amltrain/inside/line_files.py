"""Files of the sampled lines of a run: one for each Python of the job that runs lines of the user's."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple

from jupyter_amltrain.agent.protocol import LINES
from jupyter_amltrain.backends.base import Backend

#: Files that are read, and bytes of each.
MAX_FILES, MAX_BYTES = 64, 8 << 20
#: Words, nodes and threads of a process that are kept: a job can write anything into its folder.
_MAX_NODES, _MAX_THREADS, _MAX_ROWS = 10_000, 200, 500
_NAME = re.compile(r"\d{1,6}-\d{1,10}\.jsonl")


class StackNode(NamedTuple):
    """A line in the tree of stacks.

    Attributes
    ----------
    parent
        Number of the node of the line that called it; 0 for the outermost one.
    """

    parent: int
    file: str
    line: int
    function: str


class Sample(NamedTuple):
    """What a thread did at a node during a window.

    Attributes
    ----------
    thread
        Number of the thread; 0 is the main one.
    node
        Number of the innermost line of the user's; 0 for none.
    word
        What it waited in: ``lock``, ``socket``...; empty if that is not known, or if it computed.
    wall, cpu
        Seconds.
    memory
        Growth of the process's memory, in bytes.
    gpu_s, gpu
        Seconds for which the GPUs were read, and their mean utilization in percent.
    """

    thread: int
    node: int
    word: str
    wall: float
    cpu: float
    memory: float = 0.0
    gpu_s: float = 0.0
    gpu: float = 0.0


class Window(NamedTuple):
    """Samples between two times (Unix seconds)."""

    start: float
    end: float
    samples: tuple[Sample, ...]


class ProcessLines:
    """What one process of a run has written.

    Attributes
    ----------
    rank, pid, started
        As it says itself; `started` in Unix seconds.
    name
        Among the processes of its rank; empty for the first one.
    main
        File of its main module.
    nodes, threads
        By their numbers.
    """

    def __init__(self, rank: int, pid: int, started: float, name: str, main: str) -> None:
        self.rank, self.pid, self.started, self.name, self.main = rank, pid, started, name, main
        self.nodes: dict[int, StackNode] = {}
        self.threads: dict[int, str] = {0: ""}
        self.windows: list[Window] = []
        self._files: dict[int, str] = {}

    def add(self, row: list[Any]) -> None:
        """Add a line of the file after the first one; raise an error for one that is damaged."""
        kind = row[0]
        if kind == "f":
            self._files[int(row[1])] = str(row[2])
        elif kind == "n" and len(self.nodes) < _MAX_NODES:
            number, parent = int(row[1]), int(row[2])
            if parent == 0 or parent in self.nodes:  # so there is no circle
                self.nodes.setdefault(number, StackNode(parent, self._files[int(row[3])], int(row[4]), str(row[5])))
        elif kind == "t" and len(self.threads) < _MAX_THREADS:
            self.threads[int(row[1])] = str(row[2])
        elif kind == "w":
            start, end = _finite(row[1]), _finite(row[2])
            samples = tuple(map(self._sample, row[3][:_MAX_ROWS]))
            if end >= start:
                self.windows.append(Window(start, end, samples))

    def _sample(self, row: list[Any]) -> Sample:
        node = int(row[1])
        wall, cpu, memory, *gpu = map(_finite, row[3:8])
        gpu_s, percent = (*gpu, 0.0, 0.0)[:2]
        node = node if node in self.nodes else 0
        return Sample(int(row[0]), node, str(row[2])[:40], wall / 1e3, cpu / 1e3, memory * 1024, gpu_s / 1e3, percent)


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(value)
    return number


#: What rows of a damaged file raise.
_DAMAGE = (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError)


def processes_of(data: bytes) -> list[ProcessLines]:
    """Return what a file says: of several processes where one has replaced itself by another program.

    A line that is damaged, or not whole yet, is left out.
    """
    found: list[ProcessLines] = []
    for line in data.splitlines():
        try:
            row = json.loads(line)
            if row[0] == "h":
                found.append(ProcessLines(int(row[3]), int(row[2]), _finite(row[4]), str(row[5])[:80], str(row[6])))
            elif found:
                found[-1].add(row)
        except _DAMAGE:
            continue
    return found


async def read_lines(backend: Backend, run_id: str) -> list[ProcessLines]:
    """Read the files of a run; nothing if its jobs are not sampled."""
    names = [file.path for file in await backend.files.list(run_id, LINES) if _NAME.fullmatch(file.path)]
    found: list[ProcessLines] = []
    for name in names[:MAX_FILES]:
        found += processes_of(await backend.files.read(run_id, f"{LINES}/{name}", MAX_BYTES))
    return sorted(found, key=lambda one: (one.rank, one.started, one.pid))
