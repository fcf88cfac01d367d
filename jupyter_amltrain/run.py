"""``TrackedRun``: the user's object for one run; usable from any thread except the loop's."""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from jupyter_amltrain.errors import AmlTrainError, CommandError, NoAnswer, ResultMissing, RunFailed, UnknownRun
from jupyter_amltrain.jobs.kept_names import keeps
from jupyter_amltrain.kernel.observers import FrameCallback
from jupyter_amltrain.kernel.outcome_text import as_error
from jupyter_amltrain.kernel.run_record import record_of
from jupyter_amltrain.kernel.session import controller
from jupyter_amltrain.kernel.terminal_screen import without_marks
from jupyter_amltrain.schema.child_run import ChildRun, ChildRuns
from jupyter_amltrain.schema.job import EVERY, JobSpec
from jupyter_amltrain.schema.provenance import Provenance
from jupyter_amltrain.schema.record import RunRecord
from jupyter_amltrain.schema.run import Run, RunHandle, RunState, RunStatus
from jupyter_amltrain.schema.run_file import RunFile, SavedValue
from jupyter_amltrain.text import seconds_text

if TYPE_CHECKING:
    import mlflow.entities
    import pandas

    from jupyter_amltrain.backends.base import Backend
    from jupyter_amltrain.backends.run_files import RunFiles
    from jupyter_amltrain.inside.line_files import ProcessLines
    from jupyter_amltrain.inside.line_report import LineReader, LineReport
    from jupyter_amltrain.inside.run_questions import CheckpointAnswer, RunStack
    from jupyter_amltrain.output.file_list import FileList
    from jupyter_amltrain.output.mime import View
    from jupyter_amltrain.output.run_pictures import PictureFile
    from jupyter_amltrain.schema.record import RunPicture

T = TypeVar("T")

#: Seconds to wait for a target's reply before the target counts as unreachable.
ANSWER_TIMEOUT_S = 60.0
#: Names of values that a line lists.
_MAX_LISTED = 5
#: Bytes of log that an error may quote from.
_MAX_QUOTED_LOG_BYTES = 64 * 1024


class MetricHistory(dict[str, list[tuple[int, float, float]]]):
    """Every metric of a run as a list of ``(step, unix seconds, value)``, in logged order."""

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas frame with one row for each point: ``metric``, ``step``, ``time`` (UTC), ``value``.

        Examples
        --------
        >>> run.metrics().to_frame().pivot_table(index="step", columns="metric", values="value").plot()
        """
        import pandas

        rows = [(name, *point) for name, points in self.items() for point in points]
        frame = pandas.DataFrame(rows, columns=["metric", "step", "time", "value"])
        frame["time"] = pandas.to_datetime(frame["time"], unit="s", utc=True)
        return frame


class ChildList(list[ChildRun]):
    """Steps or trials of a run, oldest first."""

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas frame with one row for each child.

        Columns are ``number`` (of a trial), ``name``, ``state``, ``value`` (of the primary metric), ``best``,
        ``params.*`` (NaN where a trial does not have the parameter, ``None`` for null), ``seconds``, ``handle`` (for
        :func:`jupyter_amltrain.attach`) and ``detail``.
        """
        import pandas

        names = dict.fromkeys(name for child in self for name in child.params)
        rows = [
            {
                "number": child.number,
                "name": child.name,
                "state": child.state,
                "value": child.value,
                "best": child.best,
                **{f"params.{name}": value for name, value in child.params.items()},
                "seconds": child.seconds,
                "handle": child.handle,
                "detail": child.detail,
            }
            for child in self
        ]
        columns = ["number", "name", "state", "value", "best", *(f"params.{name}" for name in names)]
        frame = pandas.DataFrame(rows, columns=[*columns, "seconds", "handle", "detail"])
        for name in names:
            values = [child.params.get(name, math.nan) for child in self]
            if None in values:  # pandas makes NaN of it between numbers
                frame[f"params.{name}"] = pandas.Series(values, dtype=object)
        return frame


def marked(text: str, rank: int) -> str:
    """Return the lines of a process with its rank before each; the last one ends with a newline, too."""
    return "".join(f"[rank {rank}] {line}\n" for line in text.splitlines())


