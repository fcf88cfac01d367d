"""Requests of the front end, answered on the control channel while a cell runs.

A message type of our own on control works on ipykernel 6 and 7, needs no subshell and
fires no IPython hooks; comm messages do. Unknown types are not answered by a kernel,
so a front end learns by a timeout that we are not loaded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Protocol

import msgspec

from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.panel import protocol
from jupyter_amltrain.panel.protocol import ErrorReply, HelloReply, Reply, Request

log = logging.getLogger(__name__)

#: An answer that takes longer is given up (seconds): the page waits little longer.
LIMIT = 3.0
#: JupyterLab takes our idle status for the cell's; the repair follows it (seconds).
REPAIR = 0.03


class Answerer(Protocol):
    """Who knows the answers: runs them on its loop."""

    def post(self, coro: Coroutine[Any, Any, Reply]) -> Future[Reply]:
        """Start a coroutine on the loop."""

    def answer(self, request: Request) -> Coroutine[Any, Any, Reply]:
        """The answer to one request."""


class Requests:
    """Serves our message type on one kernel.

    Parameters
    ----------
    kernel
        The ipykernel.
    answerer
        Made at the first request that needs it: saying hello stays cheap.
    package
        Our version.
    cell_runs
        Whether a cell runs at this moment.
    """

    def __init__(
        self, kernel: Any, answerer: Callable[[], Answerer], package: str, cell_runs: Callable[[], bool]
    ) -> None:
        self._kernel, self._answerer, self._package = kernel, answerer, package
        self._cell_runs = cell_runs
        self._opened, self._opening = False, asyncio.Lock()
        self._waiting: set[asyncio.Task[None]] = set()

    async def handle(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Handler of our message type on the control channel; runs on its thread and returns at once.

        The channel has one message at a time, interrupts among them: what has to be waited for is
        sent when it is there. Hello is answered here: a page that asks ``kernel_info_request`` after it
        takes the missing answer for "not loaded".
        """
        request = self._read(parent.get("content") or {})
        loop = asyncio.get_running_loop()
        if isinstance(request, ErrorReply):
            self._send(request, stream, ident, parent)
        elif isinstance(request, protocol.Hello):
            hello = HelloReply(package=self._package, kernel_busy=self._cell_runs())
            self._send(hello, stream, ident, parent)
        else:
            task = loop.create_task(self._later(request, stream, ident, parent))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)
        # A cell may begin between this and the idle that follows it, so ask when the repair is due.
        loop.call_later(REPAIR, self._say_busy)

    def _read(self, content: dict[str, Any]) -> Request | ErrorReply:
        if content.get("version") != protocol.VERSION:
            return ErrorReply(
                error=f"The kernel's jupyter_amltrain speaks protocol {protocol.VERSION}, this page"
                f" {content.get('version')}. Install the same version in both environments and"
                " reload the page."
            )
        try:
            return protocol.decode(content)
        except msgspec.ValidationError as error:
            return ErrorReply(error=f"Request not understood: {error}.")

    def _send(self, reply: Reply, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        content = msgspec.json.encode(reply)  # a large record is encoded in a millisecond, and once
        self._kernel.session.send(stream, protocol.REPLY, content, parent=parent, ident=ident)

    async def _later(self, request: Request, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        self._send(await self._answer(request), stream, ident, parent)

    async def _answer(self, request: Request) -> Reply:
        """The answer to one request; never raises for what a front end can send."""
        try:
            answerer = await self._who()
            future = answerer.post(answerer.answer(request))
            return await asyncio.wait_for(asyncio.wrap_future(future), LIMIT)
        except AmlTrainError as error:
            return ErrorReply(error=str(error))
        except asyncio.TimeoutError:
            return ErrorReply(error=f"No answer within {LIMIT:g} s; the target may be slow. Try again.")
        except Exception as error:  # a bug of ours must not hang the page
            log.exception("request %s failed", type(request).__name__)
            return ErrorReply(error=f"{type(error).__name__}: {error}")

    async def _who(self) -> Answerer:
        if not self._opened:  # the first time it imports a good part of us
            async with self._opening:
                await asyncio.get_running_loop().run_in_executor(None, self._answerer)
                self._opened = True
        return self._answerer()

    def _say_busy(self) -> None:
        """Say again that a cell runs: the idle after our answer made the page forget it."""
        kernel = self._kernel
        if self._cell_runs():
            kernel.session.send(
                kernel.iopub_socket,
                "status",
                {"execution_state": "busy"},
                parent=kernel.get_parent("shell"),
                ident=kernel._topic("status"),
            )
