"""The front end's door on the control channel, opened at its first knock.

Answering needs packages that ``%load_ext`` must not import, so until the first request
only this stands there.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyter_amltrain.commands.submit import Defaults
    from jupyter_amltrain.panel.requests import Requests

#: The same as ``panel.protocol.REQUEST``, which cannot be imported yet.
_REQUEST = "amltrain_request"


class ControlDoor:
    """Answers ``amltrain_request`` on one kernel.

    Parameters
    ----------
    defaults
        What holds where a line that submits says nothing.
    """

    def __init__(self, shell: Any, defaults: Callable[[], Defaults]) -> None:
        self._shell, self._defaults = shell, defaults
        self._requests: Requests | None = None
        self._cell_runs = True  # the cell that loads us
        self._known: tuple[Any, Any] = (None, None)  # controller, who answers for it

    def install(self) -> None:
        """Begin to listen."""
        self._shell.kernel.control_handlers[_REQUEST] = self._handle
        # Not ..._run_cell: what a page executes silently, to load us, ends without those.
        self._shell.events.register("pre_execute", self._begin)
        self._shell.events.register("post_execute", self._end)

    def remove(self) -> None:
        """Stop listening."""
        self._shell.kernel.control_handlers.pop(_REQUEST, None)
        self._shell.events.unregister("pre_execute", self._begin)
        self._shell.events.unregister("post_execute", self._end)
        (controller, answers), self._known = self._known, (None, None)
        if answers is not None:  # pages hear no more; runs go on
            from jupyter_amltrain import session

            if session.existing() is controller:
                answers.post(answers.close())

    def _begin(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._cell_runs = True

    def _end(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._cell_runs = False

    async def _handle(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        if self._requests is None:
            import jupyter_amltrain
            from jupyter_amltrain.panel.requests import Requests

            version = jupyter_amltrain.__version__
            self._requests = Requests(self._shell.kernel, self._answers, version, self._runs)
        await self._requests.handle(stream, ident, parent)

    def _runs(self) -> bool:
        return self._cell_runs

    def _answers(self) -> Any:
        """Who answers for the process' controller: the same one as long as that lives."""
        from jupyter_amltrain import api
        from jupyter_amltrain.answers import Answers

        controller = api.controller()
        if self._known[0] is not controller:
            self._known = (controller, Answers(controller, self._runs, self._defaults))
        return self._known[1]
