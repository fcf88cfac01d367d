"""The compute targets as this kernel sees them. Runs on the loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import msgspec

from jupyter_amltrain.backends.lifecycle import Provisioned, ProvisionState
from jupyter_amltrain.errors import AmlTrainError, TargetUnreachable
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.places import Places
from jupyter_amltrain.runs.store import RunStore
from jupyter_amltrain.spec.fields import Act
from jupyter_amltrain.spec.rows import TargetRow
from jupyter_amltrain.spec.run import RunState
from jupyter_amltrain.spec.target import ComputeTarget, LocalTarget, TargetInfo
from jupyter_amltrain.target_rows import PAST, Seen, row_of
from jupyter_amltrain.targets import LOCAL, Targets

log = logging.getLogger(__name__)

#: While a panel listens, the stored targets are looked at this often (seconds): one `stat`.
WATCH = 2.0
#: A service is asked again for a target's machines when something has happened and its answer is older (seconds).
FRESH = 15.0
#: The same where nothing is known to go on: machines of others' runs come and go too, and cost (seconds).
RARELY = 60.0
#: States of a target that last.
AT_REST = ("ready", "stopped", "failed")


class News(NamedTuple):
    """A work has ended; `level` is ``success``, ``warning`` or ``error``."""

    level: str
    text: str
    target: str


class TargetList:
    """The targets that are stored, what checks of them found, and their rows.

    Parameters
    ----------
    forget
        Lets go of all that is live of a target: its monitors, and unless they outlive it, its runs and its backend.
    """

    def __init__(
        self,
        loop: LoopThread,
        targets: Targets,
        places: Places,
        store: RunStore,
        forget: Callable[[str, bool], Coroutine[Any, Any, None]],
    ) -> None:
        self._loop, self._targets, self._places, self._store = loop, targets, places, store
        self._forget = forget
        self._seen: dict[str, Seen] = {}
        self._current = LOCAL.name
        self._writes = 0
        self._leaving: set[str] = set()  #: targets that are gone and being forgotten
        self._past: tuple[str, ...] = ()
        self._known = False
        self._listeners: list[Callable[[News | None], None]] = []
        self._watching: asyncio.Task[Any] | None = None

    def listen(self, fn: Callable[[News | None], None]) -> Callable[[], None]:
        """Call `fn` on the loop when a row has changed, with news when a work has ended; never blocks."""
        self._loop.check()
        self._listeners.append(fn)
        if self._watching is None or self._watching.done():
            self._watching = self._loop.start(self._watch(), "watch targets.json")
        return lambda: self._listeners.remove(fn) if fn in self._listeners else None

    async def _watch(self) -> None:
        """While somebody listens: another kernel's changes are told too."""
        mark = None
        while self._listeners:
            new = await self._loop.offload(self._targets.mark)
            if new != mark:
                mark = new
                with contextlib.suppress(AmlTrainError):  # a torn file is told to who asks for it
                    await self.refresh()
            self._ask_again()
            await asyncio.sleep(WATCH)

    def _ask_again(self) -> None:
        """Ask again what a service has, at once where runs or machines are on: what they cost stands in the row."""
        now = time.time()
        running, queued = self._counts()
        for name, seen in self._seen.items():
            if seen.state is None or seen.checking or seen.busy:
                continue
            on = running[name] or queued[name] or seen.state.nodes or seen.error or seen.state.state not in AT_REST
            if not 0 <= now - seen.checked_at < (FRESH if on else RARELY):
                self._loop.start(self._ask(name), f"check {name}")

    def _tell(self, news: News | None = None) -> None:
        for fn in tuple(self._listeners):
            fn(news)

    def ensure(self) -> None:
        """Read the stored targets, if that was never done."""
        if not self._known:
            self._take(*self._targets.read())

    async def refresh(self) -> list[ComputeTarget]:
        """Read the stored targets, which another kernel may have changed, and return them."""
        while True:
            writes = self._writes
            found = await self._loop.offload(self._targets.read)
            if writes == self._writes:
                break  # else it may be older than what we wrote in the meantime
        self._take(*found)
        return found[0]

    def _take(self, found: list[ComputeTarget], current: str, past: list[ComputeTarget]) -> None:
        before = ([seen.target for seen in self._seen.values() if seen.stored], self._current)
        busy = {name for name, seen in self._seen.items() if seen.busy}
        old, self._seen, self._current, self._known = self._seen, {}, current, True
        for target in found:
            seen = self._seen[target.name] = old.pop(target.name) if target.name in old else Seen(target=target)
            if target.name not in busy:
                if not seen.stored:  # another kernel could create what we could not
                    seen.stored, seen.work = True, None
                seen.target = target
        self._seen.update({name: seen for name, seen in old.items() if seen.busy or not seen.stored})
        for name in set(self._places.changed(found, past, busy)) - self._leaving:
            self._leaving.add(name)
            self._loop.start(self._let_go(name), f"forget {name}")
        self._past = tuple(target.name for target in past)
        if before != (found, current):
            self._tell()

    async def _let_go(self, name: str) -> None:
        try:
            await self._forget(name, False)
        finally:
            self._leaving.discard(name)

    async def _write(self, change: Callable[[Any], None], value: Any) -> None:
        self._writes += 1
        try:
            await self._loop.offload(change, value)
        finally:
            self._writes += 1

    def shown(self) -> None:
        """Somebody looks at the list: ask in the background what was never asked, and what may scale by itself."""
        self.ensure()
        now = time.time()
        for name, seen in self._seen.items():
            old = not seen.checked_at or (seen.state is not None and not 0 <= now - seen.checked_at < FRESH)
            if old and not seen.checking and not seen.busy:
                self._loop.start(self._ask(name), f"check {name}")

    async def listed(self, patience: float) -> None:
        """Bring the list up to date, as far as that takes no more than `patience` seconds."""
        await self.refresh()
        asked = [self._loop.start(self._ask(name), f"check {name}") for name in self._seen if not self._seen[name].busy]
        if asked:
            await asyncio.wait(asked, timeout=patience)

    async def _ask(self, name: str) -> None:
        try:
            await self._check(name)
        except AmlTrainError as error:
            log.info("%s", error)

    async def check(self, name: str | None = None) -> TargetInfo:
        """What a check of the target finds; default the current one."""
        await self.refresh()
        if name and name not in self._seen:
            self._targets.get(name)  # names the near matches
        return await self._check(name or self._current)

    async def _check(self, name: str) -> TargetInfo:
        seen = self._seen.get(name)
        if seen is not None:
            seen.checking = True
        info: TargetInfo | None = None
        state: ProvisionState | None = None
        error = ""
        try:
            backend = self._places.backend(name)
            if isinstance(backend, Provisioned):
                state = await backend.state()
            info = await backend.check()
        except AmlTrainError as wrong:
            if state is None or isinstance(wrong, TargetUnreachable):  # else the service did answer
                error = str(wrong)
            raise
        finally:
            if seen is not None:
                seen.checking, seen.checked_at, seen.error = False, time.time(), error
                seen.info, seen.state = info or seen.info, state or seen.state
                self._tell()
        return info

    async def use(self, name: str) -> None:
        """Make `name` the target of every kernel from now on."""
        await self._write(self._targets.use, name)
        await self.refresh()

    # ---- rows

    @property
    def past(self) -> tuple[str, ...]:
        """Names of targets that are no more, whose runs can be read."""
        self.ensure()
        return self._past

    @property
    def current(self) -> str:
        """Name of the target that is used when none is given."""
        self.ensure()
        return self._current

    def rows(self) -> tuple[TargetRow, ...]:
        """The list as it is known now; asks nobody."""
        self._loop.check()
        self.ensure()
        running, queued = self._counts()
        return tuple(
            row_of(seen, self._current, self._acts(seen, running[name], queued[name]), running[name], queued[name])
            for name, seen in self._seen.items()
        )

    def _counts(self) -> tuple[Counter[str], Counter[str]]:
        """Runs that run, and that will, by target."""
        running: Counter[str] = Counter()
        queued: Counter[str] = Counter()
        for entry in self._store.live():
            waits = entry.run.status.state in (RunState.PREPARING, RunState.QUEUED)
            (queued if waits else running)[entry.target] += 1
        return running, queued

    def _own(self, name: str) -> Provisioned | None:
        """The backend of a stored target, if it has a life of its own."""
        try:
            backend = self._places.backend(name)
        except AmlTrainError as error:  # its package is missing, say
            log.info("%s", error)
            return None
        return backend if isinstance(backend, Provisioned) else None

    def _acts(self, seen: Seen, running: int, queued: int) -> tuple[Act, ...]:
        """What can be done with a target now."""
        name, work = seen.target.name, seen.work
        if not seen.stored:
            return (Act(verb="delete"),)
        why = f"It is being {PAST[work.verb]}." if seen.busy and work is not None else ""
        coming = seen.busy and work is not None and work.verb in ("create", "attach")
        leaving = seen.busy and work is not None and work.verb == "delete"
        acts = [
            Act(verb="use", why_not="It is in use." if name == self._current else why if leaving else ""),
            Act(verb="test", why_not=why),
        ]
        if isinstance(seen.target, LocalTarget):
            return tuple(acts)
        # While it is being made its backend comes with the work: the store may not have it yet.
        own = None if (coming or leaving) and self._places.live(name) is None else self._own(name)
        if own is None:
            return (*acts, Act(verb="delete", ask=removal(name), why_not=why))
        for act in own.acts(seen.state or ProvisionState()):
            ask = "" if act.fields else own.asks(act.verb, {}, running=running, queued=queued)
            acts.append(msgspec.structs.replace(act, ask=ask, why_not=why or act.why_not))
        return tuple(acts)


def removal(name: str) -> str:
    """What is lost with a target that was only attached."""
    return f"Removes {name!r} from the list of targets; the machine itself and its runs are left alone."
