"""Backend: runs jobs on one target. ``tests/contracts/backend.py`` is the contract test of every backend."""

from __future__ import annotations

import abc
import asyncio
import os
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from jupyter_amltrain.agent.protocol import read_regular, valid_run_id
from jupyter_amltrain.backends.local_limits import unsupported
from jupyter_amltrain.backends.past_runs import TRACKING_FILE, PastRun, tracking_state
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.jobs.snapshot import Snapshot
from jupyter_amltrain.schema.child_run import ChildRuns
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunStatus
from jupyter_amltrain.schema.target import ComputeTarget, TargetInfo

#: Streams that a backend can tail. A log belongs to one process of a run: ``log/1`` is that of rank 1, ``log`` that
#: of rank 0. The last three belong to one node: ``telemetry/1`` is that of node 1, ``telemetry`` that of node 0.
#: They are all ticks (JSON lines), their minutes (JSON lines), and one JSON object that is replaced as a whole.
STREAMS = ("log", "metrics", "telemetry", "minutes", "summary")
PER_NODE = ("telemetry", "minutes", "summary")
PER_RANK = ("log",)
#: News of a run that are of no stream.
STATUS = "status"
#: Ids of runs, and what there may be news of.
StreamNews = Mapping[str, Collection[str]]
#: What stands before a monitor's id where :meth:`Backend.read` takes a run id.
MONITORS = "monitors/"


def stream_of(stream: str) -> tuple[str, int]:
    """``telemetry/1`` -> ``("telemetry", 1)``; a bare name is that of node 0 or rank 0.

    Raises
    ------
    CommandError
        There is no such stream.
    """
    name, slash, number = stream.partition("/")
    if name not in STREAMS or (
        slash and not (name in (*PER_NODE, *PER_RANK) and number.isascii() and number.isdigit() and len(number) < 7)
    ):
        raise CommandError(f"There is no stream {stream[:80]!r}.", hint=f"There are: {', '.join(STREAMS)}.")
    return name, int(number or 0)


def monitor_of(run_id: str) -> str | None:
    """The monitor's id in ``monitors/<id>``; ``None`` for a run's id.

    Raises
    ------
    CommandError
        What stands there can be no id, and so no folder.
    """
    if not run_id.startswith(MONITORS):
        return None
    monitor_id = run_id[len(MONITORS) :]
    if not valid_run_id(monitor_id):
        raise CommandError(f"{monitor_id[:80]!r} is not a monitor's id.", hint="Try: %aml_monitor local")
    return monitor_id


def read_local(path: str, limit: int) -> bytes:
    """A regular file of this machine; empty where there is none of at most `limit` bytes. Blocks."""
    try:
        return read_regular(path, limit)
    except (OSError, ValueError):
        return b""


