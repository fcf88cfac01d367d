"""Answers to a page's requests that need no run."""

from __future__ import annotations

from typing import Any

from jupyter_amltrain.frontend.handlers import RequestHandlers
from jupyter_amltrain.frontend.run_handlers import CancelReply, CancelRun
from jupyter_amltrain.loop import LoopThread


class Monitors:
    """One monitor, and what was closed."""

    def __init__(self) -> None:
        self.closed: list[str] = []

    def entry(self, handle: str) -> Any:
        return object() if handle == "local/monitor-22222" else None

    async def close(self, handle: str) -> None:
        self.closed.append(handle)


class Controller:
    """As much of one as a page's Stop button needs."""

    def __init__(self) -> None:
        self.monitors = Monitors()
        self.closers: list[Any] = []


def test_cancel_request_of_monitor_stops_it() -> None:
    controller: Any = Controller()
    loop = LoopThread("test-answers")
    try:
        reply = loop.call(RequestHandlers(controller).answer(CancelRun(handle="local/monitor-22222")), 60)
    finally:
        loop.close()
    assert isinstance(reply, CancelReply) and reply.accepted
    assert controller.monitors.closed == ["local/monitor-22222"]
