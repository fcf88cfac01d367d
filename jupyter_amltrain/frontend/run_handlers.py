"""Operations on runs: record, cancel, delete, resubmit, live dashboard, and the page in MLflow."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.commands.resubmit import resubmit
from jupyter_amltrain.commands.runs import MAX_NAMED, deletion_warning, not_ended_error
from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.frontend.protocol import Reply, Request, op
from jupyter_amltrain.inside.run_questions import read_stack, stack_text
from jupyter_amltrain.kernel.observers import RecordPicture
from jupyter_amltrain.kernel.run_record import record_of
from jupyter_amltrain.output.live import LiveDashboards
from jupyter_amltrain.output.mime import bundle_of
from jupyter_amltrain.output.run_group import group_html, group_text, run_group
from jupyter_amltrain.schema.group import MAX_GROUP_RUNS, RunGroup
from jupyter_amltrain.schema.record import RunRecord
from jupyter_amltrain.schema.run import Run, RunHandle
from jupyter_amltrain.state_dir import project_store
from jupyter_amltrain.tracking import team_ledger

if TYPE_CHECKING:
    from jupyter_amltrain.kernel.controller import Controller

#: Maximum wait of a reply for a picture; the client repeats the request (seconds).
PICTURE_TIMEOUT_S = 0.5
#: Maximum number of cached pictures.
MAX_PICTURES = 8
#: Maximum wait of a reply for the deletion of runs, or for their import into MLflow (seconds).
DELETE_TIMEOUT_S = 2.0
#: Maximum wait of a reply for a starting MLflow server (seconds).
MLFLOW_TIMEOUT_S = 1.0


class GetRun(Request, frozen=True, kw_only=True):
    """Get the full record of one run."""

    handle: str


class RunReply(Reply, frozen=True, kw_only=True):
    """Answer to :class:`GetRun`.

    Attributes
    ----------
    text, html
        The record for readers that cannot draw it; `html` only of an ended run.
    picture
        PNG of an ended run, base64, for the saved notebook; empty if it could not be drawn in time.
    width, height
        Its size in CSS pixels.
    alt
        What it shows, as text.
    """

    record: RunRecord
    text: str = ""
    html: str = ""
    picture: str = ""
    width: int = 0
    height: int = 0
    alt: str = ""


class GetGroup(Request, frozen=True, kw_only=True):
    """Get the table of several runs."""

    handles: tuple[str, ...]


class GroupReply(Reply, frozen=True, kw_only=True):
    """Answer to :class:`GetGroup`; `text` and `html` are for readers that cannot draw the group."""

    group: RunGroup
    text: str = ""
    html: str = ""


class CancelRun(Request, frozen=True, kw_only=True):
    """Cancel a run, or close a monitor."""

    handle: str


class CancelReply(Reply, frozen=True, kw_only=True):
    """Answer to :class:`CancelRun`; the run may take time to end after the cancel was accepted."""

    accepted: bool
    state: str


class OpenDashboard(Request, frozen=True, kw_only=True):
    """Open live widgets of a run or monitor on a page; the page repeats it until they are ready.

    Attributes
    ----------
    page
        Identifies one load of a page: each has widgets of its own.
    window
        Seconds that the charts show at first; 0 for all.
    """

    handle: str
    page: str
    window: float = 600.0


class DashboardReply(Reply, frozen=True, kw_only=True):
    """Answer to :class:`OpenDashboard`.

    Attributes
    ----------
    feed
        Id of the feed whose widget model was sent; empty while it is being created.
    reason
        Why no widgets will be created (no samples to show, for example); else empty.
    """

    feed: str = ""
    reason: str = ""


class FollowFeed(Request, frozen=True, kw_only=True):
    """Start or stop the data of a feed: a hidden one gets none.

    Attributes
    ----------
    seen
        Samples that the page already has, by node: only later ones are sent.
    view
        Name of the GPU charts that the user has chosen; empty for the default.
    """

    feed: str
    shown: bool
    seen: tuple[int, ...] = ()
    view: str = ""


class FollowReply(Reply, frozen=True, kw_only=True):
    """Answer to :class:`FollowFeed`; `known` is false for a feed that was closed."""

    known: bool


class DeleteRuns(Request, frozen=True, kw_only=True):
    """Delete ended runs; without `confirmed` the reply only lists the data that would be lost.

    Attributes
    ----------
    unrecorded
        Runs to delete although MLflow has no record of them, as the first reply named them.
    """

    handles: tuple[str, ...]
    confirmed: bool = False
    unrecorded: tuple[str, ...] = ()


class DeleteReply(Reply, frozen=True, kw_only=True):
    """Answer to :class:`DeleteRuns`.

    Attributes
    ----------
    confirmation
        The data that would be lost: the user has to confirm.
    unrecorded
        Of the runs in `confirmation`, those without a record in MLflow.
    errors
        Errors by handle.
    """

    deleted: tuple[str, ...] = ()
    confirmation: str = ""
    unrecorded: tuple[str, ...] = ()
    errors: dict[str, str] = {}


class ResubmitRun(Request, frozen=True, kw_only=True):
    """Submit a run's job again with the same code, parameters and target."""

    handle: str