def list_local(folder: str) -> list[str]:
    """Paths of all files below a folder of this machine, relative to it, sorted. Blocks."""
    found = (os.path.relpath(os.path.join(at, name), folder) for at, _, names in os.walk(folder) for name in names)
    return sorted(path.replace(os.sep, "/") for path in found)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The exact request of a launch; printing it sends nothing.

    Attributes
    ----------
    request
        JSON-able, without secrets: what ``--dry-run`` shows.
    notes
        What a person should know before it is launched, one sentence each.
    """

    run_id: str
    spec: JobSpec
    snapshot: Snapshot
    request: dict[str, Any]
    notes: tuple[str, ...] = ()


class Chunk(msgspec.Struct, frozen=True):
    """Bytes of a stream and the offset after them."""

    data: bytes
    offset: int


class RunEvents(abc.ABC):
    """News of runs for one consumer; what came between two calls is not lost."""

    @abc.abstractmethod
    async def wait(self, run_ids: Sequence[str], looked_at: Sequence[str], timeout: float) -> StreamNews:
        """Wait until there may be news of some runs, or `timeout` seconds.

        Returns the ids with news, and what there is news of: :data:`STATUS` of `run_ids`,
        and of `looked_at` also names of streams. A backend that cannot tell returns all of them.
        """

    @staticmethod
    def anything(run_ids: Collection[str]) -> StreamNews:
        """There may be news of everything."""
        return dict.fromkeys(run_ids, (STATUS, *STREAMS))

    @abc.abstractmethod
    def close(self) -> None:
        """Stop listening."""


class Backend(abc.ABC):
    """Runs jobs on one target. Every method runs on the loop; none blocks it."""

    Target: ClassVar[type[ComputeTarget]]
    #: Whether a YAML job's code folder is sent by who loads the file, and so is no part of its snapshot.
    sends_code: ClassVar[bool] = False
    #: Whether a job can rewrite its log: reading must not go on where it ended without a look at what was there.
    log_may_shrink: ClassVar[bool] = False

    def __init__(self, target: ComputeTarget) -> None:
        self.target = target

    @abc.abstractmethod
    async def check(self) -> TargetInfo:
        """What is there. Raises ``TargetUnreachable``, ``AuthenticationError``."""

    async def configure(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change settings of the target's queue (``share_gpus``), which hold at once; returns all of them.

        Raises
        ------
        CommandError
            Its queue has no settings.
        """
        raise CommandError(
            f"{self.target.name!r} gives each run GPUs of its own: there is nothing to share.",
            hint="Sharing is for targets that run jobs on this machine: %aml_compute edit local --share-gpus yes",
        )

    def completed(self, spec: JobSpec) -> JobSpec:
        """The job with what this target fills in. Called in a thread before :meth:`refuses`. No network.

        Raises
        ------
        PreflightError
            What is to be filled in cannot be found here.
        """
        return spec

    def refuses(self, spec: JobSpec) -> str:
        """Why the target cannot run a job, as one sentence that begins with the flag; empty when it can.

        Called in a thread before anything is sent: it looks at `spec`, the target's own fields and the
        submitter's disk, without network calls. What is here is true of a machine under our agent.
        """
        return unsupported(spec, self.target.name)

    @abc.abstractmethod
    async def plan(self, spec: JobSpec, snapshot: Snapshot, run_id: str) -> Plan:
        """The exact request, printable; sends nothing."""

    async def notes(self, plan: Plan) -> Sequence[str]:
        """The notes of a plan that is only shown, with what it takes a question to know; never fails for that."""
        return plan.notes

    @abc.abstractmethod
    async def launch(self, plan: Plan, environ: Mapping[str, str], secrets: Mapping[str, str]) -> Run:
        """Hand the job over; returns when it is accepted, not when it has started.

        `environ` (the submitter's environment) and `secrets` reach the job's process
        and nothing else: no file, no log.
        """

    @abc.abstractmethod
    async def poll(self, run_ids: Sequence[str]) -> Mapping[str, RunStatus]:
        """One round trip for all; an absent id is *unknown*, not *failed*."""

    @abc.abstractmethod
    async def find(self, run_id: str) -> Run | None:
        """The run as the target knows it, for attaching; ``None`` when it has no such run."""

    def holds(self, run: Run) -> bool:
        """Whether a run that :meth:`find` gave is the target's own, and not one that it can only reach."""
        return True

    @abc.abstractmethod
    async def list(self) -> Sequence[Run]:
        """All runs that the target holds, oldest first."""

    async def roster(self, known: Collection[str]) -> tuple[Collection[str], Sequence[Run | PastRun]]:
        """Ids of all runs that the target holds, and those runs that are not among the ids `known`, oldest first."""
        found = await self.list()
        return {run.run_id for run in found}, [run for run in found if run.run_id not in known]

    @abc.abstractmethod
    async def cancel(self, run_id: str) -> None:
        """Ask for the end; idempotent; returns when requested, not when dead."""

    @abc.abstractmethod
    async def delete(self, run_id: str) -> None:
        """Remove an ended run's folder. Raises ``CommandError`` for a live one."""

    @abc.abstractmethod
    async def read(self, run_id: str, stream: str, offset: int, limit: int = 1 << 20) -> Chunk:
        """Up to `limit` bytes of a stream from byte `offset`.

        A negative `offset` counts from the end. Empty data at the end of the
        stream, or while there is none yet. A monitor's streams are read by the run
        id ``monitors/<id>``.
        """

    async def children(self, run_id: str) -> ChildRuns:
        """Steps or trials of a run as they were last seen; reading its log brings them up to date."""
        return ChildRuns()

    async def read_child(self, run_id: str, child: str, offset: int, limit: int = 1 << 20) -> Chunk:
        """Up to `limit` bytes of the log of a step or trial, by its id, as :meth:`read` does.

        Raises
        ------
        CommandError
            The run has no such child.
        """
        raise CommandError(f"A run on {self.target.name!r} has no steps or trials.")

    # ---- files of a run: ``Run.folder`` is a path of the target, and nobody else opens it

    async def local_copy(self, run_id: str, path: str = "") -> str | None:
        """Path on this machine of a file or folder of a run, by default of its whole folder.

        A target whose runs lie elsewhere copies it first. ``None`` where the run has no such file.
        """
        return None

    async def read_file(self, run_id: str, path: str, limit: int = 1 << 24) -> bytes:
        """A file of a run, by its path in the run's folder; empty where there is none, or it has more bytes."""
        place = await self.local_copy(run_id, path)
        return b"" if place is None else await asyncio.to_thread(read_local, place, limit)

    async def list_files(self, run_id: str, folder: str = "") -> Sequence[str]:
        """Paths of all files below a folder of a run, relative to it, sorted."""
        place = await self.local_copy(run_id, folder)
        return [] if place is None else await asyncio.to_thread(list_local, place)

    async def import_states(self, run_ids: Sequence[str]) -> Sequence[str]:
        """What the MLflow importer left with runs: ``imported``, ``direct``, ``failed: <why>``, or empty."""
        return [tracking_state(await self.read_file(run_id, TRACKING_FILE)) for run_id in run_ids]

    @abc.abstractmethod
    async def log_path(self, run_id: str) -> str:
        """Where the whole log lies, to be shown to the user."""

    @abc.abstractmethod
    async def outputs(self, run_id: str, names: Sequence[str]) -> Mapping[str, Any]:
        """Values of ``--out``; a name that did not come home maps to a ``ResultMissing``."""

    def lost(self, run: Run) -> str:
        """Why a run that the target answers not to know is lost, a phrase."""
        return f"its folder {run.folder} is gone"

    @abc.abstractmethod
    def changes(self) -> RunEvents:
        """A new consumer of news of runs."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Stop watching; never cancels a run."""

    async def monitor(self, monitor_id: str, gpus: Sequence[int] | None, period: float) -> str:
        """Sample the target without a run, or go on doing so; returns the monitor's folder.

        A monitor ends by itself some 30 s after the last call.

        Parameters
        ----------
        gpus
            Indices of GPUs; ``None`` for all.
        period
            Seconds between samples.
        """
        raise CommandError(
            f"Target {self.target.name!r} cannot be monitored.", hint="Try: %aml_monitor local, or a run's dashboard."
        )

    async def stop_monitor(self, monitor_id: str) -> None:
        """End a monitor now; no error when there is none."""
        return None

    async def tail(self, run_id: str, stream: str, offset: int = 0) -> AsyncIterator[Chunk]:
        """A stream from a byte offset; ends when the run has ended and all is read."""
        ended, changes = False, self.changes()
        try:
            while True:
                chunk = await self.read(run_id, stream, offset)
                if chunk.data:
                    offset = chunk.offset
                    yield chunk
                elif ended:
                    return
                else:
                    # One more read after the end was seen: what came between is not lost.
                    status = (await self.poll((run_id,))).get(run_id)
                    ended = status is None or status.state.terminal
                    if not ended:
                        await changes.wait((run_id,), (run_id,), 1.0)
        finally:
            changes.close()