class TrackedRun:
    """One run, identified by its handle. Works after a kernel restart; ``repr`` never blocks."""

    def __init__(self, handle: RunHandle) -> None:
        self.handle = handle

    @property
    def run(self) -> Run:
        """The run as currently known (frozen)."""
        return controller().loop.call(controller().load(self.handle), ANSWER_TIMEOUT_S)

    @property
    def run_id(self) -> str:
        """The run's id on its target."""
        return self.handle.partition("/")[2]

    @property
    def name(self) -> str:
        """The run's display name."""
        return self.run.spec.name

    @property
    def spec(self) -> JobSpec:
        """The job as it was submitted."""
        return self.run.spec

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the run, as they were submitted."""
        return dict(self.spec.params)

    @property
    def tags(self) -> dict[str, str]:
        """Tags of the run, as they were submitted."""
        return dict(self.spec.tags)

    @property
    def provenance(self) -> dict[str, Any]:
        """Origin of the run as plain data: git state, packages, machine, digests; queries the target.

        The fields are those of :class:`~jupyter_amltrain.schema.provenance.Provenance`.
        """
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self.read_provenance()))
        return found

    def read_provenance(self) -> Provenance:
        """Return :attr:`provenance` as a frozen object."""

        async def get() -> Provenance:
            await controller().load(self.handle)
            return await controller().contents.provenance(self.handle)

        return controller().loop.call(get(), ANSWER_TIMEOUT_S)

    @property
    def status(self) -> RunStatus:
        """State, phases and exit code; queries the target."""

        async def get() -> RunStatus:
            entry = await controller().known_run(self.handle)
            return entry.run.status

        return controller().loop.call(get(), ANSWER_TIMEOUT_S)

    @property
    def state(self) -> str:
        """State as text, e.g. ``running``; queries the target."""
        return self.status.state.value

    @property
    def log_path(self) -> str:
        """Path of the complete log."""

        async def get() -> str:
            entry = await controller().known_run(self.handle)
            return entry.log_path

        return controller().loop.call(get(), ANSWER_TIMEOUT_S)

    def read_log(self, offset: int, limit: int = 1 << 20, rank: int = 0) -> tuple[bytes, int]:
        """Return up to `limit` bytes of the log of a process from byte `offset`, and the next offset.

        A negative `offset` counts from the end.
        """
        chunk = controller().loop.call(controller().contents.read_log(self.handle, offset, limit, rank), None)
        return chunk.data, chunk.offset

    def files(self) -> FileList:
        """Return the files that the script has written, those of ``$AML_OUTPUT_DIR`` first; queries the target."""
        from jupyter_amltrain.output.file_list import FileList, ResultFile

        async def get() -> list[RunFile]:
            await controller().known_run(self.handle)
            return await controller().contents.result_files(self.handle)

        return FileList(ResultFile(self.handle, file) for file in controller().loop.call(get(), ANSWER_TIMEOUT_S))

    def download(self, path: str = "", to: str | os.PathLike[str] = ".") -> Path:
        """Copy a file or folder that the script has written, or all of them, into the folder `to`.

        See :meth:`~jupyter_amltrain.output.file_list.FileList.download`.

        Examples
        --------
        >>> run.download("outputs/model.joblib")
        PosixPath('model.joblib')
        """
        return self.files().download(path, to)

    @property
    def reader(self) -> RunFiles:
        """Reader of any file in the run's folder, such as its code."""

        async def get() -> RunFiles:
            return controller().contents.files(self.handle)

        return controller().loop.call(get())

    def logs(self, tail: int | None = None, step: str = "", rank: int | None = None) -> str:
        """Return the log as text, or its last `tail` lines; bytes that are not UTF-8 are replaced.

        Of a run of several processes the logs follow one after another, each line marked: ``[rank 1] ...``; `tail`
        counts the lines of each.

        Parameters
        ----------
        step
            Name or id of the step or trial whose log to read.
        rank
            Rank of the process whose log to read, without marks (``run.status.ranks`` is their number). At a
            service rank 0 has the lines of all processes, marked.
        """
        ranks = 1 if step or rank is not None else self.status.ranks
        if ranks > 1:
            texts = [self.logs(tail, rank=one) for one in range(ranks)]
            return "".join(marked(text, one) for one, text in enumerate(texts))
        text = self.log_end(None if tail is None else max(_MAX_QUOTED_LOG_BYTES, tail * 4096), step, rank or 0)
        return text if tail is None else "\n".join(text.removesuffix("\n").split("\n")[-tail:])

    def log_end(self, limit: int | None, step: str = "", rank: int = 0) -> str:
        """Return the last `limit` bytes of a log as text, as far as they are known where the target is silent."""
        child = self.child(step).id if step else ""
        data = controller().loop.call(controller().contents.logs(self.handle, limit, child, rank), None)
        return without_marks(data.decode("utf-8", "replace"))

    @property
    def parent(self) -> TrackedRun | None:
        """The sweep that this run is a trial of; ``None`` for a run of its own."""
        return TrackedRun(RunHandle(self.spec.parent)) if self.spec.parent else None

    def children(self) -> ChildList:
        """Return the steps of a pipeline, or the trials of a sweep or AutoML job, oldest first; queries the target.

        Examples
        --------
        >>> sweep.children().to_frame().sort_values("value")
        """
        return ChildList(self._children().runs)

    def child(self, name: str) -> ChildRun:
        """Return the step or trial with this name or id, or a unique prefix of one.

        Raises
        ------
        CommandError
            No step or trial matches, or several do.
        """
        return self._children().find(name)

    def _children(self) -> ChildRuns:
        async def get() -> ChildRuns:
            return (await controller().known_run(self.handle)).children

        return controller().loop.call(get(), ANSWER_TIMEOUT_S)

    def metrics(self) -> MetricHistory:
        """Return every metric as a list of ``(step, unix seconds, value)``; ``metrics().to_frame()`` for pandas."""

        async def get() -> MetricHistory:
            entry = await controller().known_run(self.handle)
            return MetricHistory(
                (name, list(zip(m.steps, m.times, m.values, strict=True))) for name, m in entry.metrics.metrics.items()
            )

        return controller().loop.call(get(), ANSWER_TIMEOUT_S)

    @property
    def pictures(self) -> list[PictureFile]:
        """Figures that the script has shown, and images that it has logged, oldest first; queries the target."""
        from jupyter_amltrain.output.run_pictures import PictureFile

        async def get() -> tuple[RunPicture, ...]:
            return (await controller().with_pictures(self.handle)).pictures.found

        return [PictureFile(self.handle, picture) for picture in controller().loop.call(get(), ANSWER_TIMEOUT_S)]

    def telemetry(self) -> pandas.DataFrame:
        """Return all host and GPU telemetry; see :func:`~jupyter_amltrain.output.telemetry_frame.frame_of`."""
        from jupyter_amltrain.output.telemetry_frame import frame_of, read_whole

        async def get() -> dict[int, bytes]:
            run = (await controller().known_run(self.handle)).run
            if not run.folder:
                return {}
            return await read_whole(controller().backend(run.target), run.run_id, max(1, run.status.nodes))

        return frame_of(controller().loop.call(get(), None))

    @property
    def lines(self) -> pandas.DataFrame:
        """Where the time goes, by line; see :func:`~jupyter_amltrain.inside.line_frame.frame_of`.

        Examples
        --------
        >>> run.lines[["line", "code", "share", "gpu"]].head()
        """
        from jupyter_amltrain.inside.line_frame import frame_of

        return frame_of(self.read_lines())

    def read_lines(self, start: float = 0.0, end: float | None = None, rank: int | None = None) -> LineReport:
        """Return where the time goes, by line, as a frozen object; queries the target.

        Parameters
        ----------
        start, end
            Seconds since the start of the script; `end` ``None`` for all that follows.
        rank
            One process of a distributed run; ``None`` for all.
        """
        from jupyter_amltrain.inside.line_report import report_of

        processes, reader = self._sampled_lines()
        return report_of(processes, reader, start=start, end=end, rank=rank)

    def stack(self) -> RunStack:
        """Return in which line each thread of the run is now.

        Raises
        ------
        CommandError
            The run is not running, or its target has none of our agents.
        """
        from jupyter_amltrain.inside.run_questions import read_stack

        return self._with_backend(read_stack)

    def peek(self, expression: str, *, rank: int = 0) -> str:
        """Evaluate an expression in the main thread of the run, for a second at most; return its text.

        It sees the names of the main module, and those of the function that runs.

        Raises
        ------
        CommandError
            It raised, or the run did not answer; the message says where it is.

        Examples
        --------
        >>> run.peek("scheduler.get_last_lr(), len(buffer)")
        """
        from jupyter_amltrain.inside.run_questions import ask

        return self._with_backend(lambda backend, run: ask(backend, run, "peek", expression, rank))

    def poke(self, statement: str, *, rank: int = 0) -> None:
        """Execute a statement in the main thread of the run, which keeps it in its file ``pokes.jsonl``.

        Raises
        ------
        CommandError
            As for :meth:`peek`.
        """
        from jupyter_amltrain.inside.run_questions import ask

        self._with_backend(lambda backend, run: ask(backend, run, "poke", statement, rank))

    def debug(self, *, rank: int = 0) -> None:
        """Debug the run with Python's ``pdb``, until it has ended or an interrupt; it needs ``--debug`` at the submit.

        Raises
        ------
        CommandError
            The run has no debugger.
        """
        from jupyter_amltrain.inside.run_debugger import RunDebugger

        RunDebugger(self._with_backend, rank, print).run(input)

    def save(self) -> CheckpointAnswer:
        """Ask the script for a checkpoint now, and wait for it for up to 10 seconds.

        The script looks for the file ``save-now`` in ``$AML_CHECKPOINT_DIR``: see ``docs/checkpoints.md``.

        Raises
        ------
        CommandError
            The run is not running, or its target has none of our agents.
        """
        from jupyter_amltrain.inside.run_questions import ask_checkpoint

        return self._with_backend(ask_checkpoint)

    def _with_backend(self, question: Callable[[Backend, Run], Awaitable[T]]) -> T:
        async def get() -> T:
            run = (await controller().known_run(self.handle)).run
            return await question(controller().backend(run.target), run)

        return controller().loop.call(get(), ANSWER_TIMEOUT_S)

    def speedscope(self) -> dict[str, Any]:
        """Return the sampled stacks as the content of a file for https://www.speedscope.app."""
        from jupyter_amltrain.inside.speedscope import speedscope_of

        return speedscope_of(*self._sampled_lines(), self.handle)

    def _sampled_lines(self) -> tuple[list[ProcessLines], LineReader]:
        from jupyter_amltrain.inside.run_lines import read_run_lines

        async def get() -> tuple[list[ProcessLines], LineReader]:
            run = (await controller().known_run(self.handle)).run
            return await read_run_lines(controller().backend(run.target), run)

        return controller().loop.call(get(), ANSWER_TIMEOUT_S)

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write the telemetry to a ``.csv`` or ``.parquet`` file, or an image of the run to a ``.png``.

        Raises
        ------
        CommandError
            The file has another suffix, or its folder does not exist.
        """
        from jupyter_amltrain.output.telemetry_frame import check_format, write

        file = Path(path)
        check_format(file)
        if file.suffix.lower() != ".png":
            write(self.telemetry(), file)
            return file
        record = self.record()
        picture = controller().loop.call(controller().imports.picture(record), None)
        if picture is None:
            raise CommandError(f"Cannot export {self.handle}: drawing the image failed.", hint="See the worker's log.")
        file.write_bytes(picture.png)
        return file

    def dashboard(self, window: float = 600.0) -> View:
        """Return charts of the run, live or as recorded; displayed as the last expression of a cell.

        Parameters
        ----------
        window
            Seconds that the charts show initially; 0 = whole run.

        Raises
        ------
        UnknownRun
            The run was deleted.
        """
        from jupyter_amltrain.output.mime import View

        self.run  # noqa: B018 - raise here, not while the value is displayed
        return View(self, window)

    def widget(self, window: float = 600.0) -> Any:
        """Return the charts as plain ipywidgets, for front ends without the labextension."""
        from jupyter_amltrain.output.plain import plain_dashboard

        return plain_dashboard(controller(), self.handle, window)

    def result(self, name: str, *, allow_pickle: bool = False, lazy: bool = False) -> Any:
        """Return the value of a variable of the cell: of ``--out name``, or of another name that the run keeps.

        Arrays, frames, tensors and estimators come back as such; above 64 MiB as a handle, whose ``load()`` reads
        the value. A figure comes back as its picture.

        Parameters
        ----------
        allow_pickle
            Read a value that could only be pickled on another machine. Reading a pickle can run any code: only if you
            trust the run.
        lazy
            Return a handle that says why, instead of an error, for a value that needs this consent.

        Raises
        ------
        ResultMissing
            The run has no such value, or has not completed.
        """
        run, status = self.run, self.status
        if name not in run.spec.out and not keeps(run.spec.script, name):
            raise self._absent(name, "")
        if not status.state.terminal:
            raise ResultMissing(
                f"{self.handle} is {status.state.value}; {name} is available once the run has ended.",
                hint=f"Wait for the end: %aml_runs wait {self.handle}",
            )
        run = self.run
        if name not in run.spec.out:
            return self._kept(name, allow_pickle, lazy)
        if name in run.saved and not run.saved[name].file:
            from jupyter_amltrain.agent import values

            return values.read(run.saved[name].node, os.devnull)
        if name in run.saved:
            return self._loaded(run.saved[name], allow_pickle, lazy)
        if name not in run.outputs:
            raise self._missing(run, name)
        return run.outputs[name]

    def _loaded(self, saved: SavedValue, allow_pickle: bool, lazy: bool) -> Any:
        """Return the value of files, or its handle."""
        from jupyter_amltrain.output.result_value import LAZY_BYTES, ResultValue

        value, outputs = ResultValue(self, saved), self.run.outputs
        try:
            return value if value.size > LAZY_BYTES else value.load(allow_pickle=allow_pickle)
        except ResultMissing as error:
            if error.code == "result.pickle" and saved.name in outputs:
                return outputs[saved.name]  # JSON has its content
            if not lazy or error.code != "result.pickle":
                raise
            return ResultValue(self, saved, error.why)

    def _kept(self, name: str, allow_pickle: bool, lazy: bool) -> Any:
        """Return a value that ``--out`` does not name."""
        from jupyter_amltrain.output.result_value import kept_values_of

        kept = kept_values_of(self)
        if name in kept.values:
            return self._loaded(kept.values[name], allow_pickle, lazy)
        reason = f": {kept.reasons[name]}" if name in kept.reasons else ""
        raise self._absent(name, reason)

    def _absent(self, name: str, reason: str) -> ResultMissing:
        again = "" if reason else f" To get it from the next run: --out {name}"
        available = ", ".join(self.results) or "none"
        return ResultMissing(
            f"{self.handle} has no value {name!r}{reason}.", hint=f"Available: {available}.{again}", name=name
        )

    def kept_text(self, variable: str) -> str:
        """Return a line on what the run keeps besides ``--out``; `variable` has the run."""
        from jupyter_amltrain.output.result_value import kept_values_of

        if EVERY in self.run.spec.out or not (names := [*kept_values_of(self).values]):
            return ""
        more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
        return f"Keeps {', '.join(names[:_MAX_LISTED])}{more}: {variable}.result({names[0]!r})"

    @property
    def results(self) -> dict[str, str]:
        """What :meth:`result` can return: names of ``--out``, then other variables of the cell, each with its type."""
        from jupyter_amltrain.output.result_value import kept_values_of

        run = self.run
        named = {name: run.saved[name].text if name in run.saved else "" for name in run.spec.out_names}
        for name in [name for name in named if not named[name]]:
            named[name] = type(run.outputs[name]).__name__ if name in run.outputs else "no value"
        return {**named, **{name: saved.text for name, saved in kept_values_of(self).values.items()}}

    def _missing(self, run: Run, name: str) -> AmlTrainError:
        """Return the error that explains why an ended run has no value `name`."""

        async def get() -> Any:
            return (await controller().backend(run.target).files.outputs(run.run_id, [name])).get(name)

        if run.status.state is RunState.COMPLETED and run.folder:
            output = controller().loop.call(get(), ANSWER_TIMEOUT_S)
            if isinstance(output, AmlTrainError):
                return output
        return ResultMissing(run.error or f"{self.handle} has no value {name}.")

    def accepted(self, timeout: float | None = None) -> TrackedRun:
        """Wait until the target has accepted the job; after that it survives this kernel.

        Parameters
        ----------
        timeout
            Seconds; ``None`` waits without a limit.

        Raises
        ------
        AmlTrainError
            The job was rejected: too large, no such slot, or the target is unreachable.
        TimeoutError
            The job is still being packed or sent; this continues in the background.
        """
        controller().loop.call(controller().accepted(self.handle), timeout)
        return self

    def wait(self, timeout: float | None = None) -> TrackedRun:
        """Wait for the run to end; an interrupt stops the waiting, never the run.

        Parameters
        ----------
        timeout
            Seconds; ``None`` waits without a limit.

        Raises
        ------
        RunFailed, RunCanceled, RunLost
            The run did not complete.
        NoAnswer
            The run is still going; a ``TimeoutError``.
        """
        try:
            run = controller().loop.call(controller().wait(self.handle), timeout)
        except NoAnswer:
            reason = f"{self.handle} has not ended within {seconds_text(timeout or 0.0)}."
            raise NoAnswer(reason, hint="It goes on. To wait again: run.wait()") from None
        if run.status.state is not RunState.COMPLETED:
            error = self._error(run)
            if error is not None:
                raise error
        return self

    def error(self) -> AmlTrainError | None:
        """Return the exception that :meth:`wait` raises, or ``None``."""
        return self._error(self.run)

    def _error(self, run: Run) -> AmlTrainError | None:
        log = ""
        if run.folder and run.status.reason != "deleted":  # the target was deleted, and the log with it
            failed = run.status.failed_rank or 0
            reading = controller().contents.logs(self.handle, _MAX_QUOTED_LOG_BYTES, rank=failed)
            data = controller().loop.call(reading, ANSWER_TIMEOUT_S)
            log = data.decode("utf-8", "replace")
        error = as_error(run, log)
        if isinstance(error, RunFailed):
            error.frames = controller().loop.call(controller().failed_frames(self.handle), ANSWER_TIMEOUT_S)
        return error

    def cancel(self) -> None:
        """Request cancellation and return; an ended run does not change."""
        controller().loop.call(controller().cancel(self.handle), ANSWER_TIMEOUT_S)

    def delete(self, *, without_mlflow: bool = False) -> None:
        """Delete the folder of the ended run; the MLflow record is kept.

        Parameters
        ----------
        without_mlflow
            Delete even if MLflow has no record of the run; everything it logged is then lost.

        Raises
        ------
        UnrecordedRun
            MLflow has no record of the run, and none can be written now.
        """
        controller().loop.call(controller().delete(self.handle, without_mlflow), ANSWER_TIMEOUT_S)

    def unrecorded(self) -> str:
        """Return why MLflow has no record of this ended run; empty if there is one.

        A record that could not be written is retried.
        """
        return controller().loop.call(controller().unrecorded(self.handle), ANSWER_TIMEOUT_S)

    @property
    def mlflow(self) -> mlflow.entities.Run:
        """The run as MLflow has it in the project's store: :class:`mlflow.entities.Run`; written first if need be.

        Raises
        ------
        CommandError
            MLflow does not have it: it has just started, or runs on another machine, or logs to a server of its own.
        """
        from jupyter_amltrain.tracking.stored_run import stored_run

        reason = self.unrecorded()
        run = self.run
        if (found := stored_run(run.project, run.tracking_id)) is None:
            text = f": {reason}" if reason else "." if run.status.state.terminal else " yet."
            raise CommandError(
                f"MLflow has no record of {self.handle}{text}", hint=f"See: %aml_runs show {self.handle}"
            )
        return found

    def record(self) -> RunRecord:
        """Return the record that a cell output shows; queries the target."""
        return controller().loop.call(controller().record(self.handle), ANSWER_TIMEOUT_S)

    def watch(self, on_frame: FrameCallback, rate: float = 2.0) -> Future[None]:
        """Call `on_frame(record, picture)` on the loop thread: now, on change, at the end.

        `picture` is a PNG with its size, present in the last calls of an ended run. Canceling the
        returned future stops the callbacks only, never the run.
        """
        return controller().loop.post(controller().watch(self.handle, on_frame, rate))

    def __repr__(self) -> str:
        return f"<TrackedRun {self.handle}>"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        from jupyter_amltrain.output.mime import bundle_of

        async def get() -> RunRecord:
            return record_of(controller().entry(self.handle))

        try:
            record = controller().loop.call(get())
        except UnknownRun:  # IPython would print a traceback under the cell
            return {"text/plain": f"{self.handle}: this run no longer exists. %aml_runs lists all runs."}
        return bundle_of(record)[0]
