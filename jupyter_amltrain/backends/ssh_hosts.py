"""The machines of one target: a backend for each, and requests to all of those that answer. Loop thread only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

from jupyter_amltrain.backends.ssh import SshBackend
from jupyter_amltrain.errors import AmlTrainError, TargetUnreachable
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.run import Run, RunHandle, make_handle
from jupyter_amltrain.schema.ssh_target import SshTarget
from jupyter_amltrain.state_dir import StateRoot

T = TypeVar("T")

#: Seconds that requests to several machines wait for one to which the connection was lost.
RECONNECT_WAIT_S = 1.0
#: Seconds without a byte of a machine after which requests to several machines go on without it.
SILENCE_S = 10.0


class HostBackend(SshBackend):
    """Backend of one of the machines; its runs have the handles of the whole target.

    The part of a run on several machines that is not its node 0 is no run of this machine.
    """

    def __init__(self, whole: SshTarget, number: int, loop: LoopThread, root: StateRoot) -> None:
        super().__init__(whole.node_target(number), loop, root, whole.hosts[number])
        self._whole = whole.name
        self._silent_since = -1.0
        self.number = number
        #: The machine as the user has named it.
        self.host = whole.hosts[number]

    def _handle(self, run_id: str) -> RunHandle:
        return make_handle(self._whole, run_id)

    def _rows(self, answer: Mapping[str, Any]) -> Iterator[Run]:
        rows = [row for row in answer["runs"] if not (row["job"].get("nodes") or {}).get("node")]
        return super()._rows({**answer, "runs": rows})

    async def call(self, op: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Call the agent of this machine; see :meth:`Transport.call`."""
        return await self._ssh.call(op, payload)

    @property
    def home(self) -> str:
        """State root of the agent on this machine."""
        return self._ssh.home

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection now."""
        return self._ssh.connection.is_open

    @property
    def is_new(self) -> bool:
        """Whether there was no attempt to connect yet that has ended."""
        return self._ssh.connection.is_new

    @property
    def heard_at(self) -> float:
        """Monotonic second of the last bytes of the machine."""
        return self._ssh.connection.heard_at

    def note_silence(self) -> None:
        """Count the machine as silent until it sends something again."""
        self._silent_since = self.heard_at

    @property
    def is_silent(self) -> bool:
        """Whether the machine has sent nothing since a request to it was given up."""
        return self._silent_since == self.heard_at

    def unreachable(self) -> TargetUnreachable:
        """Return the error of a machine that does not answer."""
        return TargetUnreachable(
            f"Cannot reach {self.host} of {self._whole!r}: it does not answer. Its runs continue.",
            hint=f"Try again: %aml_compute test {self._whole}",
        )

    @property
    def addresses(self) -> Sequence[str]:
        """Addresses at which this kernel reaches the machine."""
        connection = self._ssh.connection
        return [one for one in (connection.address, connection.target.destination) if one]

    async def connect(self) -> None:
        """Connect if there is no connection; see :meth:`SshConnection.connect`."""
        await self._ssh.connection.connect()

    def retry_soon(self) -> None:
        """Let the next request connect at once, because a user asks."""
        self._ssh.connection.retry_soon()


class SshHosts(Sequence[HostBackend]):
    """The machines of a target, the first one is node 0."""

    def __init__(self, target: SshTarget, loop: LoopThread, root: StateRoot) -> None:
        self._all = [HostBackend(target, number, loop, root) for number in range(len(target.hosts))]
        self._connecting: dict[int, asyncio.Task[None]] = {}

    @overload
    def __getitem__(self, index: int) -> HostBackend: ...

    @overload
    def __getitem__(self, index: slice) -> list[HostBackend]: ...

    def __getitem__(self, index: int | slice) -> HostBackend | list[HostBackend]:
        return self._all[index]

    def __len__(self) -> int:
        return len(self._all)

    async def ask(
        self,
        request: Callable[[HostBackend], Awaitable[T]],
        numbers: Iterable[int] | None = None,
        silence_s: float = SILENCE_S,
    ) -> tuple[dict[int, T], Exception | None]:
        """Ask machines concurrently; return their answers by number, and the first error of the others.

        A machine that is known not to answer delays the others by :data:`RECONNECT_WAIT_S` at most.

        Parameters
        ----------
        numbers
            Default: all machines.
        silence_s
            Seconds without a byte of a machine after which it counts as not answering.

        Raises
        ------
        AmlTrainError, OSError
            No machine has answered.
        """
        tasks, error = await self._answering(range(len(self._all)) if numbers is None else numbers)
        connected = [number for number in tasks if _succeeded(tasks[number])]
        answering = [number for number in connected if not self._all[number].is_silent] or connected
        requests = {number: asyncio.ensure_future(request(self._all[number])) for number in answering}
        late = await self._wait(requests, silence_s)
        found: dict[int, T] = {}
        for number in connected:
            try:
                if number in late or number not in requests:
                    raise self._all[number].unreachable()
                found[number] = requests[number].result()
            except (AmlTrainError, OSError) as failed:
                error = error or failed
        if not found and error is not None:
            raise error
        return found, error

    async def _wait(self, requests: Mapping[int, asyncio.Future[Any]], silence_s: float) -> list[int]:
        """Wait for requests; return the machines of those that were given up, which end by themselves."""
        begun = time.monotonic()
        silent: list[int] = []
        waiting = dict(requests)
        try:
            while waiting := {number: task for number, task in waiting.items() if not task.done()}:
                now = time.monotonic()
                due = {number: max(begun, self._all[number].heard_at) + silence_s for number in waiting}
                for number in [number for number in waiting if due[number] <= now]:
                    self._all[number].note_silence()
                    silent.append(number)
                    del waiting[number]
                if waiting:
                    await asyncio.wait(waiting.values(), timeout=min(due[number] for number in waiting) - now)
        except asyncio.CancelledError:
            for task in requests.values():
                task.cancel()
            raise
        finally:
            for task in requests.values():
                task.add_done_callback(_take_error)
        return silent

    async def connected(self, number: int) -> HostBackend:
        """Return a machine that has a connection; one that has lost it is connected in the background.

        Raises
        ------
        TargetUnreachable
            It has no connection now.
        """
        host = self._all[number]
        if host.is_silent:
            raise host.unreachable()
        if not host.is_connected:
            task = self._connection_of(number)
            if host.is_new:
                await asyncio.wait({task})
            if not _succeeded(task):
                raise host.unreachable()
        return host

    async def _answering(self, numbers: Iterable[int]) -> tuple[dict[int, asyncio.Task[None]], Exception | None]:
        """Connect to machines; return the attempts, which go on, and the first error."""
        tasks = {number: self._connection_of(number) for number in numbers}
        if new := [task for number, task in tasks.items() if self._all[number].is_new]:
            await asyncio.wait(new)
        waiting = {task for task in tasks.values() if not task.done()}
        if waiting:
            _, waiting = await asyncio.wait(waiting, timeout=RECONNECT_WAIT_S)
        while waiting and not any(map(_succeeded, tasks.values())):
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for number, task in tasks.items():
            if not task.done():
                return tasks, self._all[number].unreachable()
            if not task.cancelled() and isinstance(error := task.exception(), Exception):
                return tasks, error
        return tasks, None

    def _connection_of(self, number: int) -> asyncio.Task[None]:
        task = self._connecting.get(number)
        if task is None or task.done():
            task = self._connecting[number] = asyncio.ensure_future(self._all[number].connect())
            task.add_done_callback(_take_error)
        return task

    async def close(self) -> None:
        """End the connections; runs continue."""
        for task in self._connecting.values():
            task.cancel()
        await asyncio.gather(*(host.close() for host in self._all))


def _take_error(task: asyncio.Future[Any]) -> None:
    """Mark the error of a task as seen: who still waits for it gets it."""
    if not task.cancelled():
        task.exception()


def _succeeded(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
