"""A run as users hold it: one object by its handle, usable from any thread but the loop's."""

from __future__ import annotations

import os
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from jupyter_amltrain.errors import AmlTrainError, CommandError, ResultMissing, UnknownRun
from jupyter_amltrain.kernel.observers import FrameCallback
from jupyter_amltrain.kernel.outcome_text import as_error
from jupyter_amltrain.kernel.record import record_of
from jupyter_amltrain.kernel.session import controller
from jupyter_amltrain.schema.child_run import ChildRun, ChildRuns
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.record import RECORD_MIME, RunRecord
from jupyter_amltrain.schema.run import Run, RunHandle, RunState, RunStatus

if TYPE_CHECKING:
    import pandas

    from jupyter_amltrain.backends.run_files import RunFiles
    from jupyter_amltrain.output.mime import View

#: A target that does not answer a question within this time is unreachable (seconds).
ANSWER = 60.0
#: Bytes of log that an error quotes from.
_QUOTE = 64 * 1024


class TrackedRun:
    """One run, by its handle: works after a restart, never blocks in ``repr``."""

    def __init__(self, handle: RunHandle) -> None:
        self.handle = handle

    @property
    def run(self) -> Run:
        """What is known of the run now (frozen)."""
        return controller().loop.call(controller().load(self.handle), ANSWER)

    @property
    def run_id(self) -> str:
        """The run's id on its target."""
        return self.handle.partition("/")[2]

    @property
    def name(self) -> str:
        """The run's name, for people."""
        return self.run.spec.name

    @property
    def spec(self) -> JobSpec:
        """The job as it was submitted."""
        return self.run.spec

    @property
    def status(self) -> RunStatus:
        """State, phases, exit code; asks the target."""

        async def get() -> RunStatus:
            entry = await controller().settle(self.handle)
            return entry.run.status

        return controller().loop.call(get(), ANSWER)

    @property
    def state(self) -> str:
        """State as a word, e.g. ``running``; asks the target."""
        return self.status.state.value

    @property
    def log_path(self) -> str:
        """Where the whole log lies."""

        async def get() -> str:
            entry = await controller().settle(self.handle)
            return entry.log_path

        return controller().loop.call(get(), ANSWER)

    def read_log(self, offset: int, limit: int = 1 << 20) -> tuple[bytes, int]:
        """Up to `limit` bytes of the log from byte `offset`, and the offset after them.

        A negative `offset` counts from the end.
        """
        chunk = controller().loop.call(controller().read_log(self.handle, offset, limit), None)
        return chunk.data, chunk.offset

    @property
    def files(self) -> RunFiles:
        """The files of the run."""

        async def get() -> RunFiles:
            return controller().files(self.handle)

        return controller().loop.call(get())

    def logs(self, tail: int | None = None, step: str = "", rank: int = 0) -> str:
        """The log as text (bytes that are not UTF-8 are replaced), or its last `tail` lines.

        Parameters
        ----------
        step
            The log of this step or trial, by its name or id.
        rank
            The process whose log it is, of a run of several (``run.status.ranks``).
        """
        limit = None if tail is None else max(_QUOTE, tail * 4096)
        child = self.child(step).id if step else ""
        data = controller().loop.call(controller().logs(self.handle, limit, child, rank), None)
        text = data.decode("utf-8", "replace")
        return text if tail is None else "\n".join(text.splitlines()[-tail:])

    @property
    def children(self) -> tuple[ChildRun, ...]:
        """Steps of a pipeline, or trials of a sweep or AutoML job, oldest first; asks the target."""
        return self._children().runs

    def child(self, name: str) -> ChildRun:
        """The step or trial of a name or id, or of the beginning of one.

        Raises
        ------
        CommandError
            There is none, or there are several.
        """
        return self._children().find(name)

    def _children(self) -> ChildRuns:
        async def get() -> ChildRuns:
            return (await controller().settle(self.handle)).children

        return controller().loop.call(get(), ANSWER)

    def metrics(self) -> dict[str, list[tuple[int, float, float]]]:
        """Every metric as a list of ``(step, unix seconds, value)``, in logged order."""

        async def get() -> dict[str, list[tuple[int, float, float]]]:
            entry = await controller().settle(self.handle)
            return {
                name: list(zip(m.steps, m.times, m.values, strict=True)) for name, m in entry.metrics.metrics.items()
            }

        return controller().loop.call(get(), ANSWER)

    def telemetry(self) -> pandas.DataFrame:
        """Every tick of host and GPU telemetry: see :func:`~jupyter_amltrain.output.telemetry_frame.frame_of`."""
        from jupyter_amltrain.output.telemetry_frame import frame_of, read_whole

        async def get() -> dict[int, bytes]:
            run = (await controller().settle(self.handle)).run
            if not run.folder:
                return {}
            return await read_whole(controller().backend(run.target), run.run_id, max(1, run.status.nodes))

        return frame_of(controller().loop.call(get(), None))

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write the telemetry to a ``.csv`` or ``.parquet`` file, or the run's picture to a ``.png``.

        Raises
        ------
        CommandError
            Another ending, or a folder that is not there.
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
            raise CommandError(f"The picture of {self.handle} could not be drawn.", hint="See the worker's log.")
        file.write_bytes(picture.png)
        return file

    def dashboard(self, window: float = 600.0) -> View:
        """Live charts of the run, or of what an ended run left; shown when it is a cell's last word.

        Parameters
        ----------
        window
            Seconds that the charts show at first; 0 for all.

        Raises
        ------
        UnknownRun
            The run was deleted.
        """
        from jupyter_amltrain.output.mime import View

        self.run  # noqa: B018 - a value that cannot be shown would be an error and a repr
        return View(self, window)

    def widget(self, window: float = 600.0) -> Any:
        """The charts as plain ipywidgets, for front ends without our labextension."""
        from jupyter_amltrain.output.plain import plain_dashboard

        return plain_dashboard(controller(), self.handle, window)

    def result(self, name: str) -> Any:
        """The value of ``--out name``.

        Raises
        ------
        ResultMissing
            It was not asked for, or the run has not ended well.
        """
        run = self.run
        if name not in run.spec.out:
            raise ResultMissing(
                f"{self.handle} was submitted without --out {name}.",
                hint=f"It has: {', '.join(run.spec.out) or 'none'}.",
            )
        status = self.status
        if not status.state.terminal:
            raise ResultMissing(
                f"{self.handle} is {status.state.value}; {name} comes home when it has ended.",
                hint=f"%aml_runs wait {self.handle}",
            )
        run = self.run
        if name not in run.outputs:
            raise self._missing(run, name)
        return run.outputs[name]

    def _missing(self, run: Run, name: str) -> AmlTrainError:
        """Why the value `name` of an ended run is not here."""

        async def ask() -> Any:
            return (await controller().backend(run.target).outputs(run.run_id, [name])).get(name)

        if run.status.state is RunState.COMPLETED and run.folder:
            found = controller().loop.call(ask(), ANSWER)
            if isinstance(found, AmlTrainError):
                return found
        return ResultMissing(run.error or f"{self.handle} left no value {name}.")

    def accepted(self, timeout: float | None = None) -> TrackedRun:
        """Wait until the target has the job: from then on nothing of it is lost with us.

        Parameters
        ----------
        timeout
            Seconds; ``None`` waits as long as it takes.

        Raises
        ------
        AmlTrainError
            What refused it: too large, no such slot, target unreachable.
        TimeoutError
            It is still being packed or sent; that goes on.
        """
        controller().loop.call(controller().accepted(self.handle), timeout)
        return self

    def wait(self, timeout: float | None = None) -> TrackedRun:
        """Wait for the end; interrupting stops the waiting, never the run.

        Parameters
        ----------
        timeout
            Seconds; ``None`` waits for ever.

        Raises
        ------
        RunFailed, RunCanceled, RunLost
            The run did not complete.
        TimeoutError
            It goes on.
        """
        run = controller().loop.call(controller().wait(self.handle), timeout)
        if run.status.state is not RunState.COMPLETED:
            error = self._error(run)
            if error is not None:
                raise error
        return self

    def error(self) -> AmlTrainError | None:
        """The exception that :meth:`wait` raises, or ``None``."""
        return self._error(self.run)

    def _error(self, run: Run) -> AmlTrainError | None:
        log = ""
        if run.folder and run.status.reason != "deleted":  # with its target, and its log with it
            data = controller().loop.call(controller().logs(self.handle, _QUOTE), ANSWER)
            log = data.decode("utf-8", "replace")
        return as_error(run, log)

    def cancel(self) -> None:
        """Ask for the end; returns when requested. Ended runs are left alone."""
        controller().loop.call(controller().cancel(self.handle), ANSWER)

    def delete(self, *, without_mlflow: bool = False) -> None:
        """Remove the ended run's folder; its MLflow record stays.

        Parameters
        ----------
        without_mlflow
            Also if MLflow has no record of it: what it logged is lost.

        Raises
        ------
        UnrecordedRun
            MLflow has no record of it, and none can be written now.
        """
        controller().loop.call(controller().delete(self.handle, without_mlflow), ANSWER)

    def unrecorded(self) -> str:
        """Why MLflow has no record of what this ended run logged; empty where it has one.

        A record that could not be written is tried again.
        """
        return controller().loop.call(controller().unrecorded(self.handle), ANSWER)

    def record(self) -> RunRecord:
        """What a cell output says of the run; asks the target."""
        return controller().loop.call(controller().record(self.handle), ANSWER)

    def watch(self, paint: FrameCallback, rate: float = 2.0) -> Future[None]:
        """Call `paint(record, picture)` on the loop thread: now, on change, at the end.

        `picture` is a PNG with its size, present in the last calls of an ended run. The future
        ends with the watching; cancelling it stops the watching only.
        """
        return controller().loop.post(controller().watch(self.handle, paint, rate))

    def __repr__(self) -> str:
        return f"<TrackedRun {self.handle}>"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        from jupyter_amltrain.output.text_view import record_text

        async def get() -> RunRecord:
            return record_of(controller().entry(self.handle))

        try:
            record = controller().loop.call(get())
        except UnknownRun:  # IPython would print a traceback under the cell
            return {"text/plain": f"{self.handle}: not in the list any more. %aml_runs lists what there is."}
        return {
            RECORD_MIME: msgspec.to_builtins(record),
            "text/plain": record_text(record),
        }
