"""Follows what a job prints and the files of its trackers, and records their metrics beside those of MLflow.

It runs in a thread of the MLflow sink, which is the one writer of the journal. A value of MLflow is never recorded a
second time: a metric that MLflow has stays MLflow's; the files of a program that has logged to MLflow are read at its
end only; and known printed forms count where nothing else does.
"""

import os
import re
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from .. import sink_notes
from ..mlflow.sink_state import Recorder
from ..mlflow.validation import METRICS_PER_BATCH
from ..process_setup import log_line
from .line_pattern import LinePattern, parse_pattern
from .line_shapes import LineShapes
from .metric_sources import FINISH_S, last_word, mark
from .printed_lines import Point, PrintedLines
from .tracker_files import TrackerFiles

#: Seconds between two looks.
PERIOD_S = 1.0

#: Bytes of the log that one look reads.
MAX_READ = 1 << 20

#: Source of the metrics of ``--metric``.
PRINTED = "printed lines"

#: Tag of the run with the sources of its metrics.
SOURCES_TAG = "amltrain.metric_sources"


class FollowedJob(NamedTuple):
    """What is followed.

    Attributes
    ----------
    folder
        The run folder.
    log
        File with the job's output.
    patterns
        Texts of ``--metric``.
    has_autolog
        Whether MLflow logs for libraries by itself, so that their printed lines are not read.
    is_contained
        Whether the job is in a container, whose programs are not run here: files that need the tracker's own package
        are not read.
    """

    folder: str
    log: str
    patterns: Sequence[str]
    has_autolog: bool
    is_contained: bool


