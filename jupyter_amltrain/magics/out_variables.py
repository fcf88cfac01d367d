"""Assigns values of ``--out`` to variables of the notebook.

Only the main thread may change ``user_ns``, so values are assigned at the end of ``--wait``, or before
the first cell that runs after the run has ended.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.errors import AmlTrainError, ResultMissing

if TYPE_CHECKING:
    from jupyter_amltrain.run import TrackedRun

#: Methods of values that a notebook shows as a picture, such as a figure that came back.
_PICTURES = ("_repr_png_", "_repr_jpeg_", "_repr_svg_")
#: Lines of a value in a terminal.
_MAX_LINES = 10


class OutVariables:
    """Runs of one notebook whose ``--out`` values are awaited.

    Parameters
    ----------
    shell
        Shell whose ``user_ns`` gets the values.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._awaited: list[TrackedRun] = []
        self._assigned: dict[str, tuple[Any, str]] = {}  #: value and run of each variable

    def expect(self, run: TrackedRun) -> None:
        """Assign the values of `run` when it has ended."""
        self._awaited.append(run)

    def collect(self, info: Any = None) -> None:
        """Assign the values of ended runs; called before each cell, and cheap if no run is awaited."""
        if not self._awaited or threading.current_thread() is not threading.main_thread():
            return  # a cell of a subshell
        for run in list(self._awaited):
            try:
                # The last known state: a cell must not wait for a target.
                last_known = run.run
                if not last_known.status.state.terminal:
                    continue
                self._awaited.remove(run)
                if last_known.status.state.value == "completed":
                    self.assign(run, strict=False)
                else:
                    self._unset(run, last_known.spec.out_names)
            except AmlTrainError as error:  # deleted, or its target does not respond
                if run in self._awaited:
                    self._awaited.remove(run)
                print(f"{type(error).__name__}: {error}")

    def _unset(self, run: TrackedRun, names: Sequence[str]) -> None:
        """Delete the values of earlier runs: the cell must not take them for those of a run that failed."""
        old = []
        for name in names:
            value, handle = self._assigned.pop(name, (None, ""))
            if handle and self._shell.user_ns.get(name) is value:
                del self._shell.user_ns[name]
                old.append(f"{name} of {handle}")
        deleted = f" (deleted: {', '.join(old)})" if old else ""
        print(f"{run.handle} {run.run.status.state.value}: {', '.join(names)} not set{deleted}.")

    def assign(self, run: TrackedRun, *, strict: bool = True) -> None:
        """Assign the values of an ended run and print them.

        Raises
        ------
        ResultMissing
            A value was not returned; only if `strict`, after assigning the others.
        """
        from jupyter_amltrain.output.result_value import values_that_share
        from jupyter_amltrain.schema.job import EVERY

        missing: list[ResultMissing] = []
        together, notes = values_that_share(run)
        for note in notes:
            print(note)
        for name in run.results if EVERY in run.spec.out else run.spec.out:
            try:
                if name in together:
                    value = together[name]
                else:
                    value = run.result(name, allow_pickle=run.spec.allow_pickle, lazy=True)
            except ResultMissing as error:
                missing.append(error)
                if not strict:
                    print(f"{type(error).__name__}: {error}")
                continue
            self._shell.user_ns[name] = value
            self._assigned[name] = value, run.handle
            self._echo(name, value, run)
        if strict and missing:
            raise ResultMissing.of_all(run.handle, missing)

    def _echo(self, name: str, value: Any, run: TrackedRun) -> None:
        """Print a value that came back: in one line, or a table or figure below its name."""
        forms = (*_PICTURES, "_repr_html_")
        if hasattr(self._shell, "kernel") and any(hasattr(type(value), form) for form in forms):
            from IPython import display

            print(f"{name}  (from {run.handle}):")
            display.display(value)  # type: ignore[no-untyped-call]
            return
        shown = _text(value)
        if "\n" in shown:
            print(f"{name}  (from {run.handle}):\n{shown}")
        else:
            print(f"{name} = {shown if len(shown) <= 80 else shown[:79] + '…'}  (from {run.handle})")


def _text(value: Any) -> str:
    """Return a value as text; of a long table the first and the last rows, of another one the first lines."""
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(value, pandas.DataFrame | pandas.Series):
        return str(value.to_string(max_rows=_MAX_LINES))
    lines = repr(value).splitlines()
    return "\n".join([*lines[:_MAX_LINES], "…"] if len(lines) > _MAX_LINES else lines)
