"""Cell outputs as MIME bundles, rendered by the labextension and saved in the notebook."""

from __future__ import annotations

import asyncio
import base64
import sys
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.output.plain import needs_plain_widgets
from jupyter_amltrain.output.run_group import group_html, group_text, run_group
from jupyter_amltrain.output.run_html import PictureHtml, alt_text, run_html
from jupyter_amltrain.output.text_view import record_text, state_line
from jupyter_amltrain.schema.chart import ChartSet
from jupyter_amltrain.schema.group import GROUP_MIME
from jupyter_amltrain.schema.record import RECORD_MIME, LogTail, RunRecord, TelemetrySeries

FrameCallback = Callable[[RunRecord, "PictureHtml | None"], None]


class Watchable(Protocol):
    """Interface of what a cell can show: :class:`~jupyter_amltrain.run.TrackedRun` or a monitor."""

    handle: Any

    def record(self) -> RunRecord:
        """Return the current record."""

    def watch(self, on_frame: FrameCallback, rate: float) -> Any:
        """Call `on_frame(record, picture)` on the loop thread, now and on every change until the end."""

    def widget(self, window: float) -> Any:
        """Return the charts as plain ipywidgets."""


def bundle_of(record: RunRecord, picture: PictureHtml | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the MIME bundle of a record and its metadata."""
    bundle: dict[str, Any] = {
        RECORD_MIME: msgspec.to_builtins(record),
        "text/plain": record_text(record),
    }
    # JupyterLab draws the record: the HTML is for readers of the saved notebook, and for other front ends.
    if record.kind == "run" and (record.done or needs_plain_widgets()):
        bundle["text/html"] = run_html(record, picture)
    if picture is None:
        return bundle, {}
    bundle["image/png"] = base64.b64encode(picture.png).decode()
    return bundle, {"image/png": {"width": picture.width, "height": picture.height, "alt": alt_text(record)}}


def _listed(record: RunRecord) -> RunRecord:
    """Return a record without what a table of runs does not show: a hundred whole ones are megabytes."""
    return msgspec.structs.replace(
        record, telemetry=TelemetrySeries(), gpu=None, log=LogTail(), pictures=(), displays=(), charts=ChartSet()
    )


def group_bundle(records: Sequence[RunRecord]) -> dict[str, Any]:
    """Return the MIME bundle of several runs as one table."""
    group = run_group(records)
    return {
        GROUP_MIME: msgspec.to_builtins(group),
        "text/plain": group_text(group),
        "text/html": group_html(group),
    }


def show(
    run: Watchable, rate: float = 2.0, view: str = "run", window: float = 600.0, *, submitted: bool = False
) -> None:
    """Display a run in the current cell and update the output until the run has ended.

    Parameters
    ----------
    rate
        Maximum updates per second.
    view
        ``run``, or ``dashboard`` for the charts only.
    window
        Seconds that live charts show initially; 0 = whole run.
    submitted
        The cell has just submitted the run: if it has submitted others before, one table shows them all.
    """
    from IPython import get_ipython

    shell = get_ipython()
    if getattr(shell, "kernel", None) is None:
        if view == "dashboard":  # explicitly requested
            print(record_text(run.record()))
        elif sys.stdout.isatty():
            print(state_line(run.record()))
        return
    if submitted:
        SubmittedRuns.of_cell(shell).add(run, rate)
    else:
        _show_in_kernel(shell, run, rate, view, window)
    if needs_plain_widgets() and not (submitted and SubmittedRuns.of_cell(shell).several):
        from IPython.display import display

        display(run.widget(window))  # type: ignore[no-untyped-call]


def show_group(runs: Sequence[Watchable], rate: float = 2.0) -> None:
    """Display runs in the current cell as one table of their own, and update it until they have ended."""
    from IPython import get_ipython

    group = SubmittedRuns(CellOutput(get_ipython()))
    group.show(runs, rate)


class CellOutput:
    """One output of the current cell; it can be updated at any time and from any thread."""

    def __init__(self, shell: Any) -> None:
        self._id = uuid.uuid4().hex
        self._publisher = shell.display_pub
        # Read on the main thread now; the shell's parent changes when another cell runs.
        self._parent = shell.kernel.get_parent("shell")
        self._last: dict[str, Any] | None = None

    @property
    def cell(self) -> str:
        """Id of the execution that has created the output."""
        return str(self._parent.get("header", {}).get("msg_id", ""))

    def show(self, bundle: dict[str, Any]) -> None:
        """Display the first content; call it on the main thread."""
        from IPython.display import display

        display(bundle, raw=True, display_id=self._id)  # type: ignore[no-untyped-call]

    def update(self, bundle: dict[str, Any], metadata: dict[str, Any]) -> None:
        """Replace the content."""
        if bundle == self._last:
            return
        self._last = bundle
        self._publisher.session.send(
            self._publisher.pub_socket,
            "update_display_data",
            {"data": bundle, "metadata": metadata, "transient": {"display_id": self._id}},
            parent=self._parent,
            ident=self._publisher.topic,
        )


def _show_in_kernel(shell: Any, run: Watchable, rate: float, view: str, window: float) -> None:
    def with_view(record: RunRecord) -> RunRecord:
        return msgspec.structs.replace(record, view=view, window=window)

    output = CellOutput(shell)
    output.show(bundle_of(with_view(run.record()))[0])
    run.watch(lambda record, picture: output.update(*bundle_of(with_view(record), picture)), rate)


class SubmittedRuns:
    """The runs that one cell has submitted, in one output: a single run as itself, several as a table.

    Runs are added on the main thread; records come on the loop thread.
    """

    _latest: SubmittedRuns | None = None

    def __init__(self, output: CellOutput) -> None:
        self._output = output
        self._records: dict[str, RunRecord] = {}
        self._sending: asyncio.TimerHandle | None = None

    @classmethod
    def of_cell(cls, shell: Any) -> SubmittedRuns:
        """Return the runs that the current cell has submitted so far."""
        output = CellOutput(shell)
        latest = cls._latest
        if latest is None or not output.cell or latest._output.cell != output.cell:
            latest = cls._latest = cls(output)
        return latest

    @property
    def several(self) -> bool:
        """Whether the output is a table."""
        return len(self._records) > 1

    def show(self, runs: Sequence[Watchable], rate: float) -> None:
        """Show several runs, with at most `rate` updates per second of each."""
        for run in runs:
            record = run.record()
            self._records = {**self._records, record.handle: _listed(record)}
        self._output.show(group_bundle(list(self._records.values())))
        for run in runs:
            run.watch(lambda record, picture: self._on_frame(record, picture, rate), rate)

    def add(self, run: Watchable, rate: float) -> None:
        """Show one more run, with at most `rate` updates per second."""
        record = run.record()
        self._records = {**self._records, record.handle: _listed(record)}
        if self.several:
            self._output.update(group_bundle(list(self._records.values())), {})
        else:
            self._output.show(bundle_of(record)[0])
        run.watch(lambda record, picture: self._on_frame(record, picture, rate), rate)

    def _on_frame(self, record: RunRecord, picture: PictureHtml | None, rate: float) -> None:
        self._records = {**self._records, record.handle: _listed(record)}
        if not self.several:
            self._output.update(*bundle_of(record, picture))
        elif all(record.done for record in self._records.values()):
            if self._sending is not None:
                self._sending.cancel()
            self._send()  # at once: a notebook that is executed to be saved does not wait for it
        elif self._sending is None:
            # Each run has frames of its own: many runs must not multiply the messages.
            pause = max(1 / rate, len(self._records) / 100)
            self._sending = asyncio.get_running_loop().call_later(pause, self._send)

    def _send(self) -> None:
        self._sending = None
        self._output.update(group_bundle(list(self._records.values())), {})


class View:
    """The live charts of a run or monitor.

    Parameters
    ----------
    run
        Run or monitor to show.
    window
        Seconds that the charts show initially; 0 = whole run.

    Raises
    ------
    CommandError
        The window is not a number of seconds.
    """

    def __init__(self, run: Watchable, window: float = 600.0) -> None:
        self._run, self._window = run, parse_window(window)

    def show(self) -> None:
        """Display the charts in the current cell."""
        show(self._run, view="dashboard", window=self._window)

    def _ipython_display_(self) -> None:
        self.show()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        bundle = bundle_of(self._run.record())[0]
        bundle[RECORD_MIME].update(view="dashboard", window=self._window)
        return bundle

    def __repr__(self) -> str:
        return f"<View of {self._run.handle}>"


def parse_window(window: Any) -> float:
    """Validate a window and return it in seconds; 0 = whole run."""
    if isinstance(window, (int, float)) and not isinstance(window, bool) and 0 <= window < float("inf"):
        return float(window)
    raise CommandError(f"window must be seconds (0 = whole run), got {window!r}.", hint="Example: window=600")
