"""Works on compute targets: one at a time for each, in the background, told in its row. Runs on the loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from jupyter_amltrain.backends.lifecycle import Progress
from jupyter_amltrain.errors import AmlTrainError, CommandError
from jupyter_amltrain.spec.rows import Work
from jupyter_amltrain.target_list import News, TargetList
from jupyter_amltrain.target_rows import PAST, Seen, done_text, failed_text

log = logging.getLogger(__name__)

#: A service that does not tell a target's state within this time is not waited for (seconds).
PATIENCE = 0.7

Do = Callable[[Progress], Awaitable[str | None]]


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an act; the fields are those of :class:`~jupyter_amltrain.frontend.target_handlers.ActReply`.

    Attributes
    ----------
    begun
        A work goes on; :meth:`Works.finished` waits for it.
    """

    accepted: bool = False
    ask: str = ""
    errors: dict[str, str] = {}
    said: str = ""
    begun: bool = False


class Works(TargetList):
    """The targets, and what is being done with each."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._works: dict[str, asyncio.Task[str | Exception]] = {}

    @staticmethod
    def _free(seen: Seen) -> None:
        if seen.busy and seen.work is not None:
            raise CommandError(
                f"{seen.target.name!r} is being {PAST[seen.work.verb]}; only one thing is done with it at a time.",
                hint="%aml_compute list shows how far it is.",
            )

    def _begin(self, seen: Seen, verb: str, do: Do, values: Mapping[str, Any], dry: bool) -> Done:
        if dry:
            return Done()
        name = seen.target.name
        seen.work = Work(verb=verb, since=time.time())
        task = self._loop.start(self._work(seen, verb, do, values), f"{verb} {name}")
        self._works[name] = task
        self._tell()
        return Done(accepted=True, begun=True)

    async def _work(self, seen: Seen, verb: str, do: Do, values: Mapping[str, Any]) -> str | Exception:
        name, work = seen.target.name, Work(verb=verb, since=time.time())

        def progress(text: str) -> None:
            seen.work = msgspec.structs.replace(work, detail=text)
            self._tell()

        try:
            said = await do(progress) or done_text(verb, name, values)
            await self._look(name, verb)
        except Exception as error:  # the end of a task: its row says it
            if not isinstance(error, AmlTrainError):
                log.exception("%s %s", verb, name)
                error = AmlTrainError(f"{type(error).__name__}: {error}")
            seen.work = msgspec.structs.replace(work, error=str(error))
            await self._renew()
            self._tell(News("error", failed_text(verb, name, str(error)), name))
            return error.with_traceback(None)
        seen.work = None
        if verb == "delete":
            self._seen.pop(name, None)
            await self._renew()
        self._tell(News("success", said, name))
        return said

    def forget_failure(self, name: str) -> None:
        """Drop the failure of a target's last work: its row says how it is now."""
        seen = self._seen.get(name)
        if seen is not None and seen.stored and seen.work is not None and seen.work.error:
            seen.work = None
            self._tell()

    async def _look(self, name: str, verb: str) -> None:
        """The row shows what a work has made of the target when that is told."""
        if verb not in ("test", "delete"):
            with contextlib.suppress(AmlTrainError, asyncio.TimeoutError):
                await asyncio.wait_for(self._check(name), PATIENCE)

    async def _renew(self) -> None:
        with contextlib.suppress(AmlTrainError):  # a state root that cannot be read is told elsewhere
            await self.refresh()

    def progress(self, name: str) -> str:
        """How far a work is; empty when there is none."""
        seen = self._seen.get(name)
        return seen.work.detail if seen is not None and seen.work is not None else ""

    async def finished(self, name: str, patience: float) -> str | None:
        """What is told at the end of the last work; ``None`` when it goes on after `patience` seconds.

        Raises
        ------
        AmlTrainError
            What made it fail.
        """
        task = self._works[name]
        await asyncio.wait([task], timeout=patience)
        if not task.done():
            return None
        said = task.result()
        if isinstance(said, Exception):
            raise said
        return said
