"""The output of a cell: one MIME bundle, drawn by our renderer, kept by the notebook."""

from __future__ import annotations

import base64
import sys
import uuid
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.output.plain import wanted
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


Paint = Callable[[RunRecord, "Picture | None"], None]


class Watchable(Protocol):
    """A run that can be watched; `api.TrackedRun` is one."""

    handle: Any

    def record(self) -> RunRecord:
        """The record now."""

    def watch(self, paint: Paint, rate: float) -> Any:
        """Call `paint(record, picture)` on the loop, now and on change, to the end."""

    def widget(self, window: float) -> Any:
        """Plain ipywidgets of the charts."""


def bundle_of(record: RunRecord, picture: Picture | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The MIME bundle of a record, and its metadata."""
    bundle: dict[str, Any] = {
        RECORD_MIME: msgspec.to_builtins(record),
        "text/plain": record_text(record),
    }
    if picture is None:
        return bundle, {}
    bundle["image/png"] = base64.b64encode(picture.png).decode()
    return bundle, {"image/png": {"width": picture.width, "height": picture.height}}


def show(run: Watchable, rate: float = 2.0, view: str = "run", window: float = 600.0) -> None:
    """Display a run in the current cell and keep it current until it has ended.

    Parameters
    ----------
    rate
        Frames a second, at most.
    view
        ``run``, or ``dashboard`` for the charts only.
    window
        Seconds that live charts show at first; 0 for all.
    """
    from IPython import get_ipython

    shell = get_ipython()
    if getattr(shell, "kernel", None) is None:
        if view == "dashboard":  # somebody asked for it
            print(record_text(run.record()))
        elif sys.stdout.isatty():
            print(state_line(run.record()))
        return
    _show_in_kernel(shell, run, rate, view, window)


def _show_in_kernel(shell: Any, run: Watchable, rate: float, view: str, window: float) -> None:
    from IPython.display import display

    display_id = uuid.uuid4().hex

    def seen(record: RunRecord) -> RunRecord:
        return msgspec.structs.replace(record, view=view, window=window)

    display(bundle_of(seen(run.record()))[0], raw=True, display_id=display_id)  # type: ignore[no-untyped-call]
    publisher = shell.display_pub
    # Taken now, on the main thread: later another cell may be the shell's parent.
    parent = shell.kernel.get_parent("shell")
    last: list[Any] = [None]

    def paint(record: RunRecord, picture: Picture | None) -> None:
        bundle, metadata = bundle_of(seen(record), picture)
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

    run.watch(paint, rate)
    if wanted():
        display(run.widget(window))  # type: ignore[no-untyped-call]


class View:
    """The live charts of a run or monitor.

    Parameters
    ----------
    run
        What is watched.
    window
        Seconds that the charts show at first; 0 for all.

    Raises
    ------
    CommandError
        The window is no number of seconds.
    """

    def __init__(self, run: Watchable, window: float = 600.0) -> None:
        self._run, self._window = run, seconds_of(window)

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


def seconds_of(window: Any) -> float:
    """A window as a caller gave it, in seconds; 0 for all."""
    if isinstance(window, (int, float)) and not isinstance(window, bool) and 0 <= window < float("inf"):
        return float(window)
    raise CommandError(f"window={window!r}: it is a number of seconds, 0 for all.", hint="Try: window=600")
