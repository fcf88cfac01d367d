"""Requests of a page over a real controller, without a kernel."""

from __future__ import annotations

from typing import Any

from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.frontend import protocol
from jupyter_amltrain.frontend.handlers import RequestHandlers
from tests.helpers import DEADLINE


class HandlerHarness:
    """A controller and who answers for it."""

    def __init__(self, api: Any) -> None:
        self.api, self.controller = api, api.controller()
        self.handlers = RequestHandlers(self.controller)

    def ask(self, request: protocol.Request) -> Any:
        return self.controller.loop.call(self.handlers.answer(request), DEADLINE)

    def ended(self, script: str = "print('here')", **more: Any) -> Any:
        run = self.api.submit(script, **more)
        try:
            return run.wait(DEADLINE)
        except AmlTrainError:
            return run
