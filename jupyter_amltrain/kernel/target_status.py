"""Status of the compute targets as this kernel sees them, and their rows in lists. Loop thread only."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple

import msgspec

from jupyter_amltrain.agent.telemetry.gpu_names import gpu_counts
from jupyter_amltrain.backends.base import ACCEPT, ACCEPT_QUESTION
from jupyter_amltrain.backends.provisioner import Provisioner, ProvisionState
from jupyter_amltrain.backends.target_kinds import kind_of
from jupyter_amltrain.errors import AmlTrainError, CommandError, TargetUnreachable
from jupyter_amltrain.kernel.backend_pool import BackendPool
from jupyter_amltrain.kernel.bounded_reads import FIRST_S
from jupyter_amltrain.kernel.store import RunStore
from jupyter_amltrain.kernel.target_file import LOCAL, TargetFile, stored_fields
from jupyter_amltrain.kernel.target_gpus import gpu_rows
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.fields import NAME, TargetAction, fields_of
from jupyter_amltrain.schema.rows import Operation, TargetRow
from jupyter_amltrain.schema.run import RunState
from jupyter_amltrain.schema.target import ComputeTarget, LocalTarget, TargetInfo
from jupyter_amltrain.text import ago, bytes_text

#: State of a target while an operation is under way.
STATE_DURING = {
    "create": "creating",
    "attach": "creating",
    "start": "starting",
    "stop": "stopping",
    "restart": "starting",
    "scale": "scaling",
    "delete": "deleting",
}

#: Participle of each operation, for sentences.
PARTICIPLES = {
    "create": "created",
    "attach": "attached",
    "start": "started",
    "stop": "stopped",
    "restart": "restarted",
    "scale": "scaled",
    "delete": "deleted",
    "test": "tested",
}


class TargetEntry(msgspec.Struct, kw_only=True):
    """State of a target as this kernel knows it.

    Attributes
    ----------
    stored
        Whether ``targets.json`` has it; a target that could not be created is not stored.
    info
        Result of the last successful check; `error` says why the last check failed.
    work
        The operation that is running, or that failed last.
    failure
        Error of the operation that failed last.
    """

    target: ComputeTarget
    stored: bool = True
    info: TargetInfo | None = None
    state: ProvisionState | None = None
    error: str = ""
    checked_at: float = 0.0
    checking: bool = False
    work: Operation | None = None
    failure: AmlTrainError | None = None

    @property
    def busy(self) -> bool:
        """Whether an operation is running."""
        return self.work is not None and not self.work.error


def target_row_of(
    entry: TargetEntry, current: str, acts: tuple[TargetAction, ...], running: int, queued: int, silence: str = ""
) -> TargetRow:
    """Return the row of a target; the counts are of runs that this kernel knows.

    Parameters
    ----------
    silence
        A sentence, if the target does not answer now.
    """
    target, info = entry.target, entry.info
    result = entry.state or ProvisionState()
    state, detail = _state(entry)
    if silence and not entry.busy:
        state, detail = "unreachable", silence
    shown = {field.name for field in fields_of(type(target))} - {NAME.name}
    gpus = _names(info.gpus) if info is not None else {}
    lost = lost_text(info.gpus_lost) if info is not None else ""
    return TargetRow(
        name=target.name,
        kind=kind_of(target),
        title=type(target).title,
        current=target.name == current,
        state=state,
        detail=detail,
        size=result.size,
        nodes=result.nodes,
        max_nodes=result.max_nodes,
        cpus=result.cpus if result.cpus is not None else info.cpus if info is not None else None,
        memory=result.memory if result.memory is not None else info.memory if info is not None else None,
        gpus=result.gpus if result.gpus is not None else sum(gpus.values()) if info is not None else None,
        gpu_name=result.gpu_name or ", ".join([*gpus, *([lost] if gpus and lost else [])]),
        # With several kinds of GPUs, such as MIG instances beside whole GPUs, each kind has its provisioner count.
        gpu_rows=gpu_rows(info) if info is not None and info.reachable else (),
        gpus_text=gpus_text(info.gpus) if info is not None and not result.gpu_name and len(gpus) > 1 else "",
        price=result.price,
        price_node=result.price_node,
        currency=result.currency,
        quota=result.quota,
        stops=result.stops or (info.stops if info is not None else ""),
        running=running,
        queued=queued,
        checked_at=entry.checked_at,
        fields={k: v for k, v in stored_fields(target).items() if k in shown},
        acts=acts,
        work=entry.work,
    )


def _state(entry: TargetEntry) -> tuple[str, str]:
    work, result = entry.work, entry.state
    if entry.busy and work is not None and work.verb in STATE_DURING:
        return STATE_DURING[work.verb], work.detail
    if not entry.stored:
        return "failed", work.error if work is not None else ""
    if entry.error:
        return "unreachable", entry.error
    if result is not None and result.state != "unknown":
        return result.state, result.detail
    if entry.info is not None:
        return ("ready" if entry.info.reachable else "unreachable"), entry.info.detail or lost_text(
            entry.info.gpus_lost
        )
    return "unknown", ""


def _names(gpus: Any) -> dict[str, int]:
    names: dict[str, int] = {}
    for gpu in gpus:
        name = str(gpu.get("name") or "GPU")
        names[name] = names.get(name, 0) + 1
    return names


def gpus_text(gpus: Any) -> str:
    """``2 x NVIDIA A100``; empty for none."""
    return gpu_counts(gpus)


def lost_text(lost: Any) -> str:
    """``GPU 1 lost``, several with commas; empty for none."""
    return ", ".join(f"GPU {gpu.get('index')} lost" for gpu in lost)


def info_text(info: TargetInfo) -> str:
    """One line: can it run jobs now?"""
    gpus = ", ".join(filter(None, [gpus_text(info.gpus), lost_text(info.gpus_lost)])) or "no GPU"
    cpus = "" if info.cpus is None else f", {info.cpus} CPUs"
    memory = "" if info.memory is None else f", {bytes_text(info.memory)}"
    if not info.reachable:
        return f"{info.target}: not reachable. {info.detail}".rstrip()
    return f"{info.target}: ready{cpus}{memory}, {gpus}; {info.running} running, {info.queued} queued."


def failed_text(verb: str, name: str, error: AmlTrainError) -> str:
    """Sentence about a failed operation, with the target's name only once."""
    reason = error.reason if error.subject == repr(name) else error.message
    return f"{name!r} could not be {PARTICIPLES[verb]}: {reason} {error.hint}".rstrip()


