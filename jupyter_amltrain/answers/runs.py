"""Requests about runs: list, record, dashboard, cancel, delete, again, log, MLflow's page."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from jupyter_amltrain.panel import protocol
from jupyter_amltrain.panel.protocol import (
    CancelReply,
    DashboardReply,
    FollowReply,
    Reply,
    RunReply,
    StateReply,
)
from jupyter_amltrain.runs.painters import Picture
from jupyter_amltrain.runs.record import record_of
from jupyter_amltrain.spec.record import LogTail, RunRecord, TelemetrySeries
from jupyter_amltrain.widgets.live import LiveDashboards

if TYPE_CHECKING:
    from jupyter_amltrain.controller import Controller

#: Seconds that an answer waits for a picture: the front end asks again, and it is drawn by then.
PICTURE = 0.5
#: Pictures that are kept for that.
KEPT = 8
#: Runs that a state reply lists.
RUNS = 500


class RunAnswers:
    """Answers about runs."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self.live = LiveDashboards(controller)
        self._pictures: dict[str, asyncio.Task[Picture | None]] = {}

    def ops(self) -> dict[type, Callable[[Any], Coroutine[Any, Any, Reply]]]:
        """What is answered here."""
        return {
            protocol.State: self._state,
            protocol.GetRun: self._get,
            protocol.Cancel: self._cancel,
            protocol.OpenDashboard: self._dashboard,
            protocol.FollowFeed: self._follow,
        }

    async def close(self) -> None:
        """Close the dashboards of all pages."""
        await self.live.close()

    async def _get(self, asked: protocol.GetRun) -> RunReply:
        return await self._run(record_of(await self._controller.source(asked.handle)))

    async def _dashboard(self, asked: protocol.OpenDashboard) -> DashboardReply:
        entry = await self._controller.source(asked.handle)
        feed, why = self.live.open(entry, asked.page, asked.window)
        return DashboardReply(feed=feed, why=why)

    async def _follow(self, asked: protocol.FollowFeed) -> FollowReply:
        return FollowReply(known=self.live.follow(asked.feed, asked.shown, asked.seen))

    async def _cancel(self, asked: protocol.Cancel) -> CancelReply:
        controller = self._controller
        if controller.monitors.entry(asked.handle) is not None:
            await controller.monitors.close(asked.handle)
            return CancelReply(accepted=True, state="completed")
        run = await controller.cancel(await controller.resolve(asked.handle))
        return CancelReply(accepted=True, state=run.status.state.value)

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
        await controller.runs()
        records = [record_of(entry) for entry in controller.store.entries()]
        records.sort(key=lambda record: record.created, reverse=True)
        bare = [
            msgspec.structs.replace(
                record, metrics={}, telemetry=TelemetrySeries(), gpu=None, log=LogTail(path=record.log.path)
            )
            for record in records[:RUNS]
        ]
        targets = await controller.list_targets()
        return StateReply(
            runs=tuple(bare),
            targets=tuple(msgspec.to_builtins(target) for target in targets),
            current=controller.targets.current,
        )
