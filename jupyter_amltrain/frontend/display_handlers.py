"""Operation on the displayed values of a run: one of them with all its forms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.frontend.protocol import Reply, Request, op

if TYPE_CHECKING:
    from jupyter_amltrain.kernel.controller import Controller

#: Maximum characters in one reply.
MAX_PART_CHARS = 3 << 17


class GetDisplay(Request, frozen=True, kw_only=True):
    """Get a part of a displayed value with all its forms.

    Attributes
    ----------
    number
        As the record names it.
    offset
        First character of the part.
    """

    handle: str
    number: int
    offset: int = 0


class DisplayReply(Reply, frozen=True, kw_only=True):
    """Answer to :class:`GetDisplay`.

    Attributes
    ----------
    text
        Characters from the requested offset of a JSON object with `version`, `data` and `sizes` as a record has them.
    chars
        Size of the whole text.
    """

    text: str = ""
    chars: int = 0


class DisplayHandlers:
    """Handler of the operation ``display``."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._text: tuple[str, int, str] = ("", 0, "")  #: run, number and forms of the display that is being read

    @op("display")
    async def read(self, request: GetDisplay) -> DisplayReply:
        """Return a part of a displayed value; the first one reads it from the run."""
        *key, text = self._text
        if not request.offset or key != [request.handle, request.number]:
            text = await self._forms(request)
        end = request.offset + MAX_PART_CHARS
        self._text = (request.handle, request.number, text) if end < len(text) else ("", 0, "")
        return DisplayReply(text=text[max(0, request.offset) : end], chars=len(text))

    async def _forms(self, request: GetDisplay) -> str:
        controller = self._controller
        entry = await controller.known_run(await controller.find(request.handle))
        forms = await controller.backends.shown.read_display(entry, request.number)
        if forms is None:
            raise CommandError(
                f"Cannot show display {request.number} of {request.handle}: its file was deleted or is damaged.",
                hint=f"Read its text in the log: %aml_runs logs {request.handle}",
            )
        return msgspec.json.encode({"version": forms.version, "data": forms.data, "sizes": forms.sizes}).decode()
