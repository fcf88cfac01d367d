"""Every tick of a run as a table, read from its files; written as CSV, Parquet or a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.errors import CommandError, MissingDependency
from jupyter_amltrain.runs.lines import decode_line
from jupyter_amltrain.runs.telemetry import MIB, cleaned_header, flat_names, held_figures, ticks_table

if TYPE_CHECKING:
    import pandas

#: What :func:`write` can write, by the file's ending.
FORMATS = (".csv", ".parquet", ".png")


async def read_whole(backend: Backend, run_id: str, nodes: int) -> dict[int, bytes]:
    """The files of ticks of all nodes, by node number."""
    found = {}
    for number in range(nodes):
        parts, offset = [], 0
        stream = "telemetry" if number == 0 else f"telemetry/{number}"
        while (chunk := await backend.read(run_id, stream, offset)).data:
            parts.append(chunk.data)
            offset = chunk.offset
        found[number] = b"".join(parts)
    return found


def frame_of(files: Mapping[int, bytes]) -> pandas.DataFrame:
    """One row a tick and node, sorted by time.

    Columns: ``node``; ``seq`` (number of the tick on its node); ``time`` (UTC); host columns
    (their unit is in ``frame.attrs["units"]``); ``gpu<i>_util``, ``gpu<i>_peak`` (percent),
    ``gpu<i>_memory`` (bytes), ``gpu<i>_power`` (W), ``gpu<i>_temperature`` (C),
    ``gpu<i>_sm_clock`` (MHz). NaN is what the machine cannot tell. ``frame.attrs["gpus"]`` lists
    the GPUs of each node.
    """
    import pandas

    tables, units, gpus = [], dict[str, str](), dict[int, Any]()
    for number, data in sorted(files.items()):
        table, header = _table(data)
        if table is None:
            continue
        table.insert(0, "node", number)
        tables.append(table)
        units.update(_units(header))
        gpus[number] = header.get("gpus", [])
    if not tables:
        return pandas.DataFrame(columns=["node", "seq", "time"])
    frame = pandas.concat(tables, ignore_index=True)
    if len(tables) > 1:
        frame = frame.sort_values(["time", "node"], ignore_index=True)
    frame.attrs.update(units=units, gpus=gpus)
    return frame


def _table(data: bytes) -> tuple[pandas.DataFrame | None, dict[str, Any]]:
    import pandas

    header: dict[str, Any] = {}
    names: list[str] = []
    rows: list[list[Any]] = []
    frames: list[pandas.DataFrame] = []
    last = -1
    held = held_figures(header)
    for line in data.split(b"\n"):
        if not line.startswith((b"[", b"{")):
            continue
        value = decode_line(line)
        if isinstance(value, list):
            whole = len(value) == len(names) - held.count + 2 > 2
            if whole and isinstance(value[0], int) and isinstance(value[1], int | float) and value[0] > last:
                rows.append(value + held.at(value[1]))
                last = value[0]
        elif isinstance(value, dict) and "columns" in value:
            value = cleaned_header(value)
            if rows and names != flat_names(value):
                frames.append(_stretch(rows, names))
                rows = []
            header, names, held = value, flat_names(value), held_figures(value)
        elif isinstance(value, dict) and "figures" in value:
            held.take(value["figures"])
    if rows:
        frames.append(_stretch(rows, names))
    if not frames:
        return None, header
    return (frames[0] if len(frames) == 1 else pandas.concat(frames, ignore_index=True)), header


def _stretch(rows: list[list[Any]], names: list[str]) -> pandas.DataFrame:
    """Ticks of the same series."""
    import numpy as np
    import pandas

    table = ticks_table(rows)
    for k, name in enumerate(names):
        if name.startswith("gpu") and name.endswith(".memory"):
            table[:, k + 2] *= MIB
    frame = pandas.DataFrame(table[:, 2:], columns=[name.replace(".", "_") for name in names])
    frame.insert(0, "seq", table[:, 0].astype(np.int64))
    frame.insert(1, "time", pandas.to_datetime(table[:, 1], unit="s", utc=True))
    return frame


def _units(header: Mapping[str, Any]) -> dict[str, str]:
    units = dict(zip(header.get("columns", ()), header.get("units", ()), strict=False))
    units.pop("t", None)
    for gpu in header.get("gpus", ()):
        figures = zip(header.get("gpu_figures", ()), header.get("gpu_figure_units", ()), strict=False)
        for name, unit in (*zip(header.get("gpu_columns", ()), header.get("gpu_units", ()), strict=False), *figures):
            units[f"gpu{gpu.get('index')}_{name}"] = "bytes" if unit == "MiB" else unit
    return units


def check_format(path: Path) -> None:
    """Refuse what :func:`write` cannot write."""
    if path.suffix.lower() not in FORMATS:
        raise CommandError(
            f"Cannot export to {path.name!r}: it ends in none of {', '.join(FORMATS)}.",
            hint="Try: run.export('run.csv')",
        )
    if not path.absolute().parent.is_dir():
        raise CommandError(
            f"Cannot export to {path}: there is no folder {path.absolute().parent}.", hint="Make it first."
        )


def write(frame: pandas.DataFrame, path: Path) -> None:
    """Write a frame as CSV or Parquet, by the file's ending."""
    if path.suffix.lower() == ".csv":
        frame.to_csv(path, index=False)
        return
    try:
        frame.to_parquet(path, index=False)
    except ImportError as error:
        raise MissingDependency(
            "Parquet needs pyarrow, which is not installed here.", hint="pip install pyarrow"
        ) from error