class ResubmitReply(Reply, frozen=True, kw_only=True):
    """Answer to :class:`ResubmitRun`: the handle of the new run."""

    handle: str


class WhereIsRun(Request, frozen=True, kw_only=True):
    """Ask a running job in which line each of its threads is."""

    handle: str


class WhereReply(Reply, frozen=True, kw_only=True):
    """Answer to :class:`WhereIsRun`: the stacks as text."""

    text: str


class RunHandlers:
    """Handlers of operations on runs.

    Parameters
    ----------
    notify
        Shows a message to all clients later: level, text, target.
    """

    def __init__(self, controller: Controller, notify: Callable[[str, str, str], None]) -> None:
        self._controller, self._notify = controller, notify
        self.live = LiveDashboards(controller)
        self._pictures: dict[str, asyncio.Task[RecordPicture | None]] = {}
        self._subscribed = False
        self._unsubscribe: Callable[[], None] = lambda: None

    async def close(self) -> None:
        """Close the dashboards of all pages."""
        self._unsubscribe()
        await self.live.close()

    @op("run")
    async def get(self, request: GetRun) -> RunReply:
        """Return a record, and for an ended run the picture that the notebook saves."""
        record = record_of(await self._controller.source(request.handle))
        picture = await self._picture(record) if record.done and record.kind == "run" else None
        bundle, metadata = bundle_of(record, picture)
        text, html, png = bundle["text/plain"], bundle.get("text/html", ""), bundle.get("image/png", "")
        return RunReply(record=record, text=text, html=html, picture=png, **metadata.get("image/png", {}))

    @op("group")
    async def group(self, request: GetGroup) -> GroupReply:
        """Return the table of the runs that a cell has submitted; runs that were deleted are left out."""
        records = []
        for handle in request.handles[-MAX_GROUP_RUNS:]:
            with contextlib.suppress(AmlTrainError):
                records.append(record_of(await self._controller.source(handle)))
        group = run_group(records, request.handles)
        return GroupReply(group=group, text=group_text(group), html=group_html(group))

    async def _picture(self, record: RunRecord) -> RecordPicture | None:
        drawing = self._pictures.pop(record.handle, None)
        if drawing is None or (drawing.done() and drawing.result() is None):
            draw = self._controller.imports.picture(record)
            drawing = self._controller.loop.start(draw, f"picture of {record.handle}")
        self._pictures[record.handle] = drawing  # the newest is the last
        for old in list(self._pictures)[:-MAX_PICTURES]:
            del self._pictures[old]
        await asyncio.wait({drawing}, timeout=PICTURE_TIMEOUT_S)
        return drawing.result() if drawing.done() else None

    @op("cancel")
    async def cancel(self, request: CancelRun) -> CancelReply:
        """Cancel a run, or close a monitor."""
        controller = self._controller
        if controller.monitors.entry(request.handle) is not None:
            await controller.monitors.close(request.handle)
            return CancelReply(accepted=True, state="completed")
        run = await controller.cancel(await controller.find(request.handle))
        return CancelReply(accepted=True, state=run.status.state.value)

    @op("dashboard")
    async def open_dashboard(self, request: OpenDashboard) -> DashboardReply:
        """Create the live widgets of a run on a page, or return those that exist."""
        entry = await self._controller.source(request.handle)
        if not self._subscribed:
            self._subscribed = True
            self._unsubscribe = self._controller.store.on_removed(self.live.close_run)
        feed, reason = self.live.open(entry, request.page, request.window)
        return DashboardReply(feed=feed, reason=reason)

    @op("follow")
    async def follow(self, request: FollowFeed) -> FollowReply:
        """Start or stop the data of a feed."""
        return FollowReply(known=self.live.follow(request.feed, request.shown, request.seen, request.view))

    @op("delete")
    async def delete(self, request: DeleteRuns) -> DeleteReply:
        """Delete ended runs, or return the data that would be lost, as the magic does."""
        controller = self._controller
        errors: dict[str, str] = {}
        runs: list[Run] = []
        for name in request.handles:
            try:
                run = controller.entry(await controller.find(name)).run
                if not run.status.state.terminal:
                    raise not_ended_error(run)
                runs.append(run)
            except AmlTrainError as error:
                errors[name] = str(error)
        if not request.confirmed:
            sizes = [(run, await self._log_size(run) if i < MAX_NAMED else 0) for i, run in enumerate(runs)]
            unrecorded = await self._unrecorded(runs)
            confirmation = deletion_warning(sizes, unrecorded) if sizes else ""
            return DeleteReply(confirmation=confirmation, unrecorded=tuple(unrecorded), errors=errors)
        replied = asyncio.Event()
        deletion = self._delete_all(runs, errors, replied, frozenset(request.unrecorded))
        task = controller.loop.start(deletion, "delete runs")
        await asyncio.wait({task}, timeout=DELETE_TIMEOUT_S)
        replied.set()
        # The event `changes` reports deletions that take longer: MLflow's record is created from the folder first.
        return DeleteReply(deleted=tuple(run.handle for run in runs if run.handle not in errors), errors=dict(errors))

    async def _unrecorded(self, runs: Sequence[Run]) -> dict[RunHandle, str]:
        """Return the runs without a record in MLflow, and the reason; a slow import continues in the background."""
        controller = self._controller
        imports = {
            controller.loop.start(controller.unrecorded(run.handle), f"import {run.handle}")
            for run in runs
            if run.tracking_state in ("pending", "failed")
        }
        if imports:
            await asyncio.wait(imports, timeout=DELETE_TIMEOUT_S)
        reasons = {run.handle: await controller.unrecorded_so_far(run.handle) for run in runs}
        return {handle: reason for handle, reason in reasons.items() if reason}

    async def _log_size(self, run: Run) -> int:
        if not run.folder:
            return 0
        try:
            return (await self._controller.backend(run.target).read(run.run_id, "log", -1, 1)).offset
        except (AmlTrainError, OSError):
            return 0

    async def _delete_all(
        self, runs: Sequence[Run], errors: dict[str, str], replied: asyncio.Event, unrecorded: Collection[str]
    ) -> None:
        for run in runs:
            try:
                await self._controller.delete(run.handle, without_mlflow=run.handle in unrecorded)
            except AmlTrainError as error:
                errors[run.handle] = str(error)
                if replied.is_set():
                    self._notify("error", str(error), run.target)

    @op("stack")
    async def stack(self, request: WhereIsRun) -> WhereReply:
        """Return in which line each thread of a run is now."""
        controller = self._controller
        run = await controller.load(await controller.find(request.handle))
        return WhereReply(text=stack_text(await read_stack(controller.backend(run.target), run)))

    @op("again")
    async def resubmit(self, request: ResubmitRun) -> ResubmitReply:
        """Submit a run's job again; the environment variables are the kernel's."""
        controller = self._controller
        run = await controller.load(await controller.find(request.handle))
        spec, secrets = await controller.loop.offload(resubmit, run, controller.contents.files(run.handle))
        return ResubmitReply(handle=await controller.jobs.submit(spec, run.target, dict(os.environ), secrets))


