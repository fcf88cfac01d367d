"""``RunList``: the runs that ``aml.runs()`` returns, a list that shows itself as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from jupyter_amltrain.kernel.session import controller
from jupyter_amltrain.run import ANSWER_TIMEOUT_S, TrackedRun

if TYPE_CHECKING:
    import pandas

    from jupyter_amltrain.output.run_table import RunTable
    from jupyter_amltrain.schema.run import Run, RunHandle

#: Maximum runs of the table that a list shows of itself.
MAX_SHOWN = 20


class RunList(list[TrackedRun]):
    """Runs, newest first. Slices are lists of runs, too.

    Examples
    --------
    >>> runs = aml.runs()
    >>> runs[:10].to_frame().sort_values("metrics.loss")
    """

    @overload
    def __getitem__(self, index: SupportsIndex) -> TrackedRun: ...

    @overload
    def __getitem__(self, index: slice) -> RunList: ...

    def __getitem__(self, index: SupportsIndex | slice) -> TrackedRun | RunList:
        if isinstance(index, slice):
            return RunList(super().__getitem__(index))
        return super().__getitem__(index)

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas frame with one row for each run.

        Columns are ``handle``, ``name``, ``target``, ``experiment``, ``state``, ``created`` (UTC), ``seconds`` (of
        running), then ``params.*``, ``metrics.*`` (last values), ``outputs.*`` and ``tags.*``.
        """
        import pandas

        from jupyter_amltrain.output.run_table import frame_rows

        rows = frame_rows(*read_runs([run.handle for run in self]))
        first = ["handle", "name", "target", "experiment", "state", "created", "seconds"]
        names = dict.fromkeys([*first, *(name for row in rows for name in row)])
        kinds = ("params.", "metrics.", "outputs.", "tags.")
        columns = first + [name for kind in kinds for name in names if name.startswith(kind)]
        frame = pandas.DataFrame(rows, columns=columns)
        frame["created"] = pandas.to_datetime(frame["created"], unit="s", utc=True)
        return frame

    def _table(self) -> RunTable:
        from jupyter_amltrain.output.run_table import run_table

        return run_table(*read_runs([run.handle for run in self[:MAX_SHOWN]]))

    def _hidden(self) -> str:
        return f"and {len(self) - MAX_SHOWN} more: slice the list, or use to_frame()" if len(self) > MAX_SHOWN else ""

    def _repr_html_(self) -> str:
        return f"{self._table().html()}<div>{self._hidden()}</div>" if self else "No runs."

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("\n".join(filter(None, (self._table().text(), self._hidden()))) if self else "No runs.")


def read_runs(handles: list[RunHandle]) -> tuple[list[Run], dict[RunHandle, dict[str, float]]]:
    """Return runs with their complete jobs, and the last values of their metrics."""

    async def get() -> tuple[list[Run], dict[RunHandle, dict[str, float]]]:
        own = controller()
        return [await own.load(handle) for handle in handles], await own.contents.last_metrics(handles, remote=True)

    return controller().loop.call(get(), ANSWER_TIMEOUT_S)
