"""A run's frame in a cell's output, and the run as the cell's value, but not twice."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from jupyter_amltrain.api import TrackedRun


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
    from jupyter_amltrain.widgets.output import show

    show(run, rate)
    if getattr(shell, "kernel", None) is not None:  # a terminal has only the text, which `Out` prints
        _passed_over(shell, run)
    return run


def view_once(shell: Any, view: V) -> V:
    """Show a dashboard and return it such that IPython's ``Out`` does not draw it again."""
    view.show()
    _passed_over(shell, view)
    return view


def _passed_over(shell: Any, shown: Any) -> None:
    """Let the display hook of this cell, and of no other, pass over what has been shown."""
    cell = shell.execution_count

    def displayed() -> None:
        del shown._ipython_display_
        if shell.execution_count != cell:
            from IPython.display import display

            display(shown)  # type: ignore[no-untyped-call]

    shown._ipython_display_ = displayed


def terminal_line(shell: Any, wanted: bool) -> Callable[[str], Any] | None:
    """How to rewrite one line of an interactive terminal; ``None`` anywhere else."""
    if not wanted or getattr(shell, "kernel", None) is not None or not sys.stdout.isatty():
        return None

    def line(text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        sys.stdout.write(f"\r\x1b[K{text[:width]}")
        sys.stdout.flush()

    return line
