"""Runs of the targets, monitors, and MLflow's pages."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from jupyter_amltrain.api.compute_targets import current_target
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.session import controller
from jupyter_amltrain.state import working_folder
from jupyter_amltrain.tracked_run import ANSWER, TrackedRun

if TYPE_CHECKING:
    from jupyter_amltrain.monitor import Monitor


def runs(target: str | None = None) -> list[TrackedRun]:
    """Every run that the targets know, newest first."""
    return [TrackedRun(handle) for handle in controller().loop.call(controller().handles(target), ANSWER)]


def attach(handle: str = "last") -> TrackedRun:
    """A run by handle, id, unambiguous beginning of one, or ``last``; from any kernel."""
    return TrackedRun(controller().loop.call(controller().resolve(handle), ANSWER))


def monitor(
    target: str | None = None, gpus: Iterable[int] | None = None, window: float = 600.0, rate: float = 1.0
) -> Monitor:
    """Sample the GPUs and the host of a target without a run.

    Parameters
    ----------
    target
        Name of the target; default the one in use.
    gpus
        Indices of GPUs; default all.
    window
        Seconds that the charts show at first; 0 for all.
    rate
        Samples a second, at most 10.

    Raises
    ------
    CommandError
        No such GPU, a rate out of range, or a target that cannot be monitored.
    """
    from jupyter_amltrain.monitor import Monitor
    from jupyter_amltrain.widgets.view import seconds_of

    seconds_of(window)  # before anything is started
    if not 0 < rate <= 10:
        raise CommandError(f"rate {rate:g}: a monitor takes at most 10 samples a second.", hint="Try: --rate 1")
    c = controller()
    name = target or current_target()
    chosen = None if gpus is None else tuple(gpus)
    return Monitor(c.loop.call(c.monitors.open(name, chosen, 1 / rate), ANSWER), window)


def ui(project: str | os.PathLike[str] | None = None) -> str:
    """URL of MLflow's own pages for a project (default: this folder's); started if need be."""
    return mlflow_page(project)[0]


def mlflow_page(project: str | os.PathLike[str] | None = None) -> tuple[str, str]:
    """URL of MLflow's own pages for a project, and their path at the Jupyter server (empty without one).

    A link in a cell's output needs the path: only the browser knows under which name and port it reaches the server.
    """
    c = controller()
    folder = str(Path(project or working_folder()).resolve())
    answer = c.loop.call(c.open_ui(folder), 180)
    return str(answer["url"]), str(answer["path"])
