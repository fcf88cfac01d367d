"""Server for the frontend's requests on the control channel, which works while a cell runs.

A custom message type on the control channel works on ipykernel 6 and 7, needs no subshell and triggers no
IPython hooks, unlike comm messages. A kernel logs an error for an unknown type: a client first asks by
``comm_info_request`` whether the extension is loaded (see ``magics/control_channel.py``).
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

#: Maximum time of a request in seconds; the timeout of the client is slightly longer.
REQUEST_TIMEOUT_S = 3.0
#: JupyterLab takes the idle status after a reply for the cell's; the correction is sent after this delay (seconds).
BUSY_STATUS_DELAY_S = 0.03


class Hello(Request, frozen=True):
    """Get the version of the loaded extension."""


class HelloReply(Reply, frozen=True, kw_only=True):
    """Answer to :class:`Hello`."""

    package: str
    kernel_busy: bool


class RequestDispatcher(Protocol):
    """Handles requests on a loop; :class:`~jupyter_amltrain.frontend.handlers.RequestHandlers` is one."""

    def post(self, coro: Coroutine[Any, Any, Reply]) -> Future[Reply]:
        """Start a coroutine on the loop."""

    def answer(self, request: Request) -> Coroutine[Any, Any, Reply]:
        """Return the reply to one request."""


class RequestServer:
    """Serves the message type ``amltrain_request`` on one kernel.

    Parameters
    ----------
    kernel
        The ipykernel.
    dispatcher
        Returns the dispatcher; first called by a request that needs it, so that ``hello`` stays cheap.
    package
        Version of jupyter_amltrain.
    cell_runs
        Whether a cell runs at this moment.
    """

    def __init__(
        self, kernel: Any, dispatcher: Callable[[], RequestDispatcher], package: str, cell_runs: Callable[[], bool]
    ) -> None:
        self._kernel, self._dispatcher, self._package = kernel, dispatcher, package
        self._cell_runs = cell_runs
        self._loaded, self._loading = False, asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def handle(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Handle one message without blocking; runs on the thread of the control channel.

        The channel handles one message at a time, including interrupts, so a task sends replies that take time.
        The reply to ``hello`` is sent here: a client sends ``kernel_info_request`` after it, and concludes "not
        loaded" if the reply to ``hello`` does not come first.
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
        # A cell may start before the idle status is sent: check when the correction is due.
        loop.call_later(BUSY_STATUS_DELAY_S, self._send_busy)

    @op("hello")
    async def hello(self, request: Hello) -> HelloReply:
        """Return the version, and whether a cell runs."""
        return HelloReply(package=self._package, kernel_busy=self._cell_runs())

    def _send(self, reply: Reply, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        # Encoded once, which takes a millisecond for a large record. An unknown type in an error's details must not
        # prevent the reply.
        content = msgspec.json.encode(reply, enc_hook=str)
        self._kernel.session.send(stream, protocol.REPLY, content, parent=parent, ident=ident)

    async def _reply_later(self, content: dict[str, Any], stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        self._send(await self._answer(content), stream, ident, parent)

    async def _answer(self, content: dict[str, Any]) -> Reply:
        """Return the reply to one request; never raises, whatever a client sends."""
        try:
            dispatcher = await self._load()
            request = protocol.decode(content)
            future = dispatcher.post(dispatcher.answer(request))
            return await asyncio.wait_for(asyncio.wrap_future(future), REQUEST_TIMEOUT_S)
        except AmlTrainError as error:
            return ErrorReply.of(error)
        except msgspec.ValidationError as error:
            return ErrorReply(error=f"Invalid request: {error}.", code="request.invalid")
        except asyncio.TimeoutError:
            text = f"No answer within {REQUEST_TIMEOUT_S:g} s; the target may be slow. Try again."
            return ErrorReply(error=text, code="request.timeout")
        except Exception as error:  # a bug must not leave the page without a reply
            log.exception("request %s failed", content.get("op"))
            return ErrorReply(error=f"{type(error).__name__}: {error}", code="internal")

    async def _load(self) -> RequestDispatcher:
        if not self._loaded:  # the first call imports much of the package
            async with self._loading:
                await asyncio.get_running_loop().run_in_executor(None, self._dispatcher)
                self._loaded = True
        return self._dispatcher()

    def _send_busy(self) -> None:
        """Send the busy status again: the idle status after a reply has replaced it on the page."""
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
