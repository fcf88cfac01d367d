"""The project's MLflow store: its only importer, and MLflow's own web page.

Jobs log to the agent's sink, which leaves a journal and artifacts in the run folder.
Only this package turns them into rows, under one lock, so that no two processes ever migrate
or write one SQLite file at the same time. All of it runs in the worker process; nothing
is imported before its first use.
"""

from __future__ import annotations

from typing import Any

__all__ = ["busy", "import_run", "record_live", "start_ui", "stop_ui", "warm"]


def import_run(run_dir: str, project: str, *, handle: str | None = None) -> dict[str, Any]:
    """Replay a run folder into the MLflow store of its project.

    See :func:`jupyter_amltrain.tracking.importer.import_run`.
    """
    from jupyter_amltrain.tracking import importer

    return importer.import_run(run_dir, project, handle=handle)


def record_live(run_dir: str, project: str, *, handle: str) -> dict[str, Any]:
    """Bring the record of a living run up to date.

    See :func:`jupyter_amltrain.tracking.live.record_live`.
    """
    from jupyter_amltrain.tracking import live

    return live.record_live(run_dir, project, handle=handle)


def busy() -> bool:
    """Return whether this process serves something beside its requests: MLflow's page ends with it."""
    import sys

    ui = sys.modules.get("jupyter_amltrain.tracking.ui")
    return ui is not None and bool(ui.serves())


def warm() -> dict[str, Any]:
    """Import the modules of the first import (2 to 5 s), while the first job is still running."""
    import importlib

    from jupyter_amltrain.tracking import mlflow_private

    for name in (mlflow_private.STORE, "matplotlib.backends.backend_agg", "matplotlib.figure"):
        importlib.import_module(name)
    return {"mlflow": importlib.import_module("mlflow").__version__}


def start_ui(project: str, *, keep: bool = False) -> dict[str, Any]:
    """Start MLflow's web page for a project, or find the running one.

    See :func:`jupyter_amltrain.tracking.ui.start`.
    """
    from jupyter_amltrain.tracking import ui

    return ui.start(project, keep=keep)


def stop_ui(project: str) -> dict[str, Any]:
    """Stop the page that :func:`start_ui` of this process started."""
    from jupyter_amltrain.tracking import ui

    return ui.stop(project)