def use_text(name: str, *, default: bool) -> str:
    """Return the sentence about a target that is now in use."""
    if default:
        return f"New runs of this notebook, and of all that have chosen no target, now go to {name}."
    return f"New runs of this notebook now go to {name}."


def done_text(verb: str, name: str, values: Mapping[str, Any]) -> str:
    """Sentence about an operation that succeeded."""
    if verb != "scale":
        return f"{name} is {PARTICIPLES[verb]}."
    minimum, maximum, idle = (values.get(field) for field in ("min_nodes", "max_nodes", "idle_minutes"))
    if maximum is None and idle is None:
        return f"{name} is scaled to {minimum} machine{'' if minimum == 1 else 's'}."
    parts = [f"{label} {value:g}" for label, value in (("minimum", minimum), ("maximum", maximum)) if value is not None]
    parts += [] if idle is None else [f"idle time {idle:g} min"]
    return f"{name} is scaled: {', '.join(parts)}."


log = logging.getLogger(__name__)

#: Interval in which the stored targets are checked for changes while a listener is registered: one `stat`.
STORE_CHECK_INTERVAL_S = 2.0

#: Age at which the status of a service is requested again while runs or machines are on.
STATUS_MAX_AGE_S = 15.0

#: Age while no machine is known to be on; runs of other users may start machines, which cost money.
IDLE_STATUS_MAX_AGE_S = 60.0

