"""Values at failure of a run: reads the file that its job has written, and makes the tables of the record.

``agent/failures/failure_hook.py`` writes the file, but a job can write anything there.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from jupyter_amltrain.agent.failures.value_facts import summary
from jupyter_amltrain.agent.plain_text import without_codes
from jupyter_amltrain.agent.protocol import FAILURE_OF_RANK
from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.kernel.log_errors import is_script
from jupyter_amltrain.schema.failure import MEMORY, FailedFrame, FailedValue, FrameTable
from jupyter_amltrain.schema.run import Run, RunState, RunStatus
from jupyter_amltrain.schema.table import Column, Table
from jupyter_amltrain.text import bytes_text

#: Largest file that is read.
MAX_BYTES = 64 << 10
#: Frames and characters in a record, and characters of one text.
_MAX_FRAMES, _MAX_CHARS, _MAX_TEXT = 8, 24_000, 400
#: Seconds by which the file may be older than the attempt it belongs to: clocks are set.
_CLOCK_SLACK_S = 2.0

#: Lines of the memory of the GPUs.
_MAX_LINES = 8
_MEMORY_TITLE = "GPU memory by the line that has made the tensors"

_PACKAGES = re.compile(r"/(?:site|dist)-packages/")

#: Reasons of runs that no exception has ended: a file would be of a process that the script has started.
_NOT_BY_ITSELF = frozenset(["timeout", "oom", "gpu-unused", "preempted", "launch", "environment", "data", "damaged"])

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
_COLUMNS = (Column("variable"), Column("value"))


class _Value(msgspec.Struct):
    name: str
    named: bool = False
    type: str = ""
    shape: Annotated[tuple[_Count, ...], msgspec.Meta(max_length=64)] | None = None
    dtype: str = ""
    device: str = ""
    low: str = ""
    high: str = ""
    nan: _Count = 0
    text: str = ""


class _Frame(msgspec.Struct):
    file: str
    line: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
    function: str = ""
    code: str = ""
    library: bool = False
    values: list[_Value] = []
    more: _Count = 0


class _Error(msgspec.Struct):
    type: str
    relation: str = ""
    frames: list[_Frame] = []


class _MemoryLine(msgspec.Struct):
    file: str
    line: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
    bytes: _Count
    count: _Count = 0
    device: _Count = 0
    function: str = ""
    code: str = ""


class _File(msgspec.Struct):
    errors: list[_Error]
    memory: list[_MemoryLine] = []
    time: float = 0.0


async def read_failure(backend: Backend, run: Run, status: RunStatus) -> tuple[FailedFrame, ...]:
    """Return the frames of a failed run, those of the exception that ended it first; none if its job has kept none."""
    if status.state is not RunState.FAILED or not run.folder or status.reason in _NOT_BY_ITSELF:
        return ()
    data = await backend.files.read(run.run_id, FAILURE_OF_RANK % (status.failed_rank or 0), MAX_BYTES)
    started = max((phase.start for phase in status.phases if phase.name == RunState.RUNNING), default=0.0)
    return frames_of(data, run, started)


def frames_of(data: bytes, run: Run, started: float = 0.0) -> tuple[FailedFrame, ...]:
    """Return the frames in a file.

    Parameters
    ----------
    started
        Unix seconds when the last attempt began; an older file is of another one.
    """
    try:
        file = msgspec.json.decode(data, type=_File)
    except msgspec.DecodeError:  # absent, or a job has written something else
        return ()
    if file.time < started - _CLOCK_SLACK_S:
        return ()
    frames = [_frame(frame, error, run) for error in file.errors for frame in error.frames]
    if file.memory and frames:
        frames.append(_memory(file.memory[:_MAX_LINES], frames[0].error, run))
    return tuple(frames)


def _memory(lines: Sequence[_MemoryLine], error: str, run: Run) -> FailedFrame:
    """Return the lines whose tensors filled the GPUs."""
    devices = {line.device for line in lines}
    values = []
    for line in lines:
        is_own = is_script(line.file, run.spec.script_name)
        place = f"line {line.line - run.spec.line_offset}" if is_own else f"{posixpath.basename(line.file)}:{line.line}"
        code = (_own_text(run, line.line) if is_own else "") or line.code
        where = f" on GPU {line.device}" if len(devices) > 1 else ""
        tensors = "1 tensor" if line.count == 1 else f"{line.count} tensors"
        summary = _line(f"{bytes_text(line.bytes)} in {tensors}{where}" + (f": {code}" if code else ""))
        values.append(FailedValue(name=_line(place), type="memory", text=summary, summary=summary))
    return FailedFrame(error=error, relation=MEMORY, file="", line=0, function="", values=tuple(values))


def _frame(frame: _Frame, error: _Error, run: Run) -> FailedFrame:
    line = frame.line - run.spec.line_offset if is_script(frame.file, run.spec.script_name) else None
    return FailedFrame(
        error=_line(error.type),
        relation=error.relation if error.relation in ("cause", "context", "first") else "",
        file=_line(frame.file),
        line=frame.line,
        function=_line(frame.function),
        code=_line((_own_text(run, frame.line) if line is not None else "") or frame.code),
        cell_line=line,
        library=frame.library,
        values=tuple(_value(value) for value in frame.values),
        more=frame.more,
    )


def _own_text(run: Run, line: int) -> str:
    """Return a line of the script as the author of its cell wrote it: the last one may have ``_ =`` before it.

    The first line of the script is ours, or the magic's.
    """
    lines = run.spec.cell.split("\n") if run.spec.cell else []
    return lines[line - 2].strip() if 2 <= line < len(lines) + 2 else ""


def _value(value: _Value) -> FailedValue:
    facts: dict[str, Any] = {"type": _line(value.type)}
    facts.update(
        (name, text) for name in ("dtype", "device", "low", "high", "text") if (text := _line(getattr(value, name)))
    )
    facts.update({"shape": value.shape} if value.shape else {"shape": ()} if value.shape == () and value.dtype else {})
    facts.update({"nan": value.nan} if value.nan else {})
    return FailedValue(
        name=_line(value.name),
        named=value.named,
        type=facts["type"],
        shape=value.shape,
        dtype=facts.get("dtype", ""),
        device=facts.get("device", ""),
        low=_number(value.low),
        high=_number(value.high),
        nan=value.nan,
        text=facts.get("text", ""),
        summary=summary(facts)[:_MAX_TEXT],
    )


def _line(text: str) -> str:
    """Return a text as one bounded line that terminals show as it is."""
    return without_codes(text[:_MAX_TEXT]).encode("utf-8", "replace").decode()


def _number(text: str) -> float | None:
    try:
        return float(text[:40])
    except ValueError:
        return None


def frame_tables(frames: Sequence[FailedFrame], run: Run) -> tuple[FrameTable, ...]:
    """Return the frames as a record shows them, as many as fit: that of a library below the one that called it."""
    tables: list[FrameTable] = []
    left, shown = _MAX_CHARS, ("", "")
    ordered = _callers_first([frame for frame in frames if frame.relation != MEMORY])
    ordered[1:1] = [frame for frame in frames if frame.relation == MEMORY]
    for frame in ordered[:_MAX_FRAMES]:
        rows: list[tuple[str, str]] = []
        for value in frame.values:
            left -= len(value.name) + len(value.summary)
            if left > 0:
                rows.append((value.name, value.summary))
        chain = frame.relation, frame.error
        title = _title(frame, run, with_error=bool(frame.relation) and chain != shown)
        left -= len(title) + len(frame.code)
        if rows and left > 0:
            shown = shown if frame.relation == MEMORY else chain
            tables.append(
                FrameTable(
                    title=title,
                    code=frame.code,
                    named=sum(value.named for value in frame.values[: len(rows)]),
                    folded=bool(tables) and not (frame.library and len(tables) == 1),
                    table=Table("failure", _COLUMNS, tuple(rows), frame.more + len(frame.values) - len(rows)),
                )
            )
    return tuple(tables)


def _callers_first(frames: Sequence[FailedFrame]) -> list[FailedFrame]:
    ordered = list(frames)
    for at, frame in enumerate(frames[:-1]):
        if frame.library and frames[at + 1].relation == frame.relation:
            ordered[at : at + 2] = ordered[at + 1], frame
    return ordered


_RELATIONS = {
    "cause": "{} that caused it",
    "context": "{} that was being handled",
    "first": "first of the group, {}",
}


def _title(frame: FailedFrame, run: Run, *, with_error: bool) -> str:
    """Return ``line 12 of the cell, in forward``."""
    if frame.relation == MEMORY:
        return _MEMORY_TITLE
    if frame.cell_line is not None:
        place = f"line {frame.cell_line} of the {'cell' if run.spec.cell else 'script'}"
    elif "ipykernel_" in frame.file:
        place = f"line {frame.line} of a cell"
    else:
        path = frame.file.replace("\\", "/")
        package = _PACKAGES.split(path)[-1]
        place = f"line {frame.line} of {package if package != path else posixpath.join(*path.split('/')[-2:])}"
    if frame.function and not frame.function.startswith("<module"):
        place += f", in {frame.function}"
    return f"{_RELATIONS[frame.relation].format(frame.error)}: {place}" if with_error else place
