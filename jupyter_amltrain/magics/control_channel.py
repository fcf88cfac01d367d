"""Listener for the frontend's requests on the kernel's control channel.

Replies need packages that ``%load_ext`` must not import: the first request imports them.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyter_amltrain.commands.submit import Defaults
    from jupyter_amltrain.frontend.control import RequestServer

#: The same as ``frontend.protocol.REQUEST``, which cannot be imported yet.
_REQUEST = "amltrain_request"


class _Marker:
    """Entry in the kernel's list of comms by which a page detects the extension; carries no messages.

    A page asks by ``comm_info_request``: a kernel without the extension would log an error for our own message type.
    It is no comm object, because opening one sends a message to every page.
    """

    comm_id = target_name = _REQUEST

    def handle_msg(self, msg: dict[str, Any]) -> None:
        """Ignore a message."""

    def handle_close(self, msg: dict[str, Any]) -> None:
        """Ignore that a page closes it."""


class ControlChannel:
    """Handler of ``amltrain_request`` messages of one kernel.

    Parameters
    ----------
    defaults
        Returns the values of flags that a submit line does not set.
    """

    def __init__(self, shell: Any, defaults: Callable[[], Defaults]) -> None:
        self._shell, self._defaults = shell, defaults
        self._server: RequestServer | None = None
        self._marker = _Marker()
        self._cell_runs = True  # the cell that loads the extension
        self._current: tuple[Any, Any] = (None, None)  # controller, its request handlers

    def install(self) -> None:
        """Start listening."""
        kernel = self._shell.kernel
        kernel.control_handlers[_REQUEST] = self._handle
        kernel.comm_manager.register_comm(self._marker)
        # Not ..._run_cell: silently executed code, by which a page loads the extension, ends without those events.
        self._shell.events.register("pre_execute", self._begin)
        self._shell.events.register("post_execute", self._end)

    def remove(self) -> None:
        """Stop listening."""
        kernel = self._shell.kernel
        kernel.control_handlers.pop(_REQUEST, None)
        kernel.comm_manager.comms.pop(_REQUEST, None)
        self._shell.events.unregister("pre_execute", self._begin)
        self._shell.events.unregister("post_execute", self._end)
        (controller, handlers), self._current = self._current, (None, None)
        if handlers is not None:  # clients get no more events; runs continue
            from jupyter_amltrain.kernel import session

            if session.current_controller() is controller:
                handlers.post(handlers.close())

    def _begin(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._cell_runs = True

    def _end(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._cell_runs = False

    async def _handle(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        if self._server is None:
            from jupyter_amltrain.frontend.control import RequestServer
            from jupyter_amltrain.version import read_version

            self._server = RequestServer(self._shell.kernel, self._handlers, read_version(), self._is_busy)
        await self._server.handle(stream, ident, parent)

    def _is_busy(self) -> bool:
        return self._cell_runs

    def _handlers(self) -> Any:
        """Return the request handlers of the process' controller, the same ones while it lives."""
        from jupyter_amltrain import api
        from jupyter_amltrain.frontend.handlers import RequestHandlers

        controller = api.controller()
        if self._current[0] is not controller:
            self._current = (controller, RequestHandlers(controller, self._is_busy, self._defaults))
        return self._current[1]
