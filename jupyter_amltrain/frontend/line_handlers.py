"""Operation on the lines of a run: where its time goes, in all of it or in a part."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.frontend.protocol import Reply, Request, op
from jupyter_amltrain.inside.line_report import report_of, start_of
from jupyter_amltrain.inside.lines_part import lines_of
from jupyter_amltrain.inside.run_lines import read_run_lines
from jupyter_amltrain.inside.stack_boxes import stack_boxes
from jupyter_amltrain.schema.run_lines import RunLines, StackBox

if TYPE_CHECKING:
    from jupyter_amltrain.kernel.controller import Controller


class GetLines(Request, frozen=True, kw_only=True):
    """Get the lines of a run.

    Attributes
    ----------
    start, end
        Unix seconds; 0 for the whole run.
    """

    handle: str
    start: float = 0.0
    end: float = 0.0


class LinesReply(Reply, frozen=True, kw_only=True):
    """Answer to :class:`GetLines`: the lines of that time, and the stacks of its main threads."""

    lines: RunLines
    boxes: tuple[StackBox, ...] = ()


class LineHandlers:
    """Handler of the operation ``lines``."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    @op("lines")
    async def read(self, request: GetLines) -> LinesReply:
        """Return the lines of a run in a range of time."""
        entry = await self._controller.known_run(await self._controller.find(request.handle))
        run = entry.run
        processes, reader = await read_run_lines(self._controller.backend(run.target), run)
        zero = start_of(processes)
        start, end = max(0.0, request.start - zero), request.end - zero if request.end else None
        report = await asyncio.to_thread(report_of, processes, reader, start=start, end=end)
        if not report.lines:
            hint = "Submit the cell without --no-lines." if run.spec.no_lines else ""
            raise CommandError("No lines were sampled in this time.", hint=hint)
        boxes = await asyncio.to_thread(stack_boxes, processes, reader, start=start, end=end)
        return LinesReply(lines=lines_of(report), boxes=boxes)
