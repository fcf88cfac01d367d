"""Telemetry of a run's nodes, in memory of a size that does not grow with the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from jupyter_amltrain.agent.telemetry.telemetry_files import HeldFigures
from jupyter_amltrain.kernel.min_max_history import MinMaxHistory, known_mean_at
from jupyter_amltrain.kernel.streams import LineSplitter
from jupyter_amltrain.text import seconds_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float32 = NDArray[np.float32]
    Float64 = NDArray[np.float64]

#: Ticks in a node's ring buffer: one hour at one tick per second.
RING_TICKS = 3600

#: Maximum series and GPUs of one node, because a job can write anything into its files.
MAX_COLUMNS, MAX_GPUS = 20_000, 1024

#: Upper limit of tick times, in unix seconds (the year 5138).
MAX_TIME = 1e11

#: Larger integers do not fit in a float64.
_MAX_FLOAT = int(1e308)

#: Lists of names in a header.
_LISTS = ("columns", "gpu_columns", "units", "gpu_units", "gpu_figures", "gpu_figure_units")

#: Columns of a tick that are not series.
_HEAD = ("seq", "t")

MIB = 1024.0 * 1024.0

#: Notes of a node that are kept, characters of each, and how many a text shows.
MAX_NOTES, MAX_NOTE_CHARS, SHOWN_NOTES = 200, 200, 20

Listener = Callable[["NodeTelemetry", int], None]


def flat_names(header: dict[str, Any]) -> list[str]:
    """Names of a tick's series in their order: host columns, then ``gpu<index>.<column>``, then figures.

    Figures (``gpu_figures`` of the header) are written rarely and apply to the ticks after them;
    see :mod:`jupyter_amltrain.agent.telemetry.telemetry_files`.
    """
    host = [str(name) for name in header.get("columns", ()) if name not in _HEAD]
    per_gpu = [str(name) for name in header.get("gpu_columns", ())]
    figures = [str(name) for name in header.get("gpu_figures", ())]
    indices = [gpu.get("index", i) for i, gpu in enumerate(header.get("gpus", ()))]
    return host + [f"gpu{index}.{name}" for names in (per_gpu, figures) for index in indices for name in names]


def held_figures(header: dict[str, Any]) -> HeldFigures:
    """Return the holder of the figures for reading ticks of a file with this header."""
    return HeldFigures(len(header.get("gpu_figures", ())) * len(header.get("gpus", ())))


class NodeTelemetry:
    """Samples of one node.

    Attributes
    ----------
    header
        First line of the file: see ``agent/telemetry/sampler.py``.
    columns
        Names of the series.
    t, ring
        float64 ``(n,)`` unix seconds and float32 ``(columns, n)`` of the newest ticks; slot of
        tick `i` (counted from the first one kept here) is ``i % n``. NaN means *unknown*.
    ticks
        Ticks taken so far, and so the number of the next one here.
    seq
        Number of the last tick in the file; -1 before the first.
    slow
        Values of each GPU that change rarely: ``mem_clock``, ``throttle``, ``ecc``, ``mine``, ``others``...
    processes
        ``[gpu, pid, owner, MiB or None, command, user]`` each; older files have no user.
    shares
        Percent of the SMs that each of `processes` uses; may be shorter.
    notes
        What happened to the GPUs and the driver: unix seconds (``None`` in files of earlier versions) and sentence.
    changes
        Grows before and after every change of ring and history, so it is odd during a change: readers on
        other threads repeat until it was even and unchanged (``kernel/samples.py``, snapshots).
    """

    def __init__(self, node: int) -> None:
        self.node = node
        self.header: dict[str, Any] = {}
        self.columns: list[str] = []
        self.index: dict[str, int] = {}
        self.gpus: list[dict[str, Any]] = []
        self.slow: list[dict[str, Any]] = []
        self.processes: list[list[Any]] = []
        self.shares: list[float | None] = []
        self.notes: list[tuple[float | None, str]] = []
        self.first_t: float | None = None  #: unix seconds of the first tick of all
        self.ticks = 0
        self.changes = 0
        self.seq = -1
        self.offset = 0  #: bytes of the file read so far
        self.caught_up = False
        self._lines = LineSplitter()
        self._figures = HeldFigures(0)
        self._skip_to = -1

    @property
    def note(self) -> str:
        """Reason for missing GPUs, then the newest notes with their time after the first tick."""
        hidden = len(self.notes) - SHOWN_NOTES
        parts = [str(self.header.get("gpu_note") or "")]
        parts += [f"{hidden} earlier notes"] if hidden > 0 else []
        for t, text in self.notes[-SHOWN_NOTES:]:
            after = None if t is None or self.first_t is None else t - self.first_t
            parts.append(f"after {seconds_text(after)}: {text}" if after is not None and after >= 0 else text)
        return "; ".join(word for word in parts if word)

    def add_note(self, t: Any, text: Any) -> None:
        """Add a note with its time (unix seconds, if known), unless it exists."""
        note = (known(t), str(text)[:MAX_NOTE_CHARS])
        if note not in self.notes:
            self.notes.append(note)
            self.notes.sort(key=lambda one: one[0] or 0.0)
            del self.notes[:-MAX_NOTES]

    @property
    def last_t(self) -> float | None:
        """Unix seconds of the newest tick."""
        return float(self.t[(self.ticks - 1) % len(self.t)]) if self.ticks else None

    def is_lost(self, i: int) -> bool:
        """Whether the driver has lost the GPU at position `i`."""
        return bool(self.slow[i].get("lost"))

    @property
    def ticks_in_ring(self) -> int:
        """Ticks in the ring."""
        return min(self.ticks, len(self.t)) if self.columns else 0

    def feed(self, data: bytes) -> int:
        """Parse bytes of the file; return the number of new ticks."""
        rows: list[list[Any]] = []
        new_ticks = 0
        for line in self._lines.feed(data):
            # A job can write into the file, so invalid lines are skipped.
            try:
                value = msgspec.json.decode(line)
                if isinstance(value, list):
                    width = len(self.columns) - self._figures.count + 2
                    if len(value) == width > 2 and value[0] > self.seq:
                        held = self._figures.at(float(value[1]))
                        self.seq = int(value[0])
                        rows.append(value + held)
                elif isinstance(value, dict) and "columns" in value:
                    new_ticks += self._take(rows)
                    rows = []
                    self._begin(value)
                elif isinstance(value, dict):
                    self._change(value)
            except (msgspec.MsgspecError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
                continue
        return new_ticks + self._take(rows)

    def restart(self) -> None:
        """Continue with a new file from its beginning; the ticks read so far are kept."""
        self._lines.restart()
        self.offset, self.seq = 0, -1

    def _begin(self, header: dict[str, Any]) -> None:
        import numpy as np

        header = cleaned_header(header)
        names = flat_names(header)
        if len(names) > MAX_COLUMNS:
            return
        self.header = header
        self._figures = held_figures(header)
        self.gpus = [dict(gpu) for gpu in header["gpus"]]
        self.slow = [{"power_limit": gpu.get("power_limit")} for gpu in self.gpus]
        if names == self.columns:  # a restarted sampler repeats its header
            return
        with self._changing():
            self.columns = names
            self.index = {name: i for i, name in enumerate(names)}
            self.t: Float64 = np.zeros(256)
            self.ring: Float32 = _by_time((len(names), 256))
            self.history = MinMaxHistory(len(names))
            self.ticks = 0

    def _change(self, value: dict[str, Any]) -> None:
        for i, changes in value.get("gpu") or ():
            if 0 <= i < len(self.slow):
                self.slow[i].update((name, known(of)) for name, of in changes.items() if isinstance(name, str))
        if "processes" in value:
            self.processes = [
                [int(index), int(pid), str(owner), known(memory), *map(str, name[:2])]
                for index, pid, owner, memory, *name in value["processes"]
            ]
            self.shares = []
        if "sm" in value:
            self.shares = [known(share) for share in value["sm"]]
        if "figures" in value:
            self._figures.set_values(value["figures"])
        if "note" in value:
            self.add_note(value.get("t"), value["note"])

    def _take(self, rows: list[list[Any]]) -> int:
        if not rows:
            return 0
        import numpy as np

        table = ticks_table(rows)
        if not len(table):
            return 0
        with np.errstate(over="ignore"):  # values over the range of float32 become infinite
            t, values = table[:, 1], table[:, 2:].astype(np.float32)
        if self.first_t is None:
            self.first_t = float(t[0])
        with self._changing():
            self.history.add(t, values)
            self._grow(len(t))
            size = len(self.t)
            kept = min(len(t), size)
            slots = np.arange(self.ticks + len(t) - kept, self.ticks + len(t)) % size
            self.t[slots] = t[-kept:]
            self.ring[:, slots] = values[-kept:].T
            self.ticks += len(t)
        return len(t)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        self.changes += 1
        try:
            yield
        finally:
            self.changes += 1

    def _grow(self, more: int) -> None:
        import numpy as np

        size = len(self.t)
        while size < RING_TICKS and self.ticks + more > size:
            size *= 2
        size = min(size, RING_TICKS)
        if size == len(self.t):
            return
        # The ring has not wrapped yet, so slots keep their positions.
        t, ring = np.zeros(size), _by_time((len(self.columns), size))
        t[: len(self.t)], ring[:, : len(self.t)] = self.t, self.ring
        self.t, self.ring = t, ring

    def feed_minutes(self, data: bytes, keep: int = 60) -> int:
        """Use the minutes file in place of the ticks, except for its last `keep` minutes.

        Returns the byte offset at which to continue in the telemetry file.
        """
        import numpy as np

        offset, names, rows = 0, [], []
        for line in data.split(b"\n"):
            try:
                value = msgspec.json.decode(line)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                continue
            if isinstance(value, dict) and isinstance(value.get("columns"), list):
                names = [str(name) for name in value["columns"]]
            elif isinstance(value, list) and len(value) == 8:
                rows.append(value)
        if not self.columns or names != self.columns:
            return 0
        if rows and self.first_t is None:
            self.first_t = known(rows[0][1])
        with self._changing():
            for row in rows[: max(0, len(rows) - keep)]:
                seq, t, _, ticks, end, *stats = row
                try:
                    low, mean, high = (np.array(stat, dtype=np.float32) for stat in stats)
                    if not low.shape == mean.shape == high.shape == (len(self.columns),):
                        continue
                    self.history.add_block(float(t), int(ticks), low, mean, high)
                    self.seq, offset = int(seq), max(0, int(end))
                except (TypeError, ValueError, OverflowError):
                    continue
        if offset:
            self._lines.restart()
        return offset

    def since(self, tick: int) -> tuple[Float64, Float32]:
        """Return the ticks from number `tick` on that the ring still has: ``(k,)`` and ``(columns, k)``."""
        import numpy as np

        first = max(tick, self.ticks - self.ticks_in_ring)
        slots = np.arange(first, max(first, self.ticks)) % len(self.t)
        return self.t[slots], self.ring[:, slots]


class RunTelemetry:
    """Telemetry of all nodes of a run. Listeners are called on the loop."""

    def __init__(self) -> None:
        self._nodes: dict[int, NodeTelemetry] = {}
        self._listeners: list[Listener] = []
        self.summaries: dict[int, dict[str, Any]] = {}
        self.last_frame_at = 0.0  #: monotonic seconds of the last frame for samples alone

    def node(self, number: int) -> NodeTelemetry:
        """Return the samples of one node, created at first use."""
        node = self._nodes.get(number)
        if node is None:
            node = self._nodes[number] = NodeTelemetry(number)
        return node

    def nodes(self) -> Iterator[NodeTelemetry]:
        """Iterate over nodes with data, by number."""
        return (self._nodes[number] for number in sorted(self._nodes) if self._nodes[number].columns)

    def feed(self, number: int, data: bytes) -> bool:
        """Parse bytes of a node's file; return whether there were new ticks."""
        node = self.node(number)
        first = node.ticks
        new_ticks = node.feed(data)
        if new_ticks:
            for listener in tuple(self._listeners):
                listener(node, min(first, node.ticks))
        return new_ticks > 0

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener(node, first new tick)` after every feed with new ticks; returns the unsubscribe function."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    @property
    def has_listeners(self) -> bool:
        """Whether there are listeners."""
        return bool(self._listeners)

    @property
    def last_t(self) -> float | None:
        """Unix seconds of the newest tick of any node."""
        return max((node.last_t for node in self.nodes() if node.last_t is not None), default=None)


def _by_time(shape: tuple[int, int]) -> Float32:
    """Return a NaN table with contiguous columns, so that a tick touches few memory pages."""
    import numpy as np

    table: Float32 = np.full(shape[::-1], np.nan, np.float32).T
    return table


def cleaned_header(header: dict[str, Any]) -> dict[str, Any]:
    """A header of a telemetry file with the types that its readers expect."""
    gpus = header.get("gpus")
    kept = [gpu for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    numbers = ("memory_total", "power_limit")
    return {
        **header,
        **{name: [str(text) for text in header[name]] for name in _LISTS if isinstance(header.get(name), list)},
        **{name: [] for name in _LISTS if not isinstance(header.get(name), list)},
        **{name: known(header.get(name)) for name in ("memory_total", "cpus", "period")},
        "gpus": [
            {**gpu, "index": int(known(gpu.get("index", i)) or 0), **{name: known(gpu.get(name)) for name in numbers}}
            for i, gpu in enumerate(kept[:MAX_GPUS])
        ],
    }


def ticks_table(rows: list[list[Any]]) -> Float64:
    """Ticks as float64 ``(n, columns)``, ``None`` as NaN; skips ticks without a time or with non-numeric values."""
    import numpy as np

    try:
        table = np.array(rows, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        plain = [row for row in rows if all(x is None or _is_number(x) for x in row)]
        table = np.array(plain, dtype=np.float64).reshape(-1, len(rows[0]))
    good = np.abs(table[:, 1]) < MAX_TIME  # False of NaN
    return table if good.all() else table[good]


def _is_number(value: Any) -> bool:
    """Whether a value is a number that fits in a float64."""
    return isinstance(value, int | float) and not (isinstance(value, int) and abs(value) > _MAX_FLOAT)


def known(value: Any) -> float | None:
    """Return a finite float, or ``None`` for any other value."""
    if value is None or isinstance(value, str | bytes):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def grid(nodes: Sequence[NodeTelemetry], points: int) -> Float64:
    """Return the start times (unix seconds) of at most `points` intervals, common to all nodes."""
    import numpy as np

    ticked = [node for node in nodes if node.columns and node.history.count]
    if not ticked:
        return np.zeros(0)
    t = _times(max(ticked, key=lambda node: node.history.count))
    if len(t) > points:
        t = t[np.linspace(0, len(t) - 1, points + 1)[:-1].astype(int)]
    first = min(float(_times(node)[0]) for node in ticked)
    begins: Float64 = t.copy()
    begins[0] = min(begins[0], first)
    return begins


def _times(node: NodeTelemetry) -> Float64:
    """Return the start of each bucket of a node's history, as increasing unix seconds.

    If the machine's clock was set back, earlier times are shifted to match the newest clock.
    """
    import numpy as np

    t = node.history.t[: node.history.count]
    steps = np.diff(t)
    if not (steps < 0).any():
        return t
    usual = np.median(steps[steps > 0]) if (steps > 0).any() else 0.0
    steps = np.where(steps < 0, usual, steps)
    moved: Float64 = t[-1] - np.append(np.cumsum(steps[::-1])[::-1], 0)
    return moved


def on_grid(node: NodeTelemetry, begins: Float64, columns: Sequence[int]) -> Float32:
    """Return minimum, mean and maximum of columns per interval: ``(3, columns, intervals)``; NaN for gaps."""
    import numpy as np

    out = np.full((3, len(columns), len(begins)), np.nan, np.float32)
    count = node.history.count
    if not count or not len(begins) or not len(columns):
        return out
    where = np.clip(np.searchsorted(begins, _times(node), "right") - 1, 0, None)
    used, starts = np.unique(where, return_index=True)
    values = node.history.values[:, list(columns), :count]
    out[0][:, used] = np.fmin.reduceat(values[0], starts, axis=1)
    out[2][:, used] = np.fmax.reduceat(values[2], starts, axis=1)
    out[1][:, used] = known_mean_at(values[1], starts)
    return out
