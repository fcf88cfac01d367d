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

#: Interrupts wait on the same channel: an answer that takes longer is given up (seconds).
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

    async def handle(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Handler of our message type on the control channel; runs on its thread."""
        reply = await self.reply(parent.get("content") or {})
        self._kernel.session.send(stream, protocol.REPLY, msgspec.to_builtins(reply), parent=parent, ident=ident)
        # A cell may begin between this answer and the idle that follows it, so ask when the repair is due.
        asyncio.get_running_loop().call_later(REPAIR, self._say_busy)

    async def reply(self, content: dict[str, Any]) -> Reply:
        """The answer to one message; never raises for what a front end can send."""
        if content.get("version") != protocol.VERSION:
            return ErrorReply(
                error=f"The kernel's jupyter_amltrain speaks protocol {protocol.VERSION}, this page"
                f" {content.get('version')}. Install the same version in both environments and"
                " reload the page."
            )
        try:
            request = protocol.decode(content)
        except msgspec.ValidationError as error:
            return ErrorReply(error=f"Request not understood: {error}.")
        if isinstance(request, protocol.Hello):
            return HelloReply(package=self._package, kernel_busy=self._cell_runs())
        try:
            answerer = self._answerer()
            future = answerer.post(answerer.answer(request))
            return await asyncio.wait_for(asyncio.wrap_future(future), LIMIT)
        except AmlTrainError as error:
            return ErrorReply(error=str(error))
        except asyncio.TimeoutError:
            return ErrorReply(error=f"No answer within {LIMIT:g} s; the target may be slow. Try again.")
        except Exception as error:  # a bug of ours must not hang the page
            log.exception("request %s failed", content.get("op"))
            return ErrorReply(error=f"{type(error).__name__}: {error}")

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
