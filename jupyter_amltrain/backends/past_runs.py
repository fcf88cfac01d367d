"""Index of the ended runs of a state root: the listed fields of each run, in one file.

The run directories are the source of truth. A row is valid only while the files that it was made from are
unchanged by inode, size and time; any other run is read from its directory. The file may be deleted or
damaged at any time, and any number of kernels may append to it concurrently: lines with a wrong
checksum are ignored, and their runs are read from the directories again.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import math
import os
import tempfile
import threading
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from jupyter_amltrain.agent.protocol import JOB, STATE, read_regular, valid_run_id
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import DAMAGED, Run, RunHandle, RunState, RunStatus, split_handle

log = logging.getLogger(__name__)

#: The file's name contains the version of its schema: a newer version does not change this file.
FILE = "run-index-1.jsonl"
#: Maximum length of a row in bytes; a run with a longer row is read from its directory each time.
MAX_ROW_BYTES = 4096
#: Maximum size in bytes; a larger file is ignored.
MAX_FILE_BYTES = 256 << 20
#: The file is rewritten when it has more stale lines than this, and more stale lines than valid ones.
MAX_STALE_LINES = 1000

TRACKING_FILE = "tracking.json"
#: Fields of a job in lists, and further fields that a row needs.
_LISTED = (
    "name",
    "experiment",
    "params",
    "tags",
    "out",
    "script_name",
    "source_sha256",
    "tracking",
    "job_type",
    "notebook_dir",
    "parent",
    "sweep",
    "own_trials",
)

#: Inode, modification time in ns and size of each file that a row is made from; zeros for an absent file.
Key = tuple[int, ...]


class _Row(msgspec.Struct, frozen=True, gc=False):
    """One ended run: a line of the file."""

    run: str
    key: Key
    created: float
    project: str
    tracking_id: str
    tracking: str
    spec: JobSpec
    status: RunStatus


class _Head(msgspec.Struct, frozen=True, gc=False):
    """Fields of a row that a list of ten thousand runs needs."""

    run: str
    key: Key
    created: float


class _Line(NamedTuple):
    head: _Head
    data: bytes  #: the row's JSON


_head = msgspec.json.Decoder(_Head).decode
_row = msgspec.json.Decoder(_Row).decode


class PastRun:
    """An ended run of the index. A list of thousands displays a few: a row is decoded on demand.

    Attributes
    ----------
    handle, created
        See :class:`~jupyter_amltrain.schema.run.Run`.
    """

    __slots__ = ("_data", "_folder", "_refuse", "created", "handle")

    def __init__(self, line: _Line, target: str, folder: str, refuse: Callable[[str], None]) -> None:
        self.handle = RunHandle(f"{target}/{line.head.run}")
        self.created = line.head.created
        self._data, self._folder, self._refuse = line.data, folder, refuse

    def read(self) -> Run:
        """Return the run with the listed fields of its job; damaged if this version cannot read the row."""
        try:
            row = _row(self._data)
        except (ValueError, RecursionError) as error:
            self._refuse(split_handle(self.handle)[1])  # the next list reads its folder
            detail = f"its row in {FILE} cannot be read ({error}); list the runs again"
            status = RunStatus(state=RunState.LOST, reason=DAMAGED, detail=detail)
            spec = JobSpec(name=split_handle(self.handle)[1])
            return Run(handle=self.handle, spec=spec, status=status, created=self.created, folder=self._folder)
        return Run(
            handle=self.handle,
            spec=row.spec,
            status=row.status,
            created=row.created,
            folder=self._folder,
            project=row.project,
            tracking_id=row.tracking_id,
            tracking=row.tracking,
            partial=True,
        )


class Scan(NamedTuple):
    """Content of the folder of runs.

    Attributes
    ----------
    ids
        Ids of all run directories.
    runs
        Requested ended runs, from the index.
    others
        Requested runs that have to be read from their directories, with their keys.
    """

    ids: list[str]
    runs: list[PastRun]
    others: dict[str, Key]


class PastRunIndex:
    """Reads and writes the index. Blocks on the disk; any thread.

    Parameters
    ----------
    home
        The state root.
    """

    def __init__(self, home: Path) -> None:
        self._runs, self._file = home / "runs", home / FILE
        self._lock = threading.Lock()
        self._refused: set[str] = set()  #: runs whose rows this version cannot read

    def scan(self, known: Collection[str], target: str) -> Scan:
        """List the run directories, and read those that are not `known` from the index.

        Parameters
        ----------
        target
            Name of the target, for the runs' handles.
        """
        with self._lock, _collector_paused():
            try:
                names = os.listdir(self._runs)
            except FileNotFoundError:
                names = []
            ids = [name for name in names if valid_run_id(name)]
            requested = [name for name in ids if name not in known]
            if not requested:
                return Scan(ids, [], {})
            rows, stale = self._load()
            keys = _keys(self._runs, requested)
            runs: list[PastRun] = []
            others: dict[str, Key] = {}
            valid: list[bytes] = []
            for name in requested:
                key, line = keys.get(name, ()), rows.get(name)
                if line is not None and line.head.key == key and name not in self._refused:
                    valid.append(line.data)
                    runs.append(PastRun(line, target, f"{self._runs}/{name}", self._refused.add))
                else:
                    others[name] = key
            if stale + len(rows) - len(valid) > max(MAX_STALE_LINES, len(valid)) and not known:
                self._rewrite(valid)
            return Scan(ids, runs, others)

    def add(self, runs: Iterable[Run], keys: Mapping[str, Key]) -> None:
        """Append rows of ended runs that were read from their directories; write errors are logged.

        Parameters
        ----------
        keys
            Keys from :meth:`scan`, taken before the files were read.
        """
        lines = []
        for run in runs:
            if run.partial and (key := keys.get(run.run_id)):
                lines.append(_line(run, key))
        if lines:
            with self._lock:
                self._append(b"".join(lines))

    def _load(self) -> tuple[dict[str, _Line], int]:
        """Return the lines by run id, and the number of stale ones."""
        try:
            data = read_regular(str(self._file), MAX_FILE_BYTES)
        except FileNotFoundError:
            return {}, 0
        except OSError as error:
            log.info("the index of runs cannot be read: %s", error)
            return {}, MAX_STALE_LINES + 1
        rows: dict[str, _Line] = {}
        count = 0
        for line in data.split(b"\n"):
            if not line:
                continue
            count += 1
            try:
                row = line[9:]
                if int(line[:8], 16) == zlib.crc32(row):
                    head = _head(row)
                    rows[head.run] = _Line(head, row)
            except (ValueError, RecursionError):  # a torn or damaged line
                continue
        return rows, count - len(rows)

    def _append(self, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
        try:
            handle = os.open(self._file, flags, 0o600)
            try:
                # Start a new line in case the last one is torn; empty lines are ignored.
                os.write(handle, b"\n" + data)
            finally:
                os.close(handle)
        except OSError as error:
            log.info("the index of runs cannot be written: %s", error)

    def _rewrite(self, rows: Iterable[bytes]) -> None:
        """Replace the file by `rows`; rows that another kernel appends meanwhile are lost, and appended again later."""
        temporary = ""
        try:
            fd, temporary = tempfile.mkstemp(prefix=FILE, suffix=".tmp", dir=self._file.parent)
            with os.fdopen(fd, "wb") as file:
                for row in rows:
                    file.write(_sealed(row))
            os.replace(temporary, self._file)
        except OSError as error:
            log.info("the index of runs cannot be written: %s", error)
            if temporary:
                try:
                    os.unlink(temporary)
                except OSError:  # removed already, or a folder that became read-only
                    pass


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause Python's garbage collector, which would traverse thousands of new rows about ten times."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def listed_fields_of(run: Run) -> Run:
    """Return an ended run with only the listed fields of its job; unchanged if they are too long or not JSON."""
    fields = {name: getattr(run.spec, name) for name in _LISTED}
    partial = msgspec.structs.replace(run, spec=JobSpec(**fields), partial=True)
    if _has_no_json(run.spec.params):
        return run
    return partial if len(_line(partial, ())) <= MAX_ROW_BYTES else run


def _has_no_json(value: Any) -> bool:
    """Return whether a value contains ``nan`` or an infinity, which a row would return as ``null``."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_no_json, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_no_json, value))