# ---- MLflow


class OpenMlflow(Request, frozen=True, kw_only=True):
    """Get the address of a run's page in MLflow; the client repeats it while the server starts."""

    handle: str


class MlflowReply(Reply, frozen=True, kw_only=True):
    """Answer to :class:`OpenMlflow`: the address, or why there is none; both empty while server or record begin."""

    url: str = ""
    reason: str = ""


class MlflowHandlers:
    """Handler of the operation ``mlflow``: starts one MLflow server per project."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._starting: dict[str, asyncio.Task[dict[str, Any]]] = {}

    @op("mlflow")
    async def open(self, request: OpenMlflow) -> MlflowReply:
        """Return the address of a run's page; start the server if needed."""
        controller = self._controller
        run = controller.entry(await controller.find(request.handle)).run
        sent = await controller.loop.offload(team_ledger.entry_of, run.project, run.tracking_id)
        if page := team_ledger.page_of(sent):
            return MlflowReply(url=page)
        experiment = await controller.loop.offload(_experiment, run.project, run.tracking_id)
        if reason := no_page_reason(run, recorded=bool(experiment) or controller.recorder.records(run)):
            await controller.refresh_run(run.handle)  # starts its import if that has not started
            return MlflowReply(reason=reason)
        if not experiment and not run.status.state.terminal:
            controller.recorder.follow(run.handle)
            return MlflowReply()  # its record is there in some seconds
        task = self._starting.get(run.project)
        if task is None:
            task = controller.loop.start(self._start(run.project), f"MLflow's page of {run.project}")
            self._starting[run.project] = task
        await asyncio.wait({task}, timeout=MLFLOW_TIMEOUT_S)
        if not task.done():
            return MlflowReply()
        self._starting.pop(run.project, None)  # the server may end: the next request starts it again
        server = task.result()
        if reason := str(server.get("why", "")):
            return MlflowReply(reason=reason)
        fragment = f"#/experiments/{experiment}/runs/{run.tracking_id}" if experiment else ""
        # A path, not a URL: the kernel does not know the host and port that the browser uses for the Jupyter server.
        return MlflowReply(url=f"{server.get('path') or server['url']}{fragment}")

    async def _start(self, project: str) -> dict[str, Any]:
        try:
            return await self._controller.open_ui(project)
        except AmlTrainError as error:
            return {"why": str(error)}


