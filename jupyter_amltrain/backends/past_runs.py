"""Index of the ended runs of a state root: what lists show of each, in one file that is read at once.

The run folders are the truth. A row counts only while the files that it was made of are the
same by inode, size and time; any other run is read from its folder. The file may be deleted or
damaged at any time, and any number of kernels may append to it at once: lines with a wrong
checksum are left out, and what they said is read from the folders again.
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

#: The file's name has the schema of its rows: a newer version leaves ours alone.
FILE = "run-index-1.jsonl"
#: A run whose row would be longer is read from its folder each time (bytes).
MAX_ROW_BYTES = 4096
#: A longer file is not an index of ours.
MAX_FILE_BYTES = 256 << 20
#: The file is written anew when so many of its lines are of no use, and they are more than those that are.
MAX_STALE_LINES = 1000

TRACKING_FILE = "tracking.json"
#: What lists show of a job, and what a row needs of it.
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
)

#: Inode, change in ns and size of each file that a row is made of; zeros of one that is absent.
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
    """What a list of ten thousand runs needs of each row."""

    run: str
    key: Key
    created: float


class _Line(NamedTuple):
    head: _Head
    data: bytes  #: the row's JSON


_head = msgspec.json.Decoder(_Head).decode
_row = msgspec.json.Decoder(_Row).decode


class PastRun:
    """An ended run of the index. A list of thousands shows a few: a row is decoded when somebody looks at it.

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
        """The run with what lists show of its job; damaged where this version cannot read the row."""
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
    """What is in the folder of runs now.

    Attributes
    ----------
    ids
        Of all run folders.
    runs
        Ended ones that were asked for, from the index.
    others
        Those that were asked for and have to be read from their folders, with their keys.
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
        """List the run folders, and take from the index those that are not `known`.

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
            wanted = [name for name in ids if name not in known]
            if not wanted:
                return Scan(ids, [], {})
            rows, stale = self._load()
            keys = _keys(self._runs, wanted)
            runs: list[PastRun] = []
            others: dict[str, Key] = {}
            good: list[bytes] = []
            for name in wanted:
                key, line = keys.get(name, ()), rows.get(name)
                if line is not None and line.head.key == key and name not in self._refused:
                    good.append(line.data)
                    runs.append(PastRun(line, target, f"{self._runs}/{name}", self._refused.add))
                else:
                    others[name] = key
            if stale + len(rows) - len(good) > max(MAX_STALE_LINES, len(good)) and not known:
                self._rewrite(good)
            return Scan(ids, runs, others)

    def add(self, runs: Iterable[Run], keys: Mapping[str, Key]) -> None:
        """Append rows of ended runs that were read from their folders; a disk that refuses is no error.

        Parameters
        ----------
        keys
            Of :meth:`scan`, from before their files were read.
        """
        lines = []
        for run in runs:
            if run.partial and (key := keys.get(run.run_id)):
                lines.append(_line(run, key))
        if lines:
            with self._lock:
                self._append(b"".join(lines))

    def _load(self) -> tuple[dict[str, _Line], int]:
        """Lines by run id, and how many of them are of no use."""
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
            except (ValueError, RecursionError):  # torn, or of a disk that lost something
                continue
        return rows, count - len(rows)

    def _append(self, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
        try:
            handle = os.open(self._file, flags, 0o600)
            try:
                # After a line that was torn ours would be lost with it: an empty line costs nothing.
                os.write(handle, b"\n" + data)
            finally:
                os.close(handle)
        except OSError as error:
            log.info("the index of runs cannot be written: %s", error)

    def _rewrite(self, rows: Iterable[bytes]) -> None:
        """Replace the file by `rows`; what another kernel appends meanwhile it will find missing and append again."""
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
                except OSError:
                    pass


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause Python's garbage collector: thousands of rows are made, and it would walk them all ten times."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def listed(run: Run) -> Run:
    """An ended run with only what lists show of its job; the run as it is where that is long or no JSON."""
    fields = {name: getattr(run.spec, name) for name in _LISTED}
    partial = msgspec.structs.replace(run, spec=JobSpec(**fields), partial=True)
    if _has_no_json(run.spec.params):
        return run
    return partial if len(_line(partial, ())) <= MAX_ROW_BYTES else run


def _has_no_json(value: Any) -> bool:
    """Whether a value holds ``nan`` or an infinity, which a row would give back as ``null``."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_no_json, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_no_json, value))


def tracking_of(folder: str) -> str:
    """What the MLflow importer left in a run folder of this machine; see :func:`tracking_state`. Blocks."""
    try:
        return tracking_state(read_regular(f"{folder}/{TRACKING_FILE}"))
    except (OSError, ValueError):
        return ""


def tracking_state(data: bytes) -> str:
    """What the importer's file says: ``imported``, ``direct`` or ``failed: <why>``; else empty."""
    try:
        result = json.loads(data)
        state, error = result.get("state", "imported"), result.get("error")
        if state == "failed" and isinstance(error, str) and error:
            return f"failed: {error}"
        return state if isinstance(state, str) and state.isprintable() else ""
    except (ValueError, AttributeError, RecursionError):
        return ""


def _keys(runs: Path, names: Iterable[str]) -> dict[str, Key]:
    """Keys of run folders; none of a folder without its two files."""
    found: dict[str, Key] = {}
    try:
        folder = os.open(runs, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except OSError:
        return found
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
            found[name] = (a.st_ino, a.st_mtime_ns, a.st_size, b.st_ino, b.st_mtime_ns, b.st_size, *last)
    finally:
        os.close(folder)
    return found


def _line(run: Run, key: Key) -> bytes:
    row = _Row(run.run_id, key, run.created, run.project, run.tracking_id, run.tracking, run.spec, run.status)
    return _sealed(_encoded(row))


_PLAIN_SPEC = msgspec.to_builtins(JobSpec(name=""))
_PLAIN_STATUS = msgspec.to_builtins(RunStatus(state=RunState.COMPLETED))


def _encoded(row: _Row) -> bytes:
    """The row as JSON without what is as it would be anyway."""
    try:
        value: dict[str, Any] = msgspec.to_builtins(row)
        value["spec"] = {k: v for k, v in value["spec"].items() if k == "name" or v != _PLAIN_SPEC.get(k)}
        value["status"] = {k: v for k, v in value["status"].items() if k == "state" or v != _PLAIN_STATUS[k]}
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, ValueError, TypeError):  # half a character in a path
        return b"?" * (MAX_ROW_BYTES + 1)


def _sealed(data: bytes) -> bytes:
    return b"%08x %s\n" % (zlib.crc32(data), data)