def tracking_of(folder: str) -> str:
    """Return the MLflow importer's result in a local run directory; see :func:`tracking_state`. Blocks."""
    try:
        return tracking_state(read_regular(f"{folder}/{TRACKING_FILE}"))
    except (OSError, ValueError):
        return ""


def tracking_state(data: bytes) -> str:
    """Return the state in the importer's file: ``imported``, ``direct`` or ``failed: <reason>``; else empty."""
    try:
        result = json.loads(data)
        state, error = result.get("state", "imported"), result.get("error")
        if state == "failed" and isinstance(error, str) and error:
            return f"failed: {error}"
        if state == "partial":  # imported while it ran: the last import is still to come
            return ""
        return state if isinstance(state, str) and state.isprintable() else ""
    except (ValueError, AttributeError, RecursionError):
        return ""


def _keys(runs: Path, names: Iterable[str]) -> dict[str, Key]:
    """Return the keys of run directories that have both required files."""
    keys: dict[str, Key] = {}
    try:
        folder = os.open(runs, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except OSError:
        return keys
    stat = os.stat
    try:
        for name in names:
            try:
                a = stat(f"{name}/{STATE}", dir_fd=folder)
                b = stat(f"{name}/{JOB}", dir_fd=folder)
            except OSError:
                continue
            try:
                c = stat(f"{name}/{TRACKING_FILE}", dir_fd=folder)
                last = (c.st_ino, c.st_mtime_ns, c.st_size)
            except OSError:
                last = (0, 0, 0)
            keys[name] = (a.st_ino, a.st_mtime_ns, a.st_size, b.st_ino, b.st_mtime_ns, b.st_size, *last)
    finally:
        os.close(folder)
    return keys


def _line(run: Run, key: Key) -> bytes:
    row = _Row(run.run_id, key, run.created, run.project, run.tracking_id, run.tracking, run.spec, run.status)
    return _sealed(_encoded(row))


_PLAIN_SPEC = msgspec.to_builtins(JobSpec(name=""))
_PLAIN_STATUS = msgspec.to_builtins(RunStatus(state=RunState.COMPLETED))


def _encoded(row: _Row) -> bytes:
    """Return the row as JSON without fields that have their default value."""
    try:
        value: dict[str, Any] = msgspec.to_builtins(row)
        value["spec"] = {k: v for k, v in value["spec"].items() if k == "name" or v != _PLAIN_SPEC.get(k)}
        value["status"] = {k: v for k, v in value["status"].items() if k == "state" or v != _PLAIN_STATUS[k]}
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, ValueError, TypeError):  # half a character in a path
        return b"?" * (MAX_ROW_BYTES + 1)


def _sealed(data: bytes) -> bytes:
    return b"%08x %s\n" % (zlib.crc32(data), data)