def no_page_reason(run: Run, *, recorded: bool) -> str:
    """Return why MLflow cannot show a run, one sentence; empty if it can.

    Parameters
    ----------
    recorded
        Whether MLflow's store has the run or will soon, complete or not.
    """
    if run.tracking == "direct" or run.spec.tracking == "direct":
        return f"The script of {run.handle} logs to its own tracking server. Look for the run there."
    if not run.status.state.terminal:
        return "" if recorded else "This run will appear in MLflow when it has finished."
    if not run.project:
        return f"No MLflow store is known for {run.handle}: its target keeps no record."
    if run.tracking_state == "failed":
        return f"MLflow's record of {run.handle} could not be written: {run.tracking_error}"
    if run.tracking != "imported":
        return f"MLflow's record of {run.handle} is being written. Try again in a moment."
    return ""


def _experiment(project: str, tracking_id: str) -> str:
    """Return the id of the run's experiment, from the table of MLflow's store; empty if it is unknown."""
    path = Path(project_store(project)) / "mlflow.db"
    with (
        contextlib.suppress(sqlite3.Error, OSError),
        contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)) as store,
    ):
        row = store.execute("SELECT experiment_id FROM runs WHERE run_uuid = ?", (tracking_id,)).fetchone()
        return str(row[0]) if row else ""
    return ""
