"""A dashboard as a value of a cell: shown when it is the cell's last word, or by :meth:`View.show`."""

from __future__ import annotations

from typing import Any

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.spec.record import RECORD_MIME
from jupyter_amltrain.widgets.output import Watchable, bundle_of, show


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
