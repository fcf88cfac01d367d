"""Answers to the front end's requests, from the controller. Runs on the loop."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

import msgspec

from jupyter_amltrain.controller import Controller
from jupyter_amltrain.panel import protocol
from jupyter_amltrain.panel.protocol import (
    CancelReply,
    DashboardReply,
    FollowReply,
    Reply,
    Request,
    RunReply,
    StateReply,
)
from jupyter_amltrain.runs.painters import Picture
from jupyter_amltrain.runs.record import record_of
from jupyter_amltrain.spec.record import LogTail, RunRecord, TelemetrySeries
from jupyter_amltrain.widgets.live import LiveDashboards

#: Seconds that an answer waits for a picture: the front end asks again, and it is drawn by then.
PICTURE = 0.5
#: Pictures that are kept for that.
KEPT = 8
#: Runs that a state reply lists.
RUNS = 500


class Answers:
    """Knows the answers; see :class:`jupyter_amltrain.panel.requests.Answerer`."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._live = LiveDashboards(controller)
        self._pictures: dict[str, asyncio.Task[Picture | None]] = {}

    def post(self, coro: Coroutine[Any, Any, Reply]) -> Future[Reply]:
        """Start a coroutine on the loop."""
        return self._controller.loop.post(coro)

    async def answer(self, request: Request) -> Reply:
        """The answer to one request."""
        controller = self._controller
        if isinstance(request, protocol.GetRun):
            return await self._run(record_of(await controller.source(request.handle)))
        if isinstance(request, protocol.OpenDashboard):
            entry = await controller.source(request.handle)
            feed, why = self._live.open(entry, request.page, request.window)
            return DashboardReply(feed=feed, why=why)
        if isinstance(request, protocol.FollowFeed):
            return FollowReply(known=self._live.follow(request.feed, request.shown, request.seen))
        if isinstance(request, protocol.Cancel):
            if controller.monitors.entry(request.handle) is not None:
                await controller.monitors.close(request.handle)
                return CancelReply(accepted=True, state="completed")
            run = await controller.cancel(await controller.resolve(request.handle))
            return CancelReply(accepted=True, state=run.status.state.value)
        return await self._state()

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

    async def _state(self) -> StateReply:
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
