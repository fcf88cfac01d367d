"""Where MLflow's own page shows a run."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.panel import protocol
from jupyter_amltrain.panel.protocol import MlflowReply, Reply
from jupyter_amltrain.spec.run import Run
from jupyter_amltrain.state import project_store

if TYPE_CHECKING:
    from jupyter_amltrain.controller import Controller

#: Seconds that an answer waits for a server that is starting.
PATIENCE = 1.0


class MlflowAnswers:
    """Starts MLflow's page, one for each project."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._starting: dict[str, asyncio.Task[dict[str, Any]]] = {}

    def ops(self) -> dict[type, Callable[[Any], Coroutine[Any, Any, Reply]]]:
        """What is answered here."""
        return {protocol.OpenMlflow: self._open}

    async def _open(self, asked: protocol.OpenMlflow) -> MlflowReply:
        controller = self._controller
        run = controller.entry(await controller.find(asked.handle)).run
        if why := why_not(run):
            await controller.settle(run.handle)  # its import is asked for if nobody has
            return MlflowReply(why=why)
        task = self._starting.get(run.project)
        if task is None:
            task = controller.loop.start(self._start(run.project), f"MLflow's page of {run.project}")
            self._starting[run.project] = task
        await asyncio.wait({task}, timeout=PATIENCE)
        if not task.done():
            return MlflowReply()
        self._starting.pop(run.project, None)  # asked again it is looked for again: it may have ended
        found = task.result()
        if why := str(found.get("why", "")):
            return MlflowReply(why=why)
        experiment = await controller.loop.offload(_experiment, run.project, run.tracking_id)
        place = f"#/experiments/{experiment}/runs/{run.tracking_id}" if experiment else ""
        # A path at the server that the browser has open: its host name and port there are not known here.
        return MlflowReply(url=f"{found.get('path') or found['url']}{place}")

    async def _start(self, project: str) -> dict[str, Any]:
        try:
            return await self._controller.open_ui(project)
        except AmlTrainError as error:
            return {"why": str(error)}


def why_not(run: Run) -> str:
    """Why MLflow's page cannot show a run, one sentence; empty when it can."""
    if run.tracking == "direct" or run.spec.tracking == "direct":
        return f"{run.handle} was recorded by the tracking server that its script chose: look for it there."
    if not run.status.state.terminal:
        return "MLflow's record of a run is written when it has ended."
    if not run.project:
        return f"No MLflow store is known for {run.handle}: its target leaves no record."
    if run.tracking.startswith("failed"):
        return f"MLflow's record of {run.handle} could not be written: {run.tracking.partition(':')[2].strip()}"
    if run.tracking != "imported":
        return f"MLflow's record of {run.handle} is being written. Try again in a moment."
    return ""


def _experiment(project: str, tracking_id: str) -> str:
    """Id of the experiment that has the run, from the store's own table; empty when it cannot be told."""
    path = Path(project_store(project)) / "mlflow.db"
    with (
        contextlib.suppress(sqlite3.Error, OSError),
        contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)) as store,
    ):
        row = store.execute("SELECT experiment_id FROM runs WHERE run_uuid = ?", (tracking_id,)).fetchone()
        return str(row[0]) if row else ""
    return ""
