"""The files that trackers write, such as TensorBoard's: which there are, and what is new in them."""

import csv
import functools
import json
import os
import pkgutil
import queue
import subprocess
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Set, Tuple

from ..protocol import ARTIFACTS, TRACKER_NOTES, read_regular
from .printed_lines import Point

#: Largest CSV or JSON file that is read, and most files of a run.
_MAX_BYTES, _MAX_FILES = 64 << 20, 200

#: Folders of one program whose curves have the same names.
_PARTS = ("train", "validation", "val", "valid", "eval", "test")

#: Trackers whose files are read with their own packages, and the package.
PACKAGES = {"TensorBoard": "tensorboard", "wandb": "wandb"}

#: Sentences for the user about files that are not read.
NO_PACKAGE = (
    "%s's files of this run were not read: the job's Python has no package %s. Install it there: pip install %s"
)
BROKEN_FILE = "A file of %s was not read to its end, so later values are only there: %s (%s)"
NO_READER = "%s's files of this run were not read: the reader in %s failed (%s). See them in %s itself."

#: Starts of the program that reads: one that ends each time is left alone.
_MAX_STARTS = 5

#: New points: the tracker, the file, and the points, each with the position after it.
New = Tuple[str, str, List[Tuple[int, Point]]]


class Program(NamedTuple):
    """The Python that wrote a file, and where it finds modules."""

    python: str
    search: Tuple[str, ...]


class TrackerFiles:
    """Files of one run.

    Parameters
    ----------
    folder
        The run folder.
    is_contained
        Whether only files that need no package of the tracker are read.
    on_unread
        Called with a sentence for the user about files of a tracker that cannot be read, once for each tracker.
    """

    def __init__(self, folder: str, is_contained: bool, on_unread: Callable[[str], None]) -> None:
        self._notes, self._artifacts = os.path.join(folder, TRACKER_NOTES), os.path.join(folder, ARTIFACTS, "")
        self._size = 0
        self._pids: Dict[int, Program] = {}
        self._paths: Dict[str, str] = {}  #: path -> tracker
        self._program: Optional[Program] = None
        self._root = ""  #: folder of the first file of events
        self._changed: Dict[str, Tuple[int, int]] = {}
        self._reader = None if is_contained else _Reader(on_unread)

    def has_any(self) -> bool:
        """Whether the job has written such a file."""
        self._look()
        return bool(self._paths)

    def read(self, positions: Mapping[str, int], until: Optional[float]) -> Iterator[New]:
        """Yield what is new after `positions`; until a moment (monotonic) also what comes last."""
        self._look()
        packed = {path: tracker for path, tracker in self._paths.items() if tracker in PACKAGES}
        if packed and self._reader is not None and self._program is not None:
            for path, points in self._reader.read(self._program, packed, positions, until):
                yield packed[path], path, [(at, self._prefixed(path, point)) for at, point in points]
        for path, tracker in self._paths.items():
            # The Trainer logs the same to the other trackers, by names of their own.
            if path not in packed and not (packed and tracker == "Trainer"):
                points = self._of_text(path, tracker, positions.get(_place(path, tracker), 0))
                if points:
                    yield tracker, _place(path, tracker), points

    # -- which files

    def _look(self) -> None:
        try:
            size = os.path.getsize(self._notes)
        except OSError:
            return
        if size != self._size:
            self._size = size
            for line in read_regular(self._notes, 1 << 22).decode("utf-8", "replace").split("\n")[:-1]:
                try:
                    self._read_note(json.loads(line))
                except (ValueError, TypeError, KeyError, RecursionError):  # the job has written something else
                    continue
        for pid, program in self._pids.items():
            self._look_at(pid, program)

    def _read_note(self, found: Dict[str, Any]) -> None:
        program = Program(str(found["python"]), tuple(map(str, found["search"])))
        if "pid" in found:
            self._pids[int(found["pid"])] = program
        else:
            self._add(str(found["path"]), program)

    def _look_at(self, pid: int, program: Program) -> None:
        """Add the files of events that a process of TensorFlow has open."""
        folder = "/proc/%d/fd" % pid
        try:
            paths = [os.readlink(os.path.join(folder, name)) for name in os.listdir(folder)]
        except OSError:  # it has ended
            return
        for path in paths:
            if "events.out.tfevents" in path and not path.endswith(" (deleted)"):
                self._add(path, program)

    def _add(self, path: str, program: Program) -> None:
        name = os.path.basename(path)
        if name.endswith(".profile-empty") or path in self._paths or len(self._paths) >= _MAX_FILES:
            return
        if path.startswith(self._artifacts) and name in map(os.path.basename, self._paths):
            return  # the script has logged a file that is followed
        self._program = self._program or program
        if name.startswith("events.out.tfevents"):
            self._root = self._root or os.path.dirname(path)
            self._paths[path] = "TensorBoard"
        elif name.startswith("offline-run-"):
            self._paths[path] = "wandb"
        else:
            self._paths[path] = "Lightning's CSV" if name.endswith(".csv") else "Trainer"

    def _prefixed(self, path: str, point: Point) -> Point:
        folder = os.path.dirname(path)
        name = os.path.basename(folder)
        if self._paths[path] != "TensorBoard" or (folder == self._root and name not in _PARTS):
            return point
        inside = os.path.relpath(folder, self._root)
        prefix = name if name in _PARTS or inside.startswith("..") else inside
        return point._replace(name="%s/%s" % (prefix, point.name))

    # -- text

    def _of_text(self, path: str, tracker: str, position: int) -> List[Tuple[int, Point]]:
        try:
            stat = os.stat(path)
            version = (stat.st_mtime_ns, stat.st_size)
            if self._changed.get(path) == version:
                return []
            text = read_regular(path, _MAX_BYTES).decode("utf-8", "replace")
            rows = list(csv.DictReader(text.splitlines(True))) if path.endswith(".csv") else _history(text)
        except (OSError, ValueError, csv.Error, RecursionError):  # being written
            return []
        self._changed[path] = version
        if path.endswith(".csv") and not text.endswith("\n"):
            rows = rows[:-1]
        return [
            (at + 1, point) for at, row in enumerate(rows) if at >= position for point in _points(row, stat.st_mtime)
        ]


