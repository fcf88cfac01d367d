"""Reads the telemetry files of a run folder into a bounded table of means for each node."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.agent.protocol import open_regular
from jupyter_amltrain.agent.telemetry.gpu_columns import SLOWS
from jupyter_amltrain.agent.telemetry.reduce import Reducer, mean
from jupyter_amltrain.agent.telemetry.telemetry_files import HeldFigures

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MIB = 1024.0 * 1024.0

_UNITS = {column.name: column.unit for column in SLOWS}

#: Maximum number of column names: a job can write anything into its files.
MAX_NAMES = 200


class SlowColumns:
    """Changes between the ticks of one node.

    Parameters
    ----------
    indices
        Number of each GPU, in the order of the header.
    """

    def __init__(self, indices: Sequence[int]) -> None:
        self.indices = list(indices)
        self._changes: dict[str, list[tuple[int, Any]]] = {}
        self._texts: dict[str, dict[int, list[str]]] = {}

    def add(self, seq: int, value: Mapping[str, Any]) -> None:
        """Add an object that precedes tick `seq`; invalid objects are ignored."""
        try:
            for i, changes in value.get("gpu") or ():
                if not 0 <= i < len(self.indices):
                    continue
                for name, of in changes.items():
                    self._change(f"gpu{self.indices[i]}_{name}", seq, of)
            if "processes" in value:
                self._processes(seq, value["processes"])
            if "note" in value:
                self._texts.setdefault("note", {}).setdefault(seq, []).append(str(value["note"]))
        except (TypeError, ValueError, IndexError, AttributeError):
            return

    def _change(self, name: str, seq: int, value: Any) -> None:
        if name in self._changes or len(self._changes) < MAX_NAMES:
            self._changes.setdefault(name, []).append((seq, value))

    def _processes(self, seq: int, rows: Sequence[Sequence[Any]]) -> None:
        counts = dict.fromkeys(self.indices, 0)
        words = []
        for index, pid, owner, memory, *name in rows:
            counts[index] = counts.get(index, 0) + 1
            size = "n/a" if memory is None else f"{memory} MiB"
            words.append(" ".join(str(word) for word in (f"gpu{index}:", pid, *name[:1], owner, size) if word != ""))
        for index, count in counts.items():
            self._change(f"gpu{index}_processes", seq, count)
        self._texts.setdefault("processes", {})[seq] = ["; ".join(words) or "none"]

    def columns(self, seq: NDArray[np.int64]) -> dict[str, Any]:
        """Return the values in force at each tick by column, and the texts at the ticks where they appeared.

        Parameters
        ----------
        seq
            Numbers of the ticks, ascending.
        """
        import numpy as np

        found: dict[str, Any] = {}
        for name, changes in self._changes.items():
            values = [value for _, value in changes]
            plain = all(value is None or isinstance(value, (bool, int, float)) for value in values)
            if plain:
                scale = MIB if _UNITS.get(name.partition("_")[2]) == "MiB" else 1.0
                table: Any = np.array([np.nan, *(scale * _number(value) for value in values)])
            else:
                table = np.array(
                    [None, *(v if v is None or isinstance(v, str) else json.dumps(v) for v in values)], object
                )
            at = np.searchsorted(np.array([first for first, _ in changes]), seq, side="right")
            found[name] = table[at]
        for name in sorted(self._texts, reverse=True):
            column: Any = np.full(len(seq), None, object)
            for first, texts in self._texts[name].items():
                k = int(np.searchsorted(seq, first))
                if k < len(seq):
                    before = [column[k]] if column[k] else []
                    column[k] = "; ".join([*before, *texts])
            found[name] = column
        return found


def _number(value: Any) -> float:
    """Return a float; NaN for ``None`` and for integers that are too large."""
    try:
        return math.nan if value is None else float(value)
    except OverflowError:
        return math.nan


#: Runs with fewer closed minutes are read from the raw file.
SHORT = 5

#: Points of a series from the raw file; of a series from minutes; of all series of a run.
RAW_POINTS, MINUTE_POINTS, ALL_POINTS = 200, 2000, 200_000

#: Approximate number of a GPU's series that are recorded when they change.
SLOW_NAMES = 8

Values = Sequence[float | None]


class NodeTable:
    """Means over intervals; all intervals but the last have the same number of rows.

    Parameters
    ----------
    node
        Number of the node.
    header
        First line of the node's raw file.
    names
        Columns: host columns, then ``gpu<index>.<column>``.
    limit
        Maximum number of rows; when it is reached, adjacent rows are joined, so that later rows
        do not change the intervals of earlier ones.

    Attributes
    ----------
    width
        Added rows per row of the table: a power of two.
    times
        Unix seconds of the end of each interval.
    seqs
        Number of the last tick of each interval.
    slow
        Values that are recorded when they change, at the end of each interval, by column name.
    """

    def __init__(self, node: int, header: dict[str, Any], names: Sequence[str], limit: int) -> None:
        self.node, self.header, self.names = node, header, list(names)
        self.limit = max(2, limit // 2 * 2)
        self.width = 1
        self.times: list[float] = []
        self.seqs: list[int] = []
        self.slow: dict[str, Values] = {}
        self._counts: list[int] = []
        self._rows: list[list[Reducer]] = []

    def add(self, t: float, values: Values, ticks: int = 1, seq: int = -1) -> None:
        """Add a row that ends at `t` with tick `seq` and represents `ticks` samples."""
        if not self._counts or self._counts[-1] == self.width:
            if len(self._counts) == self.limit:
                self._join()
            self.times.append(t)
            self.seqs.append(seq)
            self._counts.append(0)
            self._rows.append([Reducer() for _ in self.names])
        self.times[-1], self.seqs[-1] = t, seq
        self._counts[-1] += 1
        for cell, value in zip(self._rows[-1], values, strict=False):
            cell.add(value, ticks)

    def _join(self) -> None:
        pairs = range(0, self.limit, 2)
        self.times = [self.times[i + 1] for i in pairs]
        self.seqs = [self.seqs[i + 1] for i in pairs]
        self._counts = [self._counts[i] + self._counts[i + 1] for i in pairs]
        self._rows = [[a.merge(b) for a, b in zip(self._rows[i], self._rows[i + 1], strict=True)] for i in pairs]
        self.width *= 2

    def whole(self) -> int:
        """Return the number of rows that later samples will not change."""
        return sum(count == self.width for count in self._counts)

    def column(self, name: str) -> Values:
        """Return the means of a column, ``None`` where unknown; all ``None`` for an unknown column."""
        if name not in self.names:
            return self.slow.get(name) or [None] * len(self.times)
        i = self.names.index(name)
        return [row[i].mean() for row in self._rows]


def tables(folder: Path, ended: bool) -> tuple[str, list[NodeTable]]:
    """Read the telemetry of a run.

    Parameters
    ----------
    folder
        The run folder.
    ended
        Whether its samplers have ended: then ticks after the last minute count too.

    Returns
    -------
    tuple
        ``"minutes"`` or ``"raw"``, and the table of each node by its number.
    """
    paths = nodes(folder)
    headers = {node: _header(path) for node, path in paths.items()}
    closed = {node: _minutes(path.with_name(f"minutes-{node}.jsonl")) for node, path in paths.items()}
    series = sum(len(_names(header)) + SLOW_NAMES * len(header.get("gpus") or ()) for header in headers.values())
    max_points = ALL_POINTS // max(series, 1)
    result = []
    kind = "minutes" if any(len(rows) >= SHORT for _, rows in closed.values()) else "raw"
    for node, path in paths.items():
        header, (names, rows) = headers[node], closed[node]
        if kind == "minutes" and rows:
            table = NodeTable(node, header, names, min(MINUTE_POINTS, max_points))
            for seq, _, t_last, ticks, _, _, means, _ in rows:
                table.add(t_last, means, ticks, seq)
            if ended:
                _rest(path, header, int(rows[-1][4]), table)
        else:
            table = NodeTable(node, header, _names(header), min(RAW_POINTS, max_points))
            for seq, t, values in _ticks(path, header):
                table.add(t, values, seq=seq)
        if table.times:
            _add_slow(path, table)
            result.append(table)
    return kind, result


def nodes(folder: Path) -> dict[int, Path]:
    """Return the raw files by node number."""
    found = {}
    for path in (folder / "telemetry").glob("node-*.jsonl"):
        match = re.fullmatch(r"node-(\d+)\.jsonl", path.name)
        if match:
            found[int(match[1])] = path
    return dict(sorted(found.items()))


def _rest(path: Path, header: dict[str, Any], offset: int, table: NodeTable) -> None:
    """Add the ticks after the last closed minute as one more row."""
    ticks = list(_ticks(path, header, offset))
    if ticks:
        columns = zip(_names(header), itertools.zip_longest(*(values for _, _, values in ticks)), strict=False)
        means = {name: mean(column) for name, column in columns}
        seq, t, _ = ticks[-1]
        table.add(t, [means.get(name) for name in table.names], len(ticks), seq)


def _add_slow(path: Path, table: NodeTable) -> None:
    """Add the values that are recorded between the ticks, a small part of the file."""
    import numpy as np

    gpus = table.header.get("gpus") or ()
    if not gpus:
        return
    slow = SlowColumns([int(gpu["index"]) for gpu in gpus])
    for value in _lines(path, only=b"{"):
        if isinstance(value, dict) and isinstance(value.get("seq"), int):
            slow.add(value["seq"], value)
    for name, column in slow.columns(np.array(table.seqs)).items():
        if column.dtype != object:
            gpu, _, rest = name.partition("_")
            table.slow[f"{gpu}.{rest}"] = [None if x != x else x for x in column.tolist()]


def _header(path: Path) -> dict[str, Any]:
    for value in _lines(path):
        return value if isinstance(value, dict) and isinstance(value.get("columns"), list) else {}
    return {}


def _names(header: dict[str, Any]) -> list[str]:
    gpus = [gpu["index"] for gpu in header.get("gpus") or ()]
    host = [str(name) for name in header.get("columns") or ()][2:]
    parts = (header.get("gpu_columns") or (), header.get("gpu_figures") or ())
    return host + [f"gpu{index}.{name}" for names in parts for index in gpus for name in names]


def _ticks(path: Path, header: dict[str, Any], offset: int = 0) -> Iterator[tuple[int, float, Values]]:
    """Yield number, unix seconds and values of each tick."""
    min_length = len(header.get("columns") or ()) or 3
    held = HeldFigures(len(header.get("gpu_figures") or ()) * len(header.get("gpus") or ()))
    for row in _lines(path, offset):
        if isinstance(row, list) and len(row) >= min_length and isinstance(row[1], (int, float)):
            yield row[0] if isinstance(row[0], int) else -1, row[1], [*row[2:], *held.at(row[1])]
        elif isinstance(row, dict) and "figures" in row:
            held.set_values(row["figures"])


def _minutes(path: Path) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows of the closed minutes."""
    names: list[str] = []
    rows = []
    for value in _lines(path):
        if isinstance(value, dict):
            names = [str(name) for name in value.get("columns") or ()]
        elif isinstance(value, list) and len(value) == 8:
            rows.append(value)
    return names, rows


def _lines(path: Path, offset: int = 0, only: bytes = b"") -> Iterator[Any]:
    """Yield whole lines of a file from byte `offset` that begin with `only`; invalid JSON is skipped."""
    import msgspec

    decode = msgspec.json.Decoder().decode
    try:
        with os.fdopen(open_regular(str(path)), "rb") as file:
            file.seek(offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                if not line.startswith(only):
                    continue
                try:
                    yield decode(line)
                except msgspec.DecodeError:
                    continue
    except FileNotFoundError:
        return
