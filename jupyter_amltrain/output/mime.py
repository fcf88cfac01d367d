"""Cell outputs as MIME bundles, rendered by the labextension and saved in the notebook."""

from __future__ import annotations

import base64
import sys
import uuid
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.output.plain import needs_plain_widgets
from jupyter_amltrain.output.text_view import record_text, state_line
from jupyter_amltrain.schema.record import RECORD_MIME, RunRecord


class Picture(Protocol):
    """A PNG and its size in CSS pixels."""

    @property
    def png(self) -> bytes: ...

    @property
    def width(self) -> int: ...

    @property
    def height(self) -> int: ...


FrameCallback = Callable[[RunRecord, "Picture | None"], None]


class Watchable(Protocol):
    """Interface of what a cell can show: :class:`~jupyter_amltrain.run.TrackedRun` or a monitor."""

    handle: Any

    def record(self) -> RunRecord:
        """Return the current record."""

    def watch(self, on_frame: FrameCallback, rate: float) -> Any:
        """Call `on_frame(record, picture)` on the loop thread, now and on every change until the end."""

    def widget(self, window: float) -> Any:
        """Return the charts as plain ipywidgets."""


def bundle_of(record: RunRecord, picture: Picture | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the MIME bundle of a record and its metadata."""
    bundle: dict[str, Any] = {
        RECORD_MIME: msgspec.to_builtins(record),
        "text/plain": record_text(record),
    }
    if picture is None:
        return bundle, {}
    bundle["image/png"] = base64.b64encode(picture.png).decode()
    return bundle, {"image/png": {"width": picture.width, "height": picture.height}}


def show(run: Watchable, rate: float = 2.0, view: str = "run", window: float = 600.0) -> None:
    """Display a run in the current cell and update the output until the run has ended.

    Parameters
    ----------
    rate
        Maximum updates per second.
    view
        ``run``, or ``dashboard`` for the charts only.
    window
        Seconds that live charts show initially; 0 = whole run.
    """
    from IPython import get_ipython

    shell = get_ipython()
    if getattr(shell, "kernel", None) is None:
        if view == "dashboard":  # explicitly requested
            print(record_text(run.record()))
        elif sys.stdout.isatty():
            print(state_line(run.record()))
        return
    _show_in_kernel(shell, run, rate, view, window)


def _show_in_kernel(shell: Any, run: Watchable, rate: float, view: str, window: float) -> None:
    from IPython.display import display

    display_id = uuid.uuid4().hex

    def with_view(record: RunRecord) -> RunRecord:
        return msgspec.structs.replace(record, view=view, window=window)

    display(bundle_of(with_view(run.record()))[0], raw=True, display_id=display_id)  # type: ignore[no-untyped-call]
    publisher = shell.display_pub
    # Read on the main thread now; the shell's parent changes when another cell runs.
    parent = shell.kernel.get_parent("shell")
    last: list[Any] = [None]

    def update(record: RunRecord, picture: Picture | None) -> None:
        bundle, metadata = bundle_of(with_view(record), picture)
        if bundle == last[0]:
            return
        last[0] = bundle
        publisher.session.send(
            publisher.pub_socket,
            "update_display_data",
            {"data": bundle, "metadata": metadata, "transient": {"display_id": display_id}},
            parent=parent,
            ident=publisher.topic,
        )

    run.watch(update, rate)
    if needs_plain_widgets():
        display(run.widget(window))  # type: ignore[no-untyped-call]


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