def _place(path: str, tracker: str) -> str:
    """Return the name of what a file belongs to: each checkpoint of the Trainer has the whole history."""
    return os.path.dirname(os.path.dirname(path)) if tracker == "Trainer" else path


def _history(text: str) -> List[Dict[str, Any]]:
    state = json.loads(text)
    rows = state.get("log_history") if isinstance(state, dict) else None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _points(row: Mapping[str, Any], moment: float) -> List[Point]:
    """Return the metrics of a row with a step."""
    points, step = [], row.get("step")
    for name, value in row.items():
        if name in ("step", "epoch", None) or value in ("", None) or isinstance(value, (list, bool)):
            continue
        try:
            points.append(Point(name, float(value), int(float(step)) if step not in ("", None) else None, moment))
        except (TypeError, ValueError, OverflowError):
            continue
    return points


@functools.lru_cache(maxsize=None)
def reader_source() -> str:
    """Return the program that reads with the trackers' packages; kept, because the agent's file may be replaced."""
    return (pkgutil.get_data(__package__ or "", "tracker_reader.py") or b"").decode()


class _Reader:
    """The program of ``tracker_reader.py``; started when the first file is there, and again if it was killed."""

    def __init__(self, on_unread: Callable[[str], None]) -> None:
        self._on_unread = on_unread
        self._unread: Set[str] = set()  #: trackers
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._lines: "queue.Queue[Optional[bytes]]" = queue.Queue()  # noqa: UP037 - Python 3.8
        self._given: Dict[str, str] = {}
        self._broken: Set[str] = set()
        self._starts = 0

    def read(
        self, program: Program, paths: Mapping[str, str], positions: Mapping[str, int], until: Optional[float]
    ) -> Iterator[Tuple[str, List[Tuple[int, Point]]]]:
        """Yield the new points of files; until a moment also those that come last."""
        yield from self._arrived(None)
        is_over = self._process is None or self._process.poll() is not None
        if is_over and (all(path in self._broken for path in paths) or not self._start(program, paths)):
            return
        for path, tracker in paths.items():
            if path not in self._given and path not in self._broken:
                self._give(tracker, path, positions.get(path, 0))
        if until is not None and self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            yield from self._arrived(until)
            self._end(program, paths)

    def _start(self, program: Program, paths: Mapping[str, str]) -> bool:
        """Start the program; return whether it runs."""
        self._given, self._lines = {}, queue.Queue()
        self._starts += 1
        error = "it ended %d times" % _MAX_STARTS
        if self._starts <= _MAX_STARTS:
            try:
                self._process = subprocess.Popen(
                    [program.python, "-c", reader_source()],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(program.search)},
                    cwd="/",
                )
                threading.Thread(target=self._drain, args=(self._process, self._lines), daemon=True).start()
                return True
            except OSError as failure:  # the script has removed its Python
                error = str(failure)
        self._fail_all(program, paths, error)
        return False

    def _end(self, program: Program, paths: Mapping[str, str]) -> None:
        """Let the program, which has written its last line, end."""
        if self._process is not None:
            try:
                code = self._process.wait(1.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                return
            if code:
                self._fail_all(program, paths, "exit code %d" % code)

    def _give(self, tracker: str, path: str, position: int) -> None:
        self._given[path] = tracker
        stdin = self._process.stdin if self._process is not None else None
        if stdin is not None:
            try:
                stdin.write((json.dumps([tracker, path, position]) + "\n").encode())
                stdin.flush()
            except OSError:  # it has ended; the next look starts it again
                pass

    def _drain(self, process: "subprocess.Popen[bytes]", lines: "queue.Queue[Optional[bytes]]") -> None:
        if process.stdout is not None:
            for line in process.stdout:
                lines.put(line)
        lines.put(None)

    def _arrived(self, until: Optional[float]) -> Iterator[Tuple[str, List[Tuple[int, Point]]]]:
        """Yield what has arrived; until a moment, or the end of the program."""
        while True:
            try:
                wait = 0.0 if until is None else max(0.0, until - time.monotonic())
                line = self._lines.get(wait > 0, wait or None)
            except queue.Empty:
                return
            if line is None:
                return
            found = json.loads(line)
            if "error" in found:
                self._fail(found["path"], found["error"], found["absent"])
                continue
            first = found["at"] - len(found["points"])
            yield found["path"], [(first + at + 1, Point(*point)) for at, point in enumerate(found["points"])]

    def _fail(self, path: str, error: str, absent: str) -> None:
        tracker = self._given[path]
        self._broken.add(path)
        if absent:
            self._tell(tracker, NO_PACKAGE % (tracker, absent, PACKAGES[tracker]))
        else:
            self._tell(tracker, BROKEN_FILE % (tracker, path, error))

    def _fail_all(self, program: Program, paths: Mapping[str, str], error: str) -> None:
        for path, tracker in paths.items():
            self._broken.add(path)
            self._tell(tracker, NO_READER % (tracker, program.python, error, tracker))

    def _tell(self, tracker: str, text: str) -> None:
        if tracker not in self._unread:
            self._unread.add(tracker)
            self._on_unread(text)
