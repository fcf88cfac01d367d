"""Handlers of all requests of one controller's frontend clients. Loop thread only."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.commands.submit import Defaults
from jupyter_amltrain.frontend.display_handlers import DisplayHandlers
from jupyter_amltrain.frontend.events import EventPublisher
from jupyter_amltrain.frontend.file_handlers import FileHandlers
from jupyter_amltrain.frontend.line_handlers import LineHandlers
from jupyter_amltrain.frontend.log_handlers import LogHandlers
from jupyter_amltrain.frontend.picture_handlers import PictureHandlers
from jupyter_amltrain.frontend.protocol import Handler, Reply, Request, handlers_of
from jupyter_amltrain.frontend.run_handlers import MlflowHandlers, RunHandlers
from jupyter_amltrain.frontend.target_handlers import FormHandlers, TargetHandlers
from jupyter_amltrain.plugins import parts

if TYPE_CHECKING:
    from jupyter_amltrain.kernel.controller import Controller


#: Classes with operations; imported here, so that the registry of operations is complete.
OPERATIONS_OF_PLUGINS = parts("operations")


class RequestHandlers:
    """Dispatches requests to their handlers; :class:`~jupyter_amltrain.frontend.control.RequestServer` calls it.

    Parameters
    ----------
    cell_runs
        Whether a cell runs at this moment; called on the loop.
    defaults
        Returns the values of flags that a submit line does not set; called on any thread.
    """

    def __init__(
        self,
        controller: Controller,
        cell_runs: Callable[[], bool] = lambda: False,
        defaults: Callable[[], Defaults] = Defaults,
    ) -> None:
        self._controller = controller
        self.events = EventPublisher(controller, cell_runs)
        self.runs = RunHandlers(controller, self.events.notify)
        topics = (
            self.events,
            self.runs,
            LogHandlers(controller),
            LineHandlers(controller),
            MlflowHandlers(controller),
            DisplayHandlers(controller),
            PictureHandlers(controller),
            FileHandlers(controller, self.events.notify),
            TargetHandlers(controller),
            FormHandlers(controller, defaults),
            *(operations(controller) for operations in OPERATIONS_OF_PLUGINS),
        )
        self.by_request: dict[type[Request], Handler] = {}
        for topic in topics:
            self.by_request.update(handlers_of(topic))
        controller.closers.append(self.close)

    def post(self, coro: Coroutine[Any, Any, Reply]) -> Future[Reply]:
        """Start a coroutine on the loop."""
        return self._controller.loop.post(coro)

    async def answer(self, request: Request) -> Reply:
        """Return the reply to one request."""
        return await self.by_request[type(request)](request)

    async def close(self) -> None:
        """Stop sending to clients; runs continue."""
        if self.close in self._controller.closers:
            self._controller.closers.remove(self.close)
        self.events.close()
        await self.runs.close()
