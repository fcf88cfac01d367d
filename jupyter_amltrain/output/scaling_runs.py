"""``ScalingRuns``: the user's object for the runs of one measurement (``--scaling``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jupyter_amltrain.errors import RunCanceled
from jupyter_amltrain.output.mime import group_bundle
from jupyter_amltrain.output.run_group import group_text, run_group
from jupyter_amltrain.output.scaling_report import ScalingReport, scaling_report
from jupyter_amltrain.run import TrackedRun
from jupyter_amltrain.schema.record import RunRecord
from jupyter_amltrain.schema.run import RunHandle


class ScalingRuns:
    """Runs of a job at several widths, one after another; displayed as one table with a verdict.

    Attributes
    ----------
    runs
        By increasing width. Those whose turn has not come are *preparing*; they exist only as long as this kernel.
    """

    def __init__(self, handles: Sequence[RunHandle]) -> None:
        self.runs = tuple(map(TrackedRun, handles))

    @property
    def handles(self) -> tuple[RunHandle, ...]:
        """Handles of the runs."""
        return tuple(run.handle for run in self.runs)

    def records(self) -> list[RunRecord]:
        """Return the current records of the runs; queries the target."""
        return [run.record() for run in self.runs]

    def report(self) -> ScalingReport:
        """Return speed-up, efficiency and cost of each width, and the verdict; queries the target."""
        return scaling_report(self.records())

    def wait(self, timeout: float | None = None) -> ScalingRuns:
        """Wait until every run has ended; an interrupt stops the waiting, never the runs.

        Parameters
        ----------
        timeout
            Seconds for each run; ``None`` waits without a limit.

        Raises
        ------
        RunFailed, RunCanceled, RunLost
            A run did not complete: the first one; the further widths were not measured.
        TimeoutError
            A run is still going.
        """
        for run in self.runs:
            try:
                run.wait(timeout)
            except RunCanceled:
                # One that was not submitted follows one that cannot be compared; a whole one was measured.
                measured = run.record().scaling
                if run.run.folder and (measured is None or not measured.whole):
                    raise
        return self

    def cancel(self) -> None:
        """Cancel the run that is going, and those whose turn has not come."""
        for run in reversed(self.runs):
            run.cancel()

    def __repr__(self) -> str:
        return group_text(run_group(self.records(), self.handles))

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        return group_bundle(self.records())
