"""Output of magics: runs and views (displayed once), text, links, sign-ins."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from jupyter_amltrain.commands.registry import Result
    from jupyter_amltrain.output.scaling_runs import ScalingRuns
    from jupyter_amltrain.run import TrackedRun

#: Maximum wait of a cell until its target has accepted the job, so that the job survives the kernel; usually
#: milliseconds (seconds).
ACCEPT_TIMEOUT_S = 5.0


class RunView(Protocol):
    """A dashboard."""

    def show(self) -> Any:
        """Display it."""


V = TypeVar("V", bound=RunView)


def show_once(shell: Any, run: TrackedRun, rate: float = 2.0, *, submitted: bool = False) -> TrackedRun:
    """Display the run and return it; IPython's ``Out`` of this cell does not display it again.

    In later cells the run is displayed as usual.

    Parameters
    ----------
    rate
        Maximum number of frames per second.
    submitted
        The cell has just submitted the run.
    """
    from jupyter_amltrain.output.mime import show

    show(run, rate, submitted=submitted)
    if getattr(shell, "kernel", None) is not None:  # a terminal has only the text, which `Out` prints
        _skip_display(shell, run)
    return run


def show_submitted(shell: Any, run: TrackedRun, rate: float, *, wait: bool, line: Callable[[str], Any] | None) -> None:
    """Show a run that was just submitted until its target has accepted it, or with `wait` until its end.

    Raises
    ------
    RunError
        The wait was interrupted, or the run failed.
    """
    from jupyter_amltrain.commands import runs
    from jupyter_amltrain.errors import RunFailed

    with runs.interruptible(run):
        show_once(shell, run, rate, submitted=True)
        with contextlib.suppress(TimeoutError):  # e.g. a large folder is being copied: the cell does not wait for it
            run.accepted(ACCEPT_TIMEOUT_S)
        if wait:
            try:
                runs.wait(run, line=line)
            except RunFailed as error:
                # A terminal has no output above the error that would show the log.
                error.log_is_shown = getattr(shell, "kernel", None) is not None
                raise


def show_measured(shell: Any, scaling: ScalingRuns, rate: float, *, wait: bool) -> None:
    """Show the runs of a measurement as one table, with `wait` until all have ended.

    Raises
    ------
    RunError
        The wait was interrupted, or a run failed.
    """
    from jupyter_amltrain.commands import runs
    from jupyter_amltrain.output.mime import show_group

    has_kernel = getattr(shell, "kernel", None) is not None
    if has_kernel:
        show_group(scaling.runs, rate)
        _skip_display(shell, scaling)
    with runs.interruptible(scaling.runs[0]):
        with contextlib.suppress(TimeoutError):
            scaling.runs[0].accepted(ACCEPT_TIMEOUT_S)
        if wait:
            scaling.wait()


def show_result(shell: Any, result: Result, rate: float) -> Any:
    """Show the result of a command; return the magic's value."""
    if result.html:
        from IPython import display

        # IPython's function is not typed.
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
    """Show a dashboard and return it; IPython's ``Out`` of this cell does not display it again."""
    view.show()
    _skip_display(shell, view)
    return view


def _skip_display(shell: Any, shown: Any) -> None:
    """Make the display hook of this cell, and of no other, skip an object that was displayed."""
    cell = shell.execution_count

    def displayed() -> None:
        del shown._ipython_display_
        if shell.execution_count != cell:
            from IPython.display import display

            display(shown)  # type: ignore[no-untyped-call]

    shown._ipython_display_ = displayed


def terminal_line(shell: Any, enabled: bool) -> Callable[[str], Any] | None:
    """Return a function that rewrites one line of an interactive terminal; ``None`` elsewhere."""
    if not enabled or getattr(shell, "kernel", None) is not None or not sys.stdout.isatty():
        return None

    def line(text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        sys.stdout.write(f"\r\x1b[K{text[:width]}")
        sys.stdout.flush()

    return line


def sign_in_shower() -> Callable[[dict[str, Any]], None]:
    """Return a function that shows a sign-in as a link and a code, and removes both when it has ended."""
    handle: Any = None

    def show(event: dict[str, Any]) -> None:
        nonlocal handle
        if event.get("kind") != "sign-in":
            return  # connecting takes a second: the result line is enough
        from IPython import display

        # IPython's function is not typed.
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


def sign_in_html(event: dict[str, Any]) -> str:
    """Return a sign-in as a link to click and a code to copy."""
    from html import escape

    text, url, code = (str(event.get(key) or "") for key in ("text", "url", "code"))
    if not url.startswith("https://"):
        return f"<p>{escape(text)}</p>"
    minutes = max(1, int(event.get("expires") or 0) // 60)
    return (
        f'<p>To sign in, open <a href="{escape(url, quote=True)}" target="_blank" rel="noopener">'
        f"{escape(url)}</a> and enter the code <code>{escape(code)}</code> (valid for {minutes} minutes).</p>"
    )
