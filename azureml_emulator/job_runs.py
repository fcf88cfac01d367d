"""Jobs as the emulator keeps them, and what may end one."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from azureml_emulator import executor
from azureml_emulator.pool import Lease
from azureml_emulator.world import World

T = TypeVar("T")


class Canceled(Exception):
    """Somebody asked for the job's end, or its time is over."""


class JobFailed(Exception):
    """The job cannot go on: `code` and message go to its run record."""

    def __init__(self, code: str, message: str, inner: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.inner = code, message, inner


class Preempted(Exception):
    """The nodes of a low-priority job were taken away."""


@dataclass
class Run:
    """One job as the emulator knows it beside its ARM resource."""

    world: World
    workspace_id: str
    name: str
    resource: dict[str, Any]
    number: int
    cluster: str | None = None
    size: str = ""
    low_priority: bool = False
    attempt: int = 1
    started_at: str | None = None
    ended_at: str | None = None
    began: float = 0.0
    ended: float = 0.0
    modified_at: str = ""
    revision: int = 1
    status_revision: int = 1
    reason: str = ""
    error: dict[str, Any] | None = None
    warnings: list[str] = field(default_factory=list)
    cancelation_reason: str | None = None
    output_assets: dict[str, Any] = field(default_factory=dict)
    output_uris: dict[str, str] = field(default_factory=dict)
    nodes: int = 0
    states: list[tuple[str, float]] = field(default_factory=list)
    canceled: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    execution: executor.Execution | None = None
    gpus: int = 0
    parent: str = ""
    root: str = ""

    @property
    def properties(self) -> dict[str, Any]:
        """``properties`` of the ARM resource."""
        found: dict[str, Any] = self.resource["properties"]
        return found

    @property
    def status(self) -> str:
        """The job's state in the service's words."""
        return str(self.properties["status"])

    @property
    def prefix(self) -> str:
        """Where its artifacts begin in their container."""
        return f"ExperimentRun/dcid.{self.name}/"

    def set(self, status: str) -> None:
        """Go to a state."""
        self.properties["status"] = status
        self.states.append((status, time.time()))
        self.status_revision += 1
        self.touch()

    def touch(self) -> None:
        """Something of it has changed."""
        self.revision += 1
        self.modified_at = self.world.clock.stamp()

    def seconds(self) -> float:
        """Seconds that it has run."""
        return (self.ended or time.time()) - self.began if self.began else 0.0


class Jobs:
    """All jobs of the world, and the folder in which they run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.runs: dict[str, Run] = {}
        self.built: set[str] = set()
        self._root: Path | None = None

    @property
    def root(self) -> Path:
        """Folder of all nodes' folders; anybody may pass through."""
        if self._root is None:
            self._root = Path(tempfile.mkdtemp(prefix="azure-nodes-"))
            self._root.chmod(0o755)
        return self._root

    async def close(self) -> None:
        """Kill what runs, remove the folder."""
        for run in self.runs.values():
            if run.execution is not None:
                run.execution.kill()
        if self._root is not None:
            await asyncio.to_thread(executor.kill_inside, self._root)
            await asyncio.to_thread(executor.remove, self._root)

    def of(self, name: str) -> Run | None:
        """A run by the job's name."""
        return self.runs.get(name)

    def begin(self, run: Run) -> None:
        """Take a job; its life goes on in the background."""
        self.runs[run.name] = run
        run.modified_at = self._world.clock.stamp()
        run.states.append((run.status, time.time()))
        from azureml_emulator.job_life import Life

        self._world.spawn(Life(self, run).live(), f"job {run.name}")


async def unless_ended(run: Run, work: Awaitable[T], lease: Lease | None = None, limit: float | None = None) -> T:
    """Wait for `work`, a cancel, a pre-emption, or the end of the job's time.

    Raises
    ------
    Canceled, Preempted
        Whichever came first.
    """
    task = asyncio.ensure_future(work)
    others: dict[asyncio.Future[Any], str] = {asyncio.ensure_future(run.canceled.wait()): "canceled"}
    if lease is not None:
        others[asyncio.ensure_future(lease.preempted.wait())] = "preempted"
    if limit is not None:
        others[asyncio.ensure_future(run.world.clock.sleep(limit))] = "limit"
    try:
        done, _ = await asyncio.wait([task, *others], return_when=asyncio.FIRST_COMPLETED)
        if task in done:
            return task.result()
        ended = {others[one] for one in done}
        if "preempted" in ended and "canceled" not in ended:
            raise Preempted
        if "limit" in ended and "canceled" not in ended:
            run.cancelation_reason = "The job was canceled because it exceeded its maximum run duration."
        raise Canceled
    finally:
        for one in (task, *others):
            one.cancel()
        await asyncio.gather(task, *others, return_exceptions=True)
