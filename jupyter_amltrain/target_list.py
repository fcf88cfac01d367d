"""What this kernel knows of the compute targets: a cache of their status, and the rows made of it. Loop thread only."""

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
from jupyter_amltrain.errors import AmlTrainError, CommandError, TargetUnreachable
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

#: Interval in which the stored targets are checked for changes while a listener is registered: one `stat`.
STORE_CHECK_INTERVAL_S = 2.0
#: Age of a service's answer after which it is asked again, while runs or machines are on.
STATUS_MAX_AGE_S = 15.0
#: The same while nothing is known to be on: machines of other people's runs come and go, and cost money.
IDLE_STATUS_MAX_AGE_S = 60.0
#: States of a target that last.
STABLE_STATES = ("ready", "stopped", "failed")


class News(NamedTuple):
    """An operation on a target has finished; `level` is ``success``, ``warning`` or ``error``."""

    level: str
    text: str
    target: str


class TargetList:
    """Cache of the stored targets, of what checks of them found, and of the operation that is under way on each.

    Parameters
    ----------
    forget
        Releases everything live of a removed target: its monitors, and unless the service keeps them, its runs
        and its backend.
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
        self.forget = forget
        self._entries: dict[str, Seen] = {}
        self._current = LOCAL.name
        self._writes = 0
        self._leaving: set[str] = set()  #: removed targets that are being forgotten
        self._past: tuple[str, ...] = ()
        self._known = False
        self._listeners: list[Callable[[News | None], None]] = []
        self._watching: asyncio.Task[Any] | None = None

    def listen(self, fn: Callable[[News | None], None]) -> Callable[[], None]:
        """Call `fn` on the loop when a row has changed, with news when an operation has finished.

        `fn` must not block. Returns a function that ends the subscription.
        """
        self._loop.check()
        self._listeners.append(fn)
        if self._watching is None or self._watching.done():
            self._watching = self._loop.start(self._watch(), "watch targets.json")
        return lambda: self._listeners.remove(fn) if fn in self._listeners else None

    async def _watch(self) -> None:
        """Report changes that another kernel makes, as long as there is a listener."""
        mark = None
        while self._listeners:
            new = await self._loop.offload(self._targets.mark)
            if new != mark:
                mark = new
                with contextlib.suppress(AmlTrainError):  # a damaged file is reported to whoever asks for targets
                    await self.refresh()
            self._recheck()
            await asyncio.sleep(STORE_CHECK_INTERVAL_S)

    def _recheck(self) -> None:
        """Check targets whose answer is too old: sooner where runs or machines are on, whose cost the row shows."""
        now = time.time()
        running, queued = self.run_counts()
        for name, entry in self._entries.items():
            if entry.state is None or entry.checking or entry.busy:
                continue
            on = (
                running[name]
                or queued[name]
                or entry.state.nodes
                or entry.error
                or entry.state.state not in STABLE_STATES
            )
            if not 0 <= now - entry.checked_at < (STATUS_MAX_AGE_S if on else IDLE_STATUS_MAX_AGE_S):
                self._loop.start(self._try_check(name), f"check {name}")

    def notify(self, news: News | None = None) -> None:
        """Tell the listeners that a row has changed, and which operation has finished, if one has."""
        for fn in tuple(self._listeners):
            fn(news)

    def ensure(self) -> None:
        """Read the stored targets if they were never read."""
        if not self._known:
            self._take(*self._targets.read())

    # ---- entries

    def get(self, name: str) -> Seen | None:
        """The entry of a target; ``None`` where there is none."""
        return self._entries.get(name)

    def find(self, name: str) -> Seen:
        """The entry of a target.

        Raises
        ------
        UnknownTarget
            There is none; near matches are named.
        """
        if (entry := self._entries.get(name)) is not None:
            return entry
        self._targets.get(name)
        raise CommandError(f"{name!r} was removed just now.", hint="%aml_compute lists the targets that exist.")

    def put(self, entry: Seen) -> None:
        """Add the entry of a target that is being created, or replace a failed one."""
        self._entries[entry.target.name] = entry

    def discard(self, name: str) -> None:
        """Drop the entry of a target."""
        self._entries.pop(name, None)

    # ---- stored targets

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
        before = ([entry.target for entry in self._entries.values() if entry.stored], self._current)
        busy = {name for name, entry in self._entries.items() if entry.busy}
        old, self._entries, self._current, self._known = self._entries, {}, current, True
        for target in found:
            entry = self._entries[target.name] = old.pop(target.name) if target.name in old else Seen(target=target)
            if target.name not in busy:
                if not entry.stored:  # another kernel could create what we could not
                    entry.stored, entry.work = True, None
                entry.target = target
        self._entries.update({name: entry for name, entry in old.items() if entry.busy or not entry.stored})
        for name in set(self._places.changed(found, past, busy)) - self._leaving:
            self._leaving.add(name)
            self._loop.start(self._forget_removed(name), f"forget {name}")
        self._past = tuple(target.name for target in past)
        if before != (found, current):
            self.notify()

    async def _forget_removed(self, name: str) -> None:
        try:
            await self.forget(name, False)
        finally:
            self._leaving.discard(name)

    async def save(self, change: Callable[[Any], None], value: Any) -> None:
        """Change the stored targets by a method of :class:`Targets`, off the loop."""
        self._writes += 1
        try:
            await self._loop.offload(change, value)
        finally:
            self._writes += 1

    def shown(self) -> None:
        """Check in the background what was never checked, and what may scale by itself: the list is visible."""
        self.ensure()
        now = time.time()
        for name, entry in self._entries.items():
            old = not entry.checked_at or (
                entry.state is not None and not 0 <= now - entry.checked_at < STATUS_MAX_AGE_S
            )
            if old and not entry.checking and not entry.busy:
                self._loop.start(self._try_check(name), f"check {name}")

    async def listed(self, patience: float) -> None:
        """Bring the list up to date, as far as that takes no more than `patience` seconds."""
        await self.refresh()
        checks = [
            self._loop.start(self._try_check(name), f"check {name}")
            for name, entry in self._entries.items()
            if not entry.busy
        ]
        if checks:
            await asyncio.wait(checks, timeout=patience)

    async def _try_check(self, name: str) -> None:
        try:
            await self.check_now(name)
        except AmlTrainError as error:
            log.info("%s", error)

    async def check(self, name: str | None = None) -> TargetInfo:
        """Check a target, by default the current one, and return what was found."""
        await self.refresh()
        if name:
            self.find(name)
        return await self.check_now(name or self._current)

    async def check_now(self, name: str) -> TargetInfo:
        """Check a target and note in its entry what was found; the stored targets are not read again."""
        entry = self._entries.get(name)
        if entry is not None:
            entry.checking = True
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
            if entry is not None:
                entry.checking, entry.checked_at, entry.error = False, time.time(), error
                entry.info, entry.state = info or entry.info, state or entry.state
                self.notify()
        return info

    async def use(self, name: str) -> None:
        """Make `name` the target of every kernel from now on."""
        await self.save(self._targets.use, name)
        await self.refresh()

    # ---- rows

    @property
    def past(self) -> tuple[str, ...]:
        """Names of removed targets whose runs can still be read."""
        self.ensure()
        return self._past

    @property
    def current(self) -> str:
        """Name of the target that is used when none is given."""
        self.ensure()
        return self._current

    def rows(self) -> tuple[TargetRow, ...]:
        """The list as it is known now. No I/O."""
        self._loop.check()
        self.ensure()
        running, queued = self.run_counts()
        return tuple(
            row_of(entry, self._current, self._actions(entry, running[name], queued[name]), running[name], queued[name])
            for name, entry in self._entries.items()
        )

    def run_counts(self) -> tuple[Counter[str], Counter[str]]:
        """Numbers of running and of waiting runs, by target."""
        running: Counter[str] = Counter()
        queued: Counter[str] = Counter()
        for entry in self._store.live():
            waits = entry.run.status.state in (RunState.PREPARING, RunState.QUEUED)
            (queued if waits else running)[entry.target] += 1
        return running, queued

    def _own(self, name: str) -> Provisioned | None:
        """The backend of a stored target if a service provides its machines."""
        try:
            backend = self._places.backend(name)
        except AmlTrainError as error:  # its package is missing, say
            log.info("%s", error)
            return None
        return backend if isinstance(backend, Provisioned) else None

    def _actions(self, entry: Seen, running: int, queued: int) -> tuple[Act, ...]:
        """What can be done with a target now."""
        name, work = entry.target.name, entry.work
        if not entry.stored:
            return (Act(verb="delete"),)
        why = f"It is being {PAST[work.verb]}." if entry.busy and work is not None else ""
        coming = entry.busy and work is not None and work.verb in ("create", "attach")
        leaving = entry.busy and work is not None and work.verb == "delete"
        acts = [
            Act(verb="use", why_not="It is in use." if name == self._current else why if leaving else ""),
            Act(verb="test", why_not=why),
        ]
        if isinstance(entry.target, LocalTarget):
            return tuple(acts)
        # While it is being made its backend comes with the work: the store may not have it yet.
        own = None if (coming or leaving) and self._places.live(name) is None else self._own(name)
        if own is None:
            return (*acts, Act(verb="delete", ask=removal(name), why_not=why))
        for act in own.acts(entry.state or ProvisionState()):
            ask = "" if act.fields else own.asks(act.verb, {}, running=running, queued=queued)
            acts.append(msgspec.structs.replace(act, ask=ask, why_not=why or act.why_not))
        return tuple(acts)


def removal(name: str) -> str:
    """What is lost with a target that was only attached."""
    return f"Removes {name!r} from the list of targets; the machine itself and its runs are left alone."
