"""Interface of the controller for views of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from jupyter_amltrain.kernel.monitors import Monitors
    from jupyter_amltrain.kernel.run_row import StreamSummary
    from jupyter_amltrain.kernel.store import Entry, RunStore
    from jupyter_amltrain.loop import LoopThread
    from jupyter_amltrain.schema.run import RunHandle
    from jupyter_amltrain.state_dir import StateRoot


class RunProvider(Protocol):
    """Runs and monitors for the panel, dashboards and plain widgets; the controller is one. Loop thread only."""

    root: StateRoot
    store: RunStore
    monitors: Monitors

    @property
    def loop(self) -> LoopThread:
        """The loop thread."""

    async def refresh(self, target: str | None = None) -> None:
        """List the runs of a target, or of all; never fails for a target that does not respond."""

    async def source(self, handle: str) -> Entry:
        """Return the entry of a run or monitor, with its streams up to date."""

    async def stream_summary(self, handle: RunHandle) -> StreamSummary:
        """Return a summary of the streams of an ended run, read without keeping them."""

    def change_viewers(self, handle: RunHandle, more: int) -> None:
        """Add (1) or remove (-1) a viewer of a run."""

    def change_viewers_of(self, handle: str, more: int) -> None:
        """Add (1) or remove (-1) a viewer of a run or monitor."""
