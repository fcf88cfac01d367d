"""Answers to the front end's requests, from the controller. Runs on the loop.

One module a topic; each says which requests it answers.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.answers.compute import ComputeAnswers
from jupyter_amltrain.answers.connect import ConnectAnswers
from jupyter_amltrain.answers.events import EventsAnswers
from jupyter_amltrain.answers.logs import LogAnswers
from jupyter_amltrain.answers.mlflow import MlflowAnswers
from jupyter_amltrain.answers.runs import RunAnswers
from jupyter_amltrain.answers.submit import SubmitAnswers
from jupyter_amltrain.commands.submit import Defaults
from jupyter_amltrain.panel.protocol import Reply, Request

if TYPE_CHECKING:
    from jupyter_amltrain.controller import Controller


class Answers:
    """Knows the answers; see :class:`jupyter_amltrain.panel.requests.Answerer`.

    Parameters
    ----------
    cell_runs
        Whether a cell runs at this moment; may be asked on the loop.
    defaults
        What holds now where a line that submits says nothing; may be asked on any thread.
    """

    def __init__(
        self,
        controller: Controller,
        cell_runs: Callable[[], bool] = lambda: False,
        defaults: Callable[[], Defaults] = Defaults,
    ) -> None:
        self._controller = controller
        compute = ComputeAnswers(controller, defaults)
        self._events = EventsAnswers(controller, compute, cell_runs)
        self._runs = RunAnswers(controller, self._events.notice)
        topics = (
            self._runs,
            self._events,
            compute,
            ConnectAnswers(controller),
            LogAnswers(controller),
            MlflowAnswers(controller),
            SubmitAnswers(controller, defaults),
        )
        self._ops: dict[type, Callable[[Any], Coroutine[Any, Any, Reply]]] = {}
        for topic in topics:
            self._ops.update(topic.ops())
        controller.closers.append(self.close)

    def post(self, coro: Coroutine[Any, Any, Reply]) -> Future[Reply]:
        """Start a coroutine on the loop."""
        return self._controller.loop.post(coro)

    async def answer(self, request: Request) -> Reply:
        """The answer to one request."""
        return await self._ops[type(request)](request)

    async def close(self) -> None:
        """Send nothing more to any page; runs go on."""
        if self.close in self._controller.closers:
            self._controller.closers.remove(self.close)
        self._events.close()
        await self._runs.close()
