"""Values of ``--out`` become variables of the notebook.

The loop thread must never touch ``user_ns``, so values wait for the main thread: at
the end of ``--wait``, else at the start of the first cell after the run has ended.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.errors import AmlTrainError, ResultMissing

if TYPE_CHECKING:
    from jupyter_amltrain.run import TrackedRun


class OutVariables:
    """Runs of one notebook whose ``--out`` values are awaited.

    Parameters
    ----------
    shell
        Whose ``user_ns`` gets them.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._awaited: list[TrackedRun] = []

    def expect(self, run: TrackedRun) -> None:
        """Assign the values of `run` when it has ended."""
        self._awaited.append(run)

    def collect(self, info: Any = None) -> None:
        """Assign the values of ended runs; called before each cell, free when none is awaited."""
        if not self._awaited or threading.current_thread() is not threading.main_thread():
            return  # not from a subshell's cell
        for run in list(self._awaited):
            try:
                # The last known state: a cell must not wait for a target.
                known = run.run
                if not known.status.state.terminal:
                    continue
                self._awaited.remove(run)
                if known.status.state.value == "completed":
                    self.assign(run, strict=False)
                else:
                    names = ", ".join(known.spec.out)
                    print(f"{run.handle} {known.status.state.value}: {names} not set.")
            except AmlTrainError as error:  # deleted, or its target does not answer
                if run in self._awaited:
                    self._awaited.remove(run)
                print(f"{type(error).__name__}: {error}")

    def assign(self, run: TrackedRun, *, strict: bool = True) -> None:
        """Assign the values of an ended run and print them.

        Raises
        ------
        ResultMissing
            A value was not returned; only when `strict`, after assigning the others.
        """
        missing: list[ResultMissing] = []
        for name in run.spec.out:
            try:
                value = run.result(name)
            except ResultMissing as error:
                missing.append(error)
                if not strict:
                    print(f"{type(error).__name__}: {error}")
                continue
            self._shell.user_ns[name] = value
            shown = repr(value)
            print(f"{name} = {shown if len(shown) <= 80 else shown[:79] + '…'}  (from {run.handle})")
        if strict and missing:
            raise ResultMissing.of_all(run.handle, missing)
