"""How long each line of a run took: the samples of its processes, added up for a range of time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from jupyter_amltrain.inside.line_files import ProcessLines, Sample, StackNode, Window
from jupyter_amltrain.schema.job import JobSpec

#: What a line waits in, where no library does it, by its text.
_WAITS = (
    (re.compile(r"\bsleep\("), "sleep"),
    (re.compile(r"\bsynchronize\("), "synchronize"),
    (re.compile(r"\.(item|tolist|cpu|numpy)\("), "GPU result"),
    (re.compile(r"\.(to|cuda)\("), "copy to GPU"),
    (re.compile(r"\b(open|read|readline|readlines|write|load|save)\("), "file"),
    (re.compile(r"\b(acquire|join|wait)\("), "lock"),
)
#: Share of the processor below which a line waits.
WAITING = 0.5


class LineUse(NamedTuple):
    """A line of the user's, as a thread or several of the same name ran it.

    Attributes
    ----------
    process
        Name of the process; empty for the main one of a rank.
    thread
        Name of the thread; empty for the main one.
    file
        Name of the file; empty for the cell or script of the run.
    line
        Line of the file, or of the cell; 0 for time outside of the user's lines.
    text
        The line itself, if the run has a copy of its file.
    own, total
        Seconds in the line and in the libraries that it called; and with the user's lines that it called.
    share, total_share
        The same as parts of the time of the process.
    busy
        Part of `total` in which the thread computed; the rest it waited.
    waits
        Seconds of waiting, by word.
    gpu
        Mean utilization of the run's GPUs in percent while the line ran; ``None`` if no GPU was read.
    memory
        Growth of the host's memory in bytes while the line itself ran.
    """

    process: str
    thread: str
    file: str
    line: int
    function: str
    text: str
    own: float
    total: float
    share: float
    total_share: float
    busy: float
    waits: dict[str, float]
    gpu: float | None
    memory: float


class LineReport(NamedTuple):
    """The lines of a run.

    Attributes
    ----------
    lines
        Main threads first, then by their own time.
    seconds
        Sampled time of all main threads of the ranks.
    ranks
        Ranks that have samples.
    start, end
        First and last sample, in seconds since the start of the first process.
    """

    lines: tuple[LineUse, ...]
    seconds: float
    ranks: tuple[int, ...]
    start: float
    end: float


class _Total:
    """Sums of the samples of a thread at one node with one word."""

    __slots__ = ("cpu", "gpu", "gpu_s", "memory", "waited", "wall")

    def __init__(self) -> None:
        self.wall = self.cpu = self.memory = self.gpu_s = self.gpu = self.waited = 0.0

    def add(self, sample: Sample, part: float) -> None:
        self.wall += sample.wall * part
        self.cpu += sample.cpu * part
        self.memory += sample.memory * part
        self.gpu_s += sample.gpu_s * part
        self.gpu += sample.gpu_s * sample.gpu * part
        self.waited += max(0.0, sample.wall - sample.cpu) * part


class _Sums:
    """Seconds and further sums of one line."""

    def __init__(self) -> None:
        self.own = self.total = self.cpu = self.memory = self.gpu_s = self.gpu = 0.0
        self.waits: dict[str, float] = {}

    def add(self, total: _Total, word: str, *, is_own: bool) -> None:
        self.total += total.wall
        self.cpu += total.cpu
        self.gpu_s += total.gpu_s
        self.gpu += total.gpu
        if is_own:
            self.own += total.wall
            self.memory += total.memory
            self.waits[word] = self.waits.get(word, 0.0) + total.waited


class _Key(NamedTuple):
    process: str
    thread: str
    file: str
    line: int


class LineReader:
    """Names lines as the user knows them.

    Parameters
    ----------
    sources
        Lines of files by their path.
    """

    def __init__(self, spec: JobSpec, sources: Mapping[str, Sequence[str]] = {}) -> None:
        self.sources = sources
        self._spec = spec
        self._script = spec.script.splitlines()
        self._cell = spec.cell.split("\n") if spec.cell else []

    def is_script(self, path: str) -> bool:
        """Whether a file is the cell or script of the run."""
        name = self._spec.script_name
        return bool(name) and (path == name or path.endswith(f"/{name}"))

    def file(self, path: str) -> str:
        """Return the name of a file, empty for the script."""
        return "" if self.is_script(path) else source_path(self._spec, path) or path.rpartition("/")[2]

    def line(self, path: str, line: int) -> int:
        """Return a line as that of the cell."""
        return line - self._spec.line_offset if self.is_script(path) else line

    def is_added(self, path: str, line: int) -> bool:
        """Whether a line of the script is not in the cell: it reads the values of the notebook, or keeps some."""
        return bool(self._cell) and self.is_script(path) and not 2 <= line < len(self._cell) + 2

    def text(self, path: str, line: int) -> str:
        """Return the text of a line, empty if it is not known."""
        lines: Sequence[str] = self.sources.get(path, ())
        if self._script and self.is_script(path):
            # The script may have more on a line than its author wrote; its first line is ours, or the magic's.
            if 2 <= line < len(self._cell) + 2 and (text := self._cell[line - 2].strip()):
                return text[:200]
            lines = self._script
        return lines[line - 1].strip()[:200] if 0 < line <= len(lines) else ""


def source_path(spec: JobSpec, path: str) -> str:
    """Return the path of a file in the run's copy of its code; empty if it is outside of it."""
    if "/source/" in path:
        return path.rpartition("/source/")[2]
    for root in (spec.root, spec.notebook_dir, spec.project):
        if root and path.startswith(root.rstrip("/") + "/"):
            return path[len(root.rstrip("/")) + 1 :]
    return ""