class MetricFollower:
    """The thread."""

    def __init__(self, recorder: Recorder, job: FollowedJob) -> None:
        self._recorder, self._job = recorder, job
        self._lines = PrintedLines(list(_parsed(job.patterns, recorder.note_once)))
        self._shapes = LineShapes()
        self._files = TrackerFiles(job.folder, job.is_contained, self._on_unread)
        self._sources = recorder.state.metric_sources
        self._offset = self._sources.positions.get(PRINTED, 0)
        self._rest = b""
        self._tagged = ""
        self._of_mlflow: Dict[str, Set[Tuple[str, int, bytes]]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metric follower", daemon=True)

    def start(self) -> None:
        """Start following."""
        self._thread.start()

    def finish(self) -> None:
        """Read what is left after the end of the job."""
        until = time.monotonic() + FINISH_S
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(FINISH_S / 2)
        if self._thread.is_alive():
            return
        try:
            while self._read_log(True) and time.monotonic() < until:
                pass
            self._read_files(until)
            if not self._recorder.state.runs[self._recorder.run_id].metrics:
                self._propose()
        except Exception as error:  # must not stop the end of a run
            self._note(error)

    def _run(self) -> None:
        while not self._stop.wait(PERIOD_S):
            try:
                self._read_log(False)
                self._read_files(None)
            except Exception as error:  # must not end the sink
                self._note(error)
                return

    def _note(self, error: Exception) -> None:
        log_line(self._job.folder, "metric follower: %s: %s" % (type(error).__name__, error))

    def _on_unread(self, text: str) -> None:
        """Tell the user which files are not read."""
        log_line(self._job.folder, "metric follower: " + text)
        sink_notes.append(self._job.folder, text)

    # -- the log

    def _read_log(self, is_last: bool) -> bool:
        """Read the new part of the log; return whether there may be more."""
        try:
            with open(self._job.log, "rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:  # the job has rewritten it
                    self._offset, self._rest = 0, b""
                file.seek(self._offset + len(self._rest))
                data = file.read(MAX_READ)
        except OSError:
            return False
        text = self._rest + data
        lines = re.split(rb"(?<=[\n\r])", text)
        self._rest = lines.pop()
        if is_last and not data and self._rest:
            lines, self._rest = [self._rest], b""
        found: List[Tuple[int, str, Point]] = []
        for line in lines:
            self._offset += len(line)
            found += self._points(line.decode("utf-8", "replace").rstrip("\r\n"))
        if is_last and not data:
            found += [(self._offset, library, point) for library, point in self._lines.end()]
        if len(self._rest) > MAX_READ:  # no line of text
            self._offset, self._rest = self._offset + len(self._rest), b""
        self._record_lines(found)
        return bool(data)

    def _points(self, line: str) -> Iterator[Tuple[int, str, Point]]:
        own, known = self._lines.read(line)
        if not (own or known or self._recorder.state.runs[self._recorder.run_id].metrics):
            self._shapes.add(line)
        for point in own:
            yield self._offset, PRINTED, point
        for library, point in known:
            yield self._offset, library, point

    def _record_lines(self, found: List[Tuple[int, str, Point]]) -> None:
        is_alone = not (self._job.has_autolog or self._logs_to_mlflow() or self._files.has_any())
        sources: Dict[str, List[Tuple[int, Point]]] = {}
        for at, source, point in found:
            if source == PRINTED or is_alone:
                sources.setdefault(source, []).append((at, point))
        for source, points in sources.items():
            self._record(source, PRINTED, points)

    # -- files

    def _read_files(self, until: Optional[float]) -> None:
        """Record what is new in the files; at the end of the job `until` this moment."""
        if until is None and self._has_metrics_of_mlflow():
            return  # compared with MLflow's at the end
        for source, place, points in self._files.read(self._sources.positions, until):
            self._record(source, place, points)

    # -- MLflow's own

    def _logs_to_mlflow(self) -> bool:
        state = self._recorder.state
        run = state.runs[self._recorder.run_id]
        return bool(state.joined or run.params) or self._has_metrics_of_mlflow()

    def _has_metrics_of_mlflow(self) -> bool:
        metrics = self._recorder.state.runs[self._recorder.run_id].metrics
        return any(name not in self._sources.sources for name in list(metrics))

    def _is_of_mlflow(self, name: str, step: int, value: float) -> bool:
        """Whether MLflow has this value under a name like this one, or the metric itself."""
        metrics = self._recorder.state.runs[self._recorder.run_id].metrics
        own = [key for key in list(metrics) if key not in self._sources.sources]
        if name in own:
            return True
        for key in own:
            if last_word(key) == last_word(name) and key not in self._of_mlflow:
                points = self._recorder.journal.history(self._recorder.run_id, key)
                self._of_mlflow[key] = {
                    mark(key, int(point.get("step") or 0), float(point["value"])) for point in points
                }
        return any(mark(name, step, value) in marks for marks in self._of_mlflow.values())

    # -- the record

    def _record(self, source: str, place: str, points: List[Tuple[int, Point]]) -> None:
        """Record points of one source, each with the position in its file after it."""
        batch: List[Dict[str, Any]] = []
        steps: Dict[str, int] = {}
        position = last = 0
        for position, point in points:
            if batch and position != last and len(batch) > METRICS_PER_BATCH - 100:
                self._write(source, place, last, batch)
                batch = []
            last = position
            row = self._row(source, place, point, steps)
            if row is not None and len(batch) < METRICS_PER_BATCH:
                batch.append(row)
        if batch:
            self._write(source, place, position, batch)

    def _row(self, source: str, place: str, point: Point, steps: Dict[str, int]) -> Optional[Dict[str, Any]]:
        name = _valid(point.name)
        if not name or self._sources.sources.get(name, source) != source:
            return None
        step = point.step
        if step is None:
            latest = self._recorder.state.runs[self._recorder.run_id].metrics.get(name)
            step = steps.get(name, -1 if latest is None else latest.step) + 1
            steps[name] = step
        if not -(1 << 63) <= step < 1 << 63 or self._is_of_mlflow(name, step, point.value):
            return None
        if place != PRINTED and self._sources.is_repeated(source, name, step, point.value):
            return None
        moment = time.time() if point.time is None else point.time
        value: Any = point.value if point.value - point.value == 0 else str(point.value)  # JSON has no NaN
        return {"key": name, "value": value, "timestamp": int(1000 * moment), "step": step}

    def _write(self, source: str, place: str, position: int, rows: List[Dict[str, Any]]) -> None:
        run = {"run_id": self._recorder.run_id}
        added = {"source": source, "place": place, "at": position}
        self._recorder.change("runs/log-batch", {**run, "metrics": rows}, added)
        sources = ", ".join(sorted(set(self._sources.sources.values())))
        if sources != self._tagged:
            self._tagged = sources
            self._recorder.change("runs/set-tag", {**run, "key": SOURCES_TAG, "value": sources}, {})

    def _propose(self) -> None:
        text = self._shapes.proposal()
        if text:
            sink_notes.append(self._job.folder, text)


def _parsed(texts: Sequence[str], note: Callable[[str], None]) -> Iterator[LinePattern]:
    for text in texts:
        try:
            yield parse_pattern(text)
        except (ValueError, TypeError) as error:  # of a client that does not check it
            note("the pattern %r is not used: %s" % (text, error))


def _valid(name: str) -> str:
    """Return a name that MLflow takes."""
    name = re.sub(r"[^/\w.\- :]", "_", name).strip("/ ")[:250]
    parts = [part for part in name.split("/") if part not in ("", ".", "..")]
    return "/".join(parts)