#: States of a target that do not change by themselves.
STABLE_STATES = ("ready", "stopped", "failed")


class OperationFinished(NamedTuple):
    """An operation on a target has finished; `level` is ``success``, ``warning`` or ``error``."""

    level: str
    text: str
    target: str


class TargetStatusCache:
    """Cache of the stored targets, of the results of their checks, and of the operation that runs on each.

    Parameters
    ----------
    forget
        Releases the live objects of a removed target: its monitors and, unless the service keeps its runs,
        the runs and the backend.
    """

    def __init__(
        self,
        loop: LoopThread,
        targets: TargetFile,
        places: BackendPool,
        store: RunStore,
        forget: Callable[[str, bool], Coroutine[Any, Any, None]],
    ) -> None:
        self._loop, self._targets, self._backends, self._store = loop, targets, places, store
        self.forget = forget
        self._entries: dict[str, TargetEntry] = {}
        self._current = LOCAL.name
        self._writes = 0
        self._removing: set[str] = set()  #: removed targets that are being forgotten
        self._retired: tuple[str, ...] = ()
        self._loaded = False
        self._listeners: list[Callable[[OperationFinished | None], None]] = []
        self._watch_task: asyncio.Task[Any] | None = None

    def listen(self, fn: Callable[[OperationFinished | None], None]) -> Callable[[], None]:
        """Call `fn` on the loop when a row has changed, with the result if an operation has finished.

        `fn` must not block. Returns a function that unsubscribes it.
        """
        self._loop.check()
        self._listeners.append(fn)
        if self._watch_task is None or self._watch_task.done():
            self._watch_task = self._loop.start(self._watch(), "watch targets.json")
        return lambda: self._listeners.remove(fn) if fn in self._listeners else None

    async def _watch(self) -> None:
        """Report changes of other kernels while there is a listener."""
        mark = None
        while self._listeners:
            new = await self._loop.offload(self._targets.mark)
            if new != mark:
                mark = new
                with contextlib.suppress(AmlTrainError):  # callers that list targets see the error of a damaged file
                    await self.refresh()
            self._recheck()
            await asyncio.sleep(STORE_CHECK_INTERVAL_S)

    def _recheck(self) -> None:
        """Check targets whose status is too old; more often while runs or machines are on, because they cost money."""
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
                self._loop.start(self.try_check(name), f"check {name}")

    def notify(self, finished: OperationFinished | None = None) -> None:
        """Notify the listeners that a row has changed, with the operation that has finished, if any."""
        for fn in tuple(self._listeners):
            fn(finished)

    def ensure(self) -> None:
        """Read the stored targets if they were never read."""
        if not self._loaded:
            self._apply(*self._targets.read())

    # ---- entries

    def get(self, name: str) -> TargetEntry | None:
        """Return the entry of a target; ``None`` if it does not exist."""
        return self._entries.get(name)

    def find(self, name: str) -> TargetEntry:
        """Return the entry of a target.

        Raises
        ------
        UnknownTarget
            The target does not exist; the message names close matches.
        """
        if (entry := self._entries.get(name)) is not None:
            return entry
        self._targets.get(name)
        raise CommandError(f"{name!r} was removed just now.", hint="To list the targets: %aml_compute")

    def put(self, entry: TargetEntry) -> None:
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
            result = await self._loop.offload(self._targets.read)
            if writes == self._writes:
                break  # otherwise the result may be older than a write of this kernel
        self._apply(*result)
        return result[0]

    def _apply(self, result: list[ComputeTarget], current: str, past: list[ComputeTarget]) -> None:
        before = ([entry.target for entry in self._entries.values() if entry.stored], self._current)
        busy = {name for name, entry in self._entries.items() if entry.busy}
        old, self._entries, self._current, self._loaded = self._entries, {}, current, True
        for target in result:
            entry = self._entries[target.name] = (
                old.pop(target.name) if target.name in old else TargetEntry(target=target)
            )
            if target.name not in busy:
                if not entry.stored:  # another kernel has created the target, after this kernel failed
                    entry.stored, entry.work = True, None
                entry.target = target
        self._entries.update({name: entry for name, entry in old.items() if entry.busy or not entry.stored})
        for name in set(self._backends.changed(result, past, busy)) - self._removing:
            self._removing.add(name)
            self._loop.start(self._forget_removed(name), f"forget {name}")
        self._retired = tuple(target.name for target in past)
        if before != (result, current):
            self.notify()

    async def _forget_removed(self, name: str) -> None:
        try:
            await self.forget(name, False)
        finally:
            self._removing.discard(name)

    async def save(self, change: Callable[[Any], None], value: Any) -> None:
        """Change the stored targets by a method of :class:`TargetFile`, off the loop."""
        self._writes += 1
        try:
            await self._loop.offload(change, value)
        finally:
            self._writes += 1

    def check_outdated(self) -> None:
        """Start checks of targets without a recent status, because the list is visible now."""
        self.ensure()
        now = time.time()
        for name, entry in self._entries.items():
            old = not entry.checked_at or (
                entry.state is not None and not 0 <= now - entry.checked_at < STATUS_MAX_AGE_S
            )
            if old and not entry.checking and not entry.busy:
                self._loop.start(self.try_check(name), f"check {name}")

    async def refresh_all(self, timeout_s: float) -> None:
        """Update the list; checks that take longer than `timeout_s` seconds continue in the background."""
        await self.refresh()
        checks = [
            self._loop.start(self.try_check(name), f"check {name}")
            for name, entry in self._entries.items()
            if not entry.busy
        ]
        if checks:
            await asyncio.wait(checks, timeout=timeout_s)

    async def try_check(self, name: str) -> None:
        """Check a target; the row shows an error."""
        try:
            await self.check_now(name)
        except AmlTrainError as error:
            log.info("%s", error)

    async def check(self, name: str | None = None) -> TargetInfo:
        """Check a target, by default the current one, and return the result."""
        await self.refresh()
        if name:
            self.find(name)
        return await self.check_now(name or self._current)

    async def known(self, name: str | None = None) -> TargetInfo:
        """Check a target; of one that does not answer in time return what is known, not `reachable`."""
        await self.refresh()
        name = name or self._current
        entry, reads = self.find(name), self._backends.reads

        async def check() -> TargetInfo:
            return await self.check_now(name)

        limit_s = 0.0 if entry.info else FIRST_S
        backend = self._backends.backend(name)
        info = await reads.value(backend, ("check", name), check, None, strict=True, limit_s=limit_s)
        if info is not None:
            return info
        known = entry.info or TargetInfo(target=name, kind=str(type(entry.target).__struct_config__.tag))
        since = f" What is shown was known {ago(entry.checked_at)}." if entry.info and entry.checked_at else ""
        return msgspec.structs.replace(known, reachable=False, detail=reads.silence_text(name) + since)

    async def check_now(self, name: str) -> TargetInfo:
        """Check a target and store the result in its entry; the stored targets are not read again."""
        entry = self._entries.get(name)
        if entry is not None:
            entry.checking = True
        info: TargetInfo | None = None
        state: ProvisionState | None = None
        error = ""
        try:
            backend = self._backends.backend(name)
            if isinstance(backend, Provisioner):
                state = await backend.state()
            info = await backend.check()
        except AmlTrainError as exc:
            if state is None or isinstance(exc, TargetUnreachable):  # otherwise the service did answer
                error = str(exc)
            raise
        finally:
            if entry is not None:
                entry.checking, entry.checked_at, entry.error = False, time.time(), error
                entry.info, entry.state = info or entry.info, state or entry.state
                self.notify()
        return info

    async def use(self, name: str, *, default: bool = False) -> None:
        """Make `name` the target of this notebook, or the user's default."""
        await self.save(functools.partial(self._targets.use, default=default), name)
        await self.refresh()

    # ---- rows

    @property
    def retired(self) -> tuple[str, ...]:
        """Names of removed targets whose runs can still be read."""
        self.ensure()
        return self._retired

    @property
    def current(self) -> str:
        """Name of the target in use."""
        self.ensure()
        return self._current

    def rows(self) -> tuple[TargetRow, ...]:
        """Return the rows from the cache. No I/O."""
        self._loop.check()
        self.ensure()
        running, queued = self.run_counts()
        reads = self._backends.reads

        def row(name: str, entry: TargetEntry) -> TargetRow:
            actions = self._actions(entry, running[name], queued[name])
            silence = reads.silence_text(name) if reads.silent_s(name) else ""
            return target_row_of(entry, self._current, actions, running[name], queued[name], silence)

        return tuple(row(name, entry) for name, entry in self._entries.items())

    def run_counts(self) -> tuple[Counter[str], Counter[str]]:
        """Return the numbers of running and of waiting runs, by target."""
        running: Counter[str] = Counter()
        queued: Counter[str] = Counter()
        for entry in self._store.live():
            waits = entry.run.status.state in (RunState.PREPARING, RunState.QUEUED)
            (queued if waits else running)[entry.target] += 1
        return running, queued

    def _provisioner(self, name: str) -> Provisioner | None:
        """Return the backend of a stored target if a service provides its machines."""
        try:
            backend = self._backends.backend(name)
        except AmlTrainError as error:  # for example, its package is missing
            log.info("%s", error)
            return None
        return backend if isinstance(backend, Provisioner) else None

    def _actions(self, entry: TargetEntry, running: int, queued: int) -> tuple[TargetAction, ...]:
        """Return the actions that a target supports now."""
        name, work = entry.target.name, entry.work
        if not entry.stored:
            accept = (
                (TargetAction(verb="accept", confirmation=accept_confirmation(entry)),)
                if accepted_values(entry)
                else ()
            )
            return (*accept, TargetAction(verb="delete"))
        reason = f"The target is being {PARTICIPLES[work.verb]}." if entry.busy and work is not None else ""
        creating = entry.busy and work is not None and work.verb in ("create", "attach")
        deleting = entry.busy and work is not None and work.verb == "delete"
        acts = [
            TargetAction(
                verb="use",
                disabled_reason="The target is already in use."
                if name == self._current
                else reason
                if deleting
                else "",
            ),
            TargetAction(verb="test", disabled_reason=reason),
        ]
        if isinstance(entry.target, LocalTarget):
            return tuple(acts)
        # During a create the operation makes the backend: the target may not be stored yet.
        provisioner = None if (creating or deleting) and self._backends.live(name) is None else self._provisioner(name)
        if provisioner is None:
            return (*acts, TargetAction(verb="delete", confirmation=detach_confirmation(name), disabled_reason=reason))
        for act in provisioner.actions(entry.state or ProvisionState()):
            confirmation = "" if act.fields else provisioner.confirmation(act.verb, {}, running=running, queued=queued)
            acts.append(
                msgspec.structs.replace(act, confirmation=confirmation, disabled_reason=reason or act.disabled_reason)
            )
        return tuple(acts)


def accepted_values(entry: TargetEntry) -> dict[str, Any]:
    """Return the fields with which a failed create can be repeated if the user agrees; empty if there are none."""
    failure = entry.failure
    return dict(failure.details.get(ACCEPT, {})) if isinstance(failure, AmlTrainError) and not entry.busy else {}


def accept_confirmation(entry: TargetEntry) -> str:
    """Confirmation prompt for repeating a failed create with :func:`accepted_values`."""
    return str(entry.failure.details.get(ACCEPT_QUESTION, "")) if entry.failure is not None else ""


def detach_confirmation(name: str) -> str:
    """Confirmation prompt for removing a target that was only attached."""
    return f"Removes {name!r} from the list of targets; the machine itself and its runs are not affected."