def report_of(
    processes: Iterable[ProcessLines],
    reader: LineReader,
    *,
    start: float = 0.0,
    end: float | None = None,
    rank: int | None = None,
) -> LineReport:
    """Add up the samples of a run.

    Parameters
    ----------
    start, end
        Seconds since the start of the first process; `end` ``None`` for the last sample.
    rank
        One rank; ``None`` for all, whose processes and threads of the same name count together.
    """
    whole = list(processes)
    zero = start_of(whole)
    chosen = [one for one in whole if rank is None or one.rank == rank]
    sums: dict[_Key, _Sums] = {}
    texts: dict[_Key, tuple[str, str]] = {}
    times: dict[str, float] = {}
    first, last = float("inf"), 0.0
    for process in chosen:
        # A day has 40,000 samples of a few hundred kinds.
        totals: dict[tuple[int, int, str], _Total] = {}
        for window in process.windows:
            part = part_of_window(window, zero + start, None if end is None else zero + end)
            if part:
                times[process.name] = times.get(process.name, 0.0) + (window.end - window.start) * part
                first = min(first, max(start, window.start - zero))
                last = max(last, min(window.end - zero, window.end - zero if end is None else end))
                for sample in window.samples:
                    kind = sample.thread, sample.node, sample.word
                    (totals.get(kind) or totals.setdefault(kind, _Total())).add(sample, part)
        keys = {number: _key_of(node, process, reader, texts) for number, node in process.nodes.items()}
        for (thread, node, word), total in totals.items():
            _add(sums, process, keys, thread, node, word, total)
    lines = [_use_of(key, one, times.get(key.process, 0.0), texts) for key, one in sums.items()]
    lines.sort(key=lambda one: (one.process != "", one.process, one.thread != "", one.thread, -one.own, -one.total))
    ranks = tuple(sorted({one.rank for one in whole}))
    return LineReport(tuple(lines), times.get("", 0.0), ranks, 0.0 if first > last else first, last)


def _key_of(node: StackNode, process: ProcessLines, reader: LineReader, texts: dict[_Key, tuple[str, str]]) -> _Key:
    if reader.is_added(node.file, node.line):
        return _Key(process.name, "", "", 0)
    key = _Key(process.name, "", reader.file(node.file), reader.line(node.file, node.line))
    texts.setdefault(key, (node.function, reader.text(node.file, node.line)))
    return key


def start_of(processes: Iterable[ProcessLines]) -> float:
    """Return when the first process of a run began, in Unix seconds."""
    return min((one.started for one in processes), default=0.0)


def part_of_window(window: Window, start: float, end: float | None) -> float:
    """Return the part of a window that is in a range of time."""
    length = window.end - window.start
    inside = min(window.end, float("inf") if end is None else end) - max(window.start, start)
    return max(0.0, min(1.0, inside / length)) if length > 0 else float(inside >= 0)


def _add(
    sums: dict[_Key, _Sums],
    process: ProcessLines,
    keys: Mapping[int, _Key],
    number: int,
    node: int,
    word: str,
    total: _Total,
) -> None:
    """Add what a thread did at a node to its line, and to those that called it."""
    thread = process.threads.get(number, "other threads")
    if not node:
        sums.setdefault(_Key(process.name, thread, "", 0), _Sums()).add(total, word, is_own=True)
    seen: set[_Key] = set()
    is_own = True
    while node:
        key = keys[node]._replace(thread=thread)
        if key not in seen:
            seen.add(key)
            sums.setdefault(key, _Sums()).add(total, word, is_own=is_own)
        node, is_own = process.nodes[node].parent, False


def _use_of(key: _Key, sums: _Sums, seconds: float, texts: Mapping[_Key, tuple[str, str]]) -> LineUse:
    function, text = texts.get(key._replace(thread=""), ("", ""))
    waits = {word: time for word, time in sums.waits.items() if word and time > 0.005 * sums.own}
    unnamed = sums.waits.get("", 0.0)
    if unnamed > (1 - WAITING) * max(sums.own, 1e-9) and (word := wait_word(text)):
        waits[word] = waits.get(word, 0.0) + unnamed
    return LineUse(
        *key,
        function=function,
        text=text,
        own=sums.own,
        total=sums.total,
        share=sums.own / seconds if seconds else 0.0,
        total_share=sums.total / seconds if seconds else 0.0,
        busy=min(1.0, sums.cpu / sums.total) if sums.total else 0.0,
        waits=waits,
        gpu=sums.gpu / sums.gpu_s if sums.gpu_s > 0 else None,
        memory=sums.memory,
    )


def wait_word(text: str) -> str:
    """Return what a line waits in by its text; empty if that does not tell."""
    return next((word for pattern, word in _WAITS if pattern.search(text)), "")
