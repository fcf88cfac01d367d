"""What a magic shows in its cell's output: runs and views once, text, links, a sign-in."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from jupyter_amltrain.commands.registry import Result
    from jupyter_amltrain.run import TrackedRun

#: A cell ends when its target has accepted the job, so that a kernel that dies loses nothing: milliseconds
#: as a rule, and at most this many seconds.
ACCEPT_TIMEOUT_S = 5.0


class View(Protocol):
    """A dashboard."""

    def show(self) -> Any:
        """Display it."""


V = TypeVar("V", bound=View)


def show_once(shell: Any, run: TrackedRun, rate: float = 2.0) -> TrackedRun:
    """Display the run and return it such that IPython's ``Out`` does not draw it again.

    In a later cell the name of the run shows it as ever.

    Parameters
    ----------
    rate
        Frames a second, at most.
    """
    from jupyter_amltrain.output.mime import show

    show(run, rate)
    if getattr(shell, "kernel", None) is not None:  # a terminal has only the text, which `Out` prints
        _skip_display(shell, run)
    return run


def show_submitted(shell: Any, run: TrackedRun, rate: float, *, wait: bool, line: Callable[[str], Any] | None) -> None:
    """Show a run that was just submitted until its target has accepted it, or with `wait` until its end.

    Raises
    ------
    RunError
        The wait was interrupted, or the run that was waited for failed.
    """
    from jupyter_amltrain.commands import runs

    with runs.interruptible(run):
        show_once(shell, run, rate)
        with contextlib.suppress(TimeoutError):  # a large folder is being copied: the cell need not wait
            run.accepted(ACCEPT_TIMEOUT_S)
        if wait:
            runs.wait(run, line=line)


def show_result(shell: Any, result: Result, rate: float) -> Any:
    """Show what a command answers; returns the magic's value."""
    if result.html:
        from IPython import display

        # IPython's own is not typed
        show: Any = display.display
        show({"text/plain": result.text, "text/html": result.html}, raw=True)
    elif text := result.text.rstrip("\n") if result.verbatim else result.text:
        print(text)
    if result.notice:
        print(result.notice)
    if result.value is None or result.shown:
        return result.value
    if hasattr(result.value, "handle") and hasattr(result.value, "spec"):
        return show_once(shell, result.value, rate)
    return view_once(shell, result.value)


def view_once(shell: Any, view: V) -> V:
    """Show a dashboard and return it such that IPython's ``Out`` does not draw it again."""
    view.show()
    _skip_display(shell, view)
    return view


def _skip_display(shell: Any, shown: Any) -> None:
    """Let the display hook of this cell, and of no other, skip what has been shown."""
    cell = shell.execution_count

    def displayed() -> None:
        del shown._ipython_display_
        if shell.execution_count != cell:
            from IPython.display import display

            display(shown)  # type: ignore[no-untyped-call]

    shown._ipython_display_ = displayed


def terminal_line(shell: Any, enabled: bool) -> Callable[[str], Any] | None:
    """How to rewrite one line of an interactive terminal; ``None`` anywhere else."""
    if not enabled or getattr(shell, "kernel", None) is not None or not sys.stdout.isatty():
        return None

    def line(text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        sys.stdout.write(f"\r\x1b[K{text[:width]}")
        sys.stdout.flush()

    return line


def sign_in_shower() -> Callable[[dict[str, Any]], None]:
    """Shows a sign-in as a link and a code, and removes both when it has ended."""
    handle: Any = None

    def show(event: dict[str, Any]) -> None:
        nonlocal handle
        if event.get("kind") != "sign-in":
            return  # connecting takes a second, and the line at the end is enough
        from IPython import display

        from jupyter_amltrain.commands.connect import sign_in_html

        # IPython's own is not typed
        first: Any = display.display
        ended = not event.get("text")
        data = {"text/plain": "The sign-in has ended." if ended else event["text"]}
        if not ended:
            data["text/html"] = sign_in_html(event)
        if handle is not None:
            handle.update(data, raw=True)
        elif not ended:
            handle = first(data, raw=True, display_id=True)

    return show
