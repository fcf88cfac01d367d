"""Telemetry of a run as a pandas DataFrame, read from the run's files; exported as CSV or Parquet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.agent.telemetry.gpu_columns import BY_NAME, SLOWS
from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.errors import CommandError, MissingDependency
from jupyter_amltrain.kernel.streams import decode_line
from jupyter_amltrain.kernel.telemetry import MIB, cleaned_header, flat_names, held_figures, ticks_table
from jupyter_amltrain.tracking.telemetry_table import SlowColumns

if TYPE_CHECKING:
    import pandas

#: Suffixes of files that a run can be exported to.
FORMATS = (".csv", ".parquet", ".png")


async def read_whole(backend: Backend, run_id: str, nodes: int) -> dict[int, bytes]:
    """Read the telemetry files of all nodes, by node number."""
    files = {}
    for number in range(nodes):
        parts, offset = [], 0
        stream = "telemetry" if number == 0 else f"telemetry/{number}"
        while (chunk := await backend.read(run_id, stream, offset)).data:
            parts.append(chunk.data)
            offset = chunk.offset
        files[number] = b"".join(parts)
    return files


def frame_of(files: Mapping[int, bytes]) -> pandas.DataFrame:
    """Return one row per tick and node, sorted by time.

    Columns: ``node``; ``seq`` (number of the tick on its node); ``time`` (UTC, milliseconds); host
    columns; for each GPU the columns in the file's header: ``gpu<i>_util``, ``gpu<i>_peak`` (percent),
    ``gpu<i>_memory`` (bytes), ``gpu<i>_power`` (W), ``gpu<i>_temperature`` (C), ``gpu<i>_sm_clock``
    (MHz)...; then values recorded on change, repeated until the next change: ``gpu<i>_mem_clock``
    (MHz), ``gpu<i>_throttle`` (bits of NVML's clock event reasons), ``gpu<i>_ecc`` (uncorrected
    errors), ``gpu<i>_power_limit`` (W), ``gpu<i>_mine``, ``gpu<i>_others`` (bytes of the run's own and of
    other processes), ``gpu<i>_processes`` (number listed)...; ``processes`` and ``note``: text in
    the rows where the list changed or an event occurred. NaN marks values that the machine does not report.
    All units are in ``frame.attrs["units"]``; ``frame.attrs["gpus"]`` lists the GPUs of each node.
    """
    import pandas

    tables, units, gpus = [], dict[str, str](), dict[int, Any]()
    for number, data in sorted(files.items()):
        table, header = _table(data)
        if table is None:
            continue
        table.insert(0, "node", number)
        tables.append(table)
        units.update(_units(header, table.columns))
        gpus[number] = header.get("gpus", [])
    if not tables:
        return pandas.DataFrame(columns=["node", "seq", "time"])
    frame = pandas.concat(tables, ignore_index=True)
    if len(tables) > 1:
        frame = frame.sort_values(["time", "node"], ignore_index=True)
    frame.attrs.update(units=units, gpus=gpus)
    return frame


class _Segment:
    """Consecutive ticks with the same columns, and the slow values recorded between them."""

    def __init__(self, header: dict[str, Any]) -> None:
        self.header, self.names = header, flat_names(header)
        self.rows: list[list[Any]] = []
        self.held = held_figures(header)
        self.slow = SlowColumns([int(gpu["index"]) for gpu in header.get("gpus", ())])

    def frame(self) -> pandas.DataFrame:
        import numpy as np
        import pandas

        table = ticks_table(self.rows)
        for k, name in enumerate(self.names):
            if name.startswith("gpu") and self._unit(name) == "MiB":
                table[:, k + 2] *= MIB
        seq = table[:, 0].astype(np.int64)
        parts: dict[str, Any] = {"seq": seq}
        parts["time"] = pandas.to_datetime(np.rint(table[:, 1] * 1000).astype(np.int64), unit="ms", utc=True)
        parts.update((name.replace(".", "_"), table[:, k + 2]) for k, name in enumerate(self.names))
        # A slow value of one file can be a column of every tick in another.
        parts.update((name, column) for name, column in self.slow.columns(seq).items() if name not in parts)
        return pandas.DataFrame(parts)

    def _unit(self, name: str) -> str:
        units = {"memory": BY_NAME["memory"].unit}  # the header of a job may omit the unit
        units.update(zip(self.header.get("gpu_columns", ()), self.header.get("gpu_units", ()), strict=False))
        return units.get(name.partition(".")[2], "")


def _table(data: bytes) -> tuple[pandas.DataFrame | None, dict[str, Any]]:
    """Parse one telemetry file: its table (``None`` without ticks) and its last header."""
    import pandas

    segment = _Segment({})
    segments: list[_Segment] = []
    last = -1
    for line in data.split(b"\n"):
        if not line.startswith((b"[", b"{")):
            continue
        value = decode_line(line)
        if isinstance(value, list):
            is_complete = len(value) == len(segment.names) - segment.held.count + 2 > 2
            if is_complete and isinstance(value[0], int) and isinstance(value[1], int | float) and value[0] > last:
                segment.rows.append(value + segment.held.at(value[1]))
                last = value[0]
        elif isinstance(value, dict) and "columns" in value:
            value = cleaned_header(value)
            if segment.rows and segment.names != flat_names(value):
                segments.append(segment)
                segment = _Segment(value)
            elif not segment.rows:
                segment = _Segment(value)
            segment.header, segment.held = value, held_figures(value)
        elif isinstance(value, dict) and "figures" in value:
            segment.held.set_values(value["figures"])
        elif isinstance(value, dict):
            segment.slow.add(last + 1, value)
    segments += [segment] if segment.rows else []
    if not segments:
        return None, segment.header
    frames = [segment.frame() for segment in segments]
    return (frames[0] if len(frames) == 1 else pandas.concat(frames, ignore_index=True)), segment.header


def _units(header: Mapping[str, Any], columns: Iterable[str]) -> dict[str, str]:
    units = dict(zip(header.get("columns", ()), header.get("units", ()), strict=False))
    units.pop("t", None)
    for gpu in header.get("gpus", ()):
        name = f"gpu{gpu.get('index')}"
        figures = zip(header.get("gpu_figures", ()), header.get("gpu_figure_units", ()), strict=False)
        known = zip(header.get("gpu_columns", ()), header.get("gpu_units", ()), strict=False)
        for column, unit in (*known, *figures):
            units[f"{name}_{column}"] = "bytes" if unit == "MiB" else unit
        for slow in SLOWS:
            if f"{name}_{slow.name}" in columns:
                units[f"{name}_{slow.name}"] = "bytes" if slow.unit == "MiB" else slow.unit
    return units


def check_format(path: Path) -> None:
    """Raise an error if a run cannot be exported to `path`."""
    if path.suffix.lower() not in FORMATS:
        raise CommandError(
            f"Unknown file type {path.suffix!r} of {path.name!r}. Use .csv, .parquet or .png.",
            hint="Example: run.export('run.csv')",
        )
    if not path.absolute().parent.is_dir():
        raise CommandError(
            f"Cannot export to {path}: the folder {path.absolute().parent} does not exist.",
            hint="Create the folder first.",
        )


def write(frame: pandas.DataFrame, path: Path) -> None:
    """Write a frame as CSV or Parquet, by the file's suffix."""
    if path.suffix.lower() == ".csv":
        frame = frame.assign(time=_iso_times(frame)) if len(frame) else frame
        frame.to_csv(path, index=False)
        return
    try:
        frame.to_parquet(path, index=False)
    except ImportError as error:
        raise MissingDependency(
            "Cannot write Parquet: pyarrow is not installed.", hint="Install it: %pip install pyarrow"
        ) from error


def _iso_times(frame: pandas.DataFrame) -> Any:
    """Format times as ISO 8601 text with milliseconds, all of one length."""
    import numpy as np

    times = frame["time"].dt.tz_localize(None).to_numpy().astype("datetime64[ms]")
    return np.char.add(np.datetime_as_string(times, unit="ms"), "+00:00")
