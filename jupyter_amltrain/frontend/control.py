"""Server of the frontend's requests on the control channel: it answers while a cell runs.

A message type of our own on the control channel works on ipykernel 6 and 7, needs no subshell and
fires no IPython hooks; comm messages do. A kernel does not answer unknown types, so a
client learns from a timeout that the extension is not loaded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Protocol

import msgspec

from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.frontend import protocol
from jupyter_amltrain.frontend.protocol import ErrorReply, Reply, Request, op

log = logging.getLogger(__name__)

#: Seconds until a request is given up; the client waits little longer.
REQUEST_TIMEOUT_S = 3.0
#: JupyterLab takes our idle status for the cell's; the correction follows after this many seconds.
BUSY_STATUS_DELAY_S = 0.03


class Hello(Request, frozen=True):
    """Ask whether the extension is loaded, and which version."""


class HelloReply(Reply, frozen=True, kw_only=True):
    """Answer to :class:`Hello`."""

    package: str
    kernel_busy: bool


class Dispatcher(Protocol):
    """Handles requests on a loop; :class:`~jupyter_amltrain.frontend.handlers.RequestHandlers` is one."""

    def post(self, coro: Coroutine[Any, Any, Reply]) -> Future[Reply]:
        """Start a coroutine on the loop."""

    def answer(self, request: Request) -> Coroutine[Any, Any, Reply]:
        """Return the reply to one request."""


class RequestServer:
    """Serves our message type on one kernel.

    Parameters
    ----------
    kernel
        The ipykernel.
    dispatcher
        Created at the first request that needs it: ``hello`` stays cheap.
    package
        Our version.
    cell_runs
        Whether a cell runs at this moment.
    """

    def __init__(
        self, kernel: Any, dispatcher: Callable[[], Dispatcher], package: str, cell_runs: Callable[[], bool]
    ) -> None:
        self._kernel, self._dispatcher, self._package = kernel, dispatcher, package
        self._cell_runs = cell_runs
        self._loaded, self._loading = False, asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def handle(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Handle one message; runs on the thread of the control channel and returns at once.

        The channel handles one message at a time, interrupts among them: a reply that takes time is
        sent later by a task. Hello is answered here: a client that sends ``kernel_info_request`` after it
        takes the missing reply for "not loaded".
        """
        content = parent.get("content") or {}
        loop = asyncio.get_running_loop()
        if content.get("version") != protocol.VERSION:
            self._send(_wrong_version(content.get("version")), stream, ident, parent)
        elif content.get("op") == "hello":
            self._send(await self.hello(Hello()), stream, ident, parent)
        else:
            task = loop.create_task(self._reply_later(content, stream, ident, parent))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        # A cell may begin between this and the idle that follows it, so ask when the correction is due.
        loop.call_later(BUSY_STATUS_DELAY_S, self._send_busy)

    @op("hello")
    async def hello(self, request: Hello) -> HelloReply:
        """Return our version, and whether a cell runs."""
        return HelloReply(package=self._package, kernel_busy=self._cell_runs())

    def _send(self, reply: Reply, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        # Encoded once, a large record in a millisecond; an unknown type in an error's details must not hang the page.
        content = msgspec.json.encode(reply, enc_hook=str)
        self._kernel.session.send(stream, protocol.REPLY, content, parent=parent, ident=ident)

    async def _reply_later(self, content: dict[str, Any], stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        self._send(await self._answer(content), stream, ident, parent)

    async def _answer(self, content: dict[str, Any]) -> Reply:
        """Return the reply to one request; never raises for what a client can send."""
        try:
            dispatcher = await self._load()
            request = protocol.decode(content)
            future = dispatcher.post(dispatcher.answer(request))
            return await asyncio.wait_for(asyncio.wrap_future(future), REQUEST_TIMEOUT_S)
        except AmlTrainError as error:
            return ErrorReply.of(error)
        except msgspec.ValidationError as error:
            return ErrorReply(error=f"Request not understood: {error}.", code="request.invalid")
        except asyncio.TimeoutError:
            text = f"No answer within {REQUEST_TIMEOUT_S:g} s; the target may be slow. Try again."
            return ErrorReply(error=text, code="request.timeout")
        except Exception as error:  # a bug of ours must not hang the page
            log.exception("request %s failed", content.get("op"))
            return ErrorReply(error=f"{type(error).__name__}: {error}", code="internal")

    async def _load(self) -> Dispatcher:
        if not self._loaded:  # the first call imports a good part of the package
            async with self._loading:
                await asyncio.get_running_loop().run_in_executor(None, self._dispatcher)
                self._loaded = True
        return self._dispatcher()

    def _send_busy(self) -> None:
        """Send again that a cell runs: the idle status after our reply made the page forget it."""
        kernel = self._kernel
        if self._cell_runs():
            kernel.session.send(
                kernel.iopub_socket,
                "status",
                {"execution_state": "busy"},
                parent=kernel.get_parent("shell"),
                ident=kernel._topic("status"),
            )


def _wrong_version(version: Any) -> ErrorReply:
    text = (
        f"The kernel's jupyter_amltrain speaks protocol {protocol.VERSION}, this page {version}."
        " Install the same version in both environments and reload the page."
    )
    details = {"kernel": protocol.VERSION, "page": version}
    return ErrorReply(error=text, code="request.version", details=details)
