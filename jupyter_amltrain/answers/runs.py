"""Requests about runs: list, record, dashboard, cancel, delete, again, log, MLflow's page."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from jupyter_amltrain.commands.runs import MAX_NAMED, lost_text, not_ended, resubmit
from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.panel import protocol
from jupyter_amltrain.panel.protocol import (
    AgainReply,
    CancelReply,
    DashboardReply,
    DeleteReply,
    FollowReply,
    Reply,
    RunReply,
    StateReply,
)
from jupyter_amltrain.runs.painters import Picture
from jupyter_amltrain.runs.record import record_of
from jupyter_amltrain.spec.record import LogTail, RunRecord, TelemetrySeries
from jupyter_amltrain.spec.run import Run, RunHandle
from jupyter_amltrain.widgets.live import LiveDashboards

if TYPE_CHECKING:
    from jupyter_amltrain.controller import Controller

#: Seconds that an answer waits for a picture: the front end asks again, and it is drawn by then.
PICTURE = 0.5
#: Pictures that are kept for that.
KEPT = 8
#: Seconds that an answer waits for runs to be deleted.
PATIENCE = 2.0
#: Runs that a state reply lists.
RUNS = 500


class RunAnswers:
    """Answers about runs.

    Parameters
    ----------
    notice
        Tells all pages something later: level, sentence, target.
    """

    def __init__(self, controller: Controller, notice: Callable[[str, str, str], None]) -> None:
        self._controller, self._notice = controller, notice
        self.live = LiveDashboards(controller)
        self._pictures: dict[str, asyncio.Task[Picture | None]] = {}
        self._mourning = False
        self._stop: Callable[[], None] = lambda: None

    def ops(self) -> dict[type, Callable[[Any], Coroutine[Any, Any, Reply]]]:
        """What is answered here."""
        return {
            protocol.State: self._state,
            protocol.GetRun: self._get,
            protocol.Cancel: self._cancel,
            protocol.OpenDashboard: self._dashboard,
            protocol.FollowFeed: self._follow,
            protocol.DeleteRuns: self._delete,
            protocol.Again: self._again,
        }

    async def close(self) -> None:
        """Close the dashboards of all pages."""
        self._stop()
        await self.live.close()

    async def _get(self, asked: protocol.GetRun) -> RunReply:
        return await self._run(record_of(await self._controller.source(asked.handle)))

    async def _dashboard(self, asked: protocol.OpenDashboard) -> DashboardReply:
        entry = await self._controller.source(asked.handle)
        if not self._mourning:
            self._mourning = True
            self._stop = self._controller.store.when_gone(self.live.forget)
        feed, why = self.live.open(entry, asked.page, asked.window)
        return DashboardReply(feed=feed, why=why)

    async def _follow(self, asked: protocol.FollowFeed) -> FollowReply:
        return FollowReply(known=self.live.follow(asked.feed, asked.shown, asked.seen, asked.view))

    async def _cancel(self, asked: protocol.Cancel) -> CancelReply:
        controller = self._controller
        if controller.monitors.entry(asked.handle) is not None:
            await controller.monitors.close(asked.handle)
            return CancelReply(accepted=True, state="completed")
        run = await controller.cancel(await controller.find(asked.handle))
        return CancelReply(accepted=True, state=run.status.state.value)

    async def _delete(self, asked: protocol.DeleteRuns) -> DeleteReply:
        """Remove ended runs, or say what would be lost; the same words as the magic's."""
        controller = self._controller
        errors: dict[str, str] = {}
        runs: list[Run] = []
        for name in asked.handles:
            try:
                run = controller.entry(await controller.find(name)).run
                if not run.status.state.terminal:
                    raise not_ended(run)
                runs.append(run)
            except AmlTrainError as error:
                errors[name] = str(error)
        if not asked.confirmed:
            sizes = [(run, await self._log_size(run) if i < MAX_NAMED else 0) for i, run in enumerate(runs)]
            unrecorded = await self._unrecorded(runs)
            ask = lost_text(sizes, unrecorded) if sizes else ""
            return DeleteReply(ask=ask, unrecorded=tuple(unrecorded), errors=errors)
        told = asyncio.Event()
        work = controller.loop.start(self._delete_all(runs, errors, told, frozenset(asked.unrecorded)), "delete runs")
        await asyncio.wait({work}, timeout=PATIENCE)
        told.set()
        # What takes longer (its MLflow record is made of the folder) is told by `gone` when it is done.
        return DeleteReply(deleted=tuple(run.handle for run in runs if run.handle not in errors), errors=dict(errors))

    async def _unrecorded(self, runs: Sequence[Run]) -> dict[RunHandle, str]:
        """Runs that MLflow has no record of, and why; an import that takes long goes on in the background."""
        controller = self._controller
        tries = {
            controller.loop.start(controller.unrecorded(run.handle), f"import {run.handle}")
            for run in runs
            if run.tracking == "pending" or run.tracking.startswith("failed")
        }
        if tries:
            await asyncio.wait(tries, timeout=PATIENCE)
        found = {run.handle: await controller.unrecorded_so_far(run.handle) for run in runs}
        return {handle: why for handle, why in found.items() if why}

    async def _log_size(self, run: Run) -> int:
        if not run.folder:
            return 0
        try:
            return (await self._controller.backend(run.target).read(run.run_id, "log", -1, 1)).offset
        except (AmlTrainError, OSError):
            return 0

    async def _delete_all(
        self, runs: Sequence[Run], errors: dict[str, str], told: asyncio.Event, unrecorded: Collection[str]
    ) -> None:
        for run in runs:
            try:
                await self._controller.delete(run.handle, without_mlflow=run.handle in unrecorded)
            except AmlTrainError as error:
                errors[run.handle] = str(error)
                if told.is_set():
                    self._notice("error", str(error), run.target)

    async def _again(self, asked: protocol.Again) -> AgainReply:
        """Submit a run's job once more; the environment is the kernel's."""
        controller = self._controller
        run = await controller.load(await controller.find(asked.handle))
        spec, secrets = await controller.loop.offload(resubmit, run)
        return AgainReply(handle=await controller.submit(spec, run.target, dict(os.environ), secrets))

    async def _run(self, record: RunRecord) -> RunReply:
        """A record, and for an ended run the picture that the notebook keeps."""
        picture = None
        if record.done and record.kind == "run":
            drawing = self._pictures.pop(record.handle, None)
            if drawing is None or (drawing.done() and drawing.result() is None):
                draw = self._controller.imports.picture(record)
                drawing = self._controller.loop.start(draw, f"picture of {record.handle}")
            self._pictures[record.handle] = drawing  # the newest is the last
            for old in list(self._pictures)[:-KEPT]:
                del self._pictures[old]
            await asyncio.wait({drawing}, timeout=PICTURE)
            picture = drawing.result() if drawing.done() else None
        if picture is None:
            return RunReply(record=record)
        png = base64.b64encode(picture.png).decode()
        return RunReply(record=record, picture=png, width=picture.width, height=picture.height)

    async def _state(self, asked: protocol.State) -> StateReply:
        """Targets and runs, without streams."""
        controller = self._controller
        await controller.handles()
        entries = sorted(controller.store.entries(), key=lambda entry: entry.created, reverse=True)
        records = [record_of(entry) for entry in entries[:RUNS]]
        bare = [
            msgspec.structs.replace(
                record, metrics={}, telemetry=TelemetrySeries(), gpu=None, log=LogTail(path=record.log.path)
            )
            for record in records
        ]
        targets = await controller.list_targets()
        return StateReply(
            runs=tuple(bare),
            targets=tuple(msgspec.to_builtins(target) for target in targets),
            current=controller.targets.current,
        )
