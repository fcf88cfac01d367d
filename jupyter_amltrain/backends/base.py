"""Interface of a backend, which runs jobs on one target. Contract test: ``tests/contracts/backend.py``."""

from __future__ import annotations

import abc
import asyncio
import os
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from jupyter_amltrain.agent.pictures.listing import list_pictures
from jupyter_amltrain.agent.protocol import read_regular, valid_run_id
from jupyter_amltrain.backends.environments import BuiltEnvironments, NamedEnvironments
from jupyter_amltrain.backends.local_limits import unsupported
from jupyter_amltrain.backends.past_runs import TRACKING_FILE, PastRun, tracking_state
from jupyter_amltrain.errors import AmlTrainError, CommandError
from jupyter_amltrain.jobs.origin import Origin
from jupyter_amltrain.jobs.snapshot import Snapshot
from jupyter_amltrain.schema.child_run import ChildRuns
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunStatus
from jupyter_amltrain.schema.run_file import OutValue, RunFile
from jupyter_amltrain.schema.sweep import Sweep
from jupyter_amltrain.schema.target import ComputeTarget, TargetInfo

#: Streams that a backend can tail. A log belongs to one process of a run: ``log/1`` is the log of rank 1, ``log`` that
#: of rank 0. The last three belong to one node: ``telemetry/1`` is of node 1, ``telemetry`` of node 0. They contain
#: all ticks (JSON lines), aggregates per minute (JSON lines), and one JSON object that is replaced as a whole.
STREAMS = ("log", "metrics", "telemetry", "minutes", "summary")
PER_NODE = ("telemetry", "minutes", "summary")
PER_RANK = ("log",)
#: Event of a run's status, as opposed to one of its streams.
STATUS = "status"
#: Ids of runs, and the streams that may have changed.
StreamChanges = Mapping[str, Collection[str]]
#: Prefix of a monitor's id in place of a run id in :meth:`Backend.read`.
MONITORS = "monitors/"


def stream_of(stream: str) -> tuple[str, int]:
    """Split ``telemetry/1`` into ``("telemetry", 1)``; a bare name means node 0 or rank 0.

    Raises
    ------
    CommandError
        The stream does not exist.
    """
    name, slash, number = stream.partition("/")
    if name not in STREAMS or (
        slash and not (name in (*PER_NODE, *PER_RANK) and number.isascii() and number.isdigit() and len(number) < 7)
    ):
        raise CommandError(f"There is no stream {stream[:80]!r}.", hint=f"Available: {', '.join(STREAMS)}.")
    return name, int(number or 0)


def monitor_of(run_id: str) -> str | None:
    """Return the monitor's id in ``monitors/<id>``; ``None`` for a run's id.

    Raises
    ------
    CommandError
        The id is invalid.
    """
    if not run_id.startswith(MONITORS):
        return None
    monitor_id = run_id[len(MONITORS) :]
    if not valid_run_id(monitor_id):
        raise CommandError(f"{monitor_id[:80]!r} is not a monitor id.", hint="Try: %aml_monitor local")
    return monitor_id


def read_local(path: str, limit: int) -> bytes:
    """Return the content of a regular local file; empty if it is absent or larger than `limit` bytes. Blocks."""
    try:
        return read_regular(path, limit)
    except (OSError, ValueError):
        return b""


def read_local_part(path: str, offset: int, limit: int) -> bytes:
    """Return up to `limit` bytes of a regular local file from byte `offset`; empty if it is none. Blocks."""
    if not os.path.isfile(path):  # a FIFO would block
        return b""
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(limit)


def list_local(folder: str) -> list[RunFile]:
    """Return all files below a local folder, by path; links to folders are not followed. Blocks."""
    found = []
    for parent, _, names in os.walk(folder):
        for name in names:
            file = os.path.join(parent, name)
            try:
                status = os.stat(file)
            except OSError:  # deleted meanwhile, or a link to nothing
                continue
            path = os.path.relpath(file, folder).replace(os.sep, "/")
            found.append(RunFile(path=path, size=status.st_size, modified=status.st_mtime))
    return sorted(found, key=lambda file: file.path)


#: Key in the details of an error of :meth:`Backend.check`: fields with which it succeeds, if the user accepts them.
ACCEPT = "accept"
#: Key of the question that the user answers.
ACCEPT_QUESTION = "accept_question"


class LaunchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Exact request of a launch; creating or printing it sends nothing.

    Attributes
    ----------
    request
        JSON-serializable request without secrets, as ``--dry-run`` shows it.
    notes
        Notes for the user before the launch, one sentence each.
    origin
        Who submits the job, from which state of the project; collected for a submit only.
    """

    run_id: str
    spec: JobSpec
    snapshot: Snapshot
    request: dict[str, Any]
    notes: tuple[str, ...] = ()
    origin: Origin = Origin()


class Chunk(msgspec.Struct, frozen=True):
    """Bytes of a stream and the offset after them."""

    data: bytes
    offset: int


class RunEvents(abc.ABC):
    """Events of runs for one consumer; events between two calls are not lost."""

    @abc.abstractmethod
    async def wait(self, run_ids: Sequence[str], viewed: Sequence[str], timeout: float) -> StreamChanges:
        """Wait until some runs may have changed, or `timeout` seconds.

        Returns the ids of changed runs with the changes: :data:`STATUS` for `run_ids`, and for `viewed` (runs with
        viewers) also names of streams. A backend without change detection returns all of them.
        """

    @staticmethod
    def anything(run_ids: Collection[str]) -> StreamChanges:
        """Return events for the status and all streams of all runs."""
        return dict.fromkeys(run_ids, (STATUS, *STREAMS))

    @abc.abstractmethod
    def close(self) -> None:
        """Stop listening."""


class Backend(abc.ABC):
    """Runs jobs on one target. Loop thread only, except where noted; no method blocks the loop."""

    Target: ClassVar[type[ComputeTarget]]
    #: Whether the backend sends a YAML job's code folder itself, so that the snapshot does not contain it.
    sends_code: ClassVar[bool] = False
    #: Whether a job can rewrite its log: a reader must verify the bytes before its offset before it continues.
    log_may_shrink: ClassVar[bool] = False
    #: Whether the files of runs are on this machine: a list of runs reads the metrics of every row.
    files_are_local: ClassVar[bool] = False
    #: Whether local copies of files have the modes that the run gave them: then its code can be compared by digest.
    copies_have_modes: ClassVar[bool] = False
    #: Whether listing the files of a run costs requests to a service: then they are not listed at each end of a run.
    lists_by_service: ClassVar[bool] = False
    #: Whether :meth:`live_copies` works.
    has_live_copies: ClassVar[bool] = False

    #: Whether the target chooses and runs the trials of a sweep itself.
    runs_sweeps: ClassVar[bool] = False

    #: Environments of the target; ``None`` for a target that keeps none.
    environments: BuiltEnvironments | NamedEnvironments | None = None

    def __init__(self, target: ComputeTarget) -> None:
        self.target = target

    @abc.abstractmethod
    async def check(self) -> TargetInfo:
        """Return the resources of the target. Raises ``TargetUnreachable``, ``AuthenticationError``."""

    async def configure(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change settings of the target, effective at once; return all settings.

        Parameters
        ----------
        settings
            ``share_gpus`` of its queue, or ``idle_shutdown`` (minutes), ``schedule_start`` and ``schedule_stop``.

        Raises
        ------
        CommandError
            The target has no such setting.
        """
        if "share_gpus" not in settings:
            raise CommandError(
                f"{self.target.name!r} does not stop automatically.",
                hint="Instances (--kind instance) and machines over SSH have --idle-shutdown.",
                code="compute.setting",
                field=next(iter(settings), ""),
            )
        raise CommandError(
            f"{self.target.name!r} does not support sharing GPUs: each run has GPUs of its own.",
            hint="Targets that run jobs on this machine support it: %aml_compute edit local --share-gpus yes",
        )

    def complete_spec(self, spec: JobSpec) -> JobSpec:
        """Return the job with the target's defaults filled in; no network.

        Called in a thread before :meth:`unsupported_reason`.

        Raises
        ------
        PreflightError
            A default cannot be determined on this machine.
        """
        return spec

    def unsupported_reason(self, spec: JobSpec) -> str:
        """Return why the target cannot run a job, as one sentence that begins with the flag; empty if it can.

        Called in a thread before anything is sent: it checks `spec`, the target's own fields and the
        submitter's disk, without network calls. This default is for a machine with our agent.
        """
        return unsupported(spec, self.target.name)

    @abc.abstractmethod
    async def plan(self, spec: JobSpec, snapshot: Snapshot, run_id: str) -> LaunchPlan:
        """Return the exact request, printable; send nothing."""

    async def notes(self, plan: LaunchPlan) -> Sequence[str]:
        """Return the notes of a plan that is only shown, including those that need a request; errors are ignored."""
        return plan.notes

    @abc.abstractmethod
    async def launch(self, plan: LaunchPlan, environ: Mapping[str, str], secrets: Mapping[str, str]) -> Run:
        """Submit the job; return when it is accepted, not when it has started.

        `environ` (the submitter's environment) and `secrets` are passed to the job's process
        only, never to a file or log.
        """

    @abc.abstractmethod
    async def poll(self, run_ids: Sequence[str]) -> Mapping[str, RunStatus]:
        """Return the status of runs in one round trip; an absent id means *unknown*, not *failed*."""

    @abc.abstractmethod
    async def find(self, run_id: str) -> Run | None:
        """Return a run for attaching; ``None`` if the target has no such run."""

    @property
    def machines(self) -> int:
        """Number of machines of the target that run jobs independently of each other, each watched by itself."""
        return 1

    def machine_of(self, run_id: str) -> int:
        """Return the number of the machine, from 0, whose answers a run depends on."""
        return 0

    def owns(self, run: Run) -> bool:
        """Return whether a run from :meth:`find` belongs to this target, and is not only reachable through it."""
        return True

    @abc.abstractmethod
    async def list(self) -> Sequence[Run]:
        """Return all runs of the target, oldest first."""

    async def list_unknown(self, known: Collection[str]) -> tuple[Collection[str], Sequence[Run | PastRun]]:
        """Return the ids of all runs of the target, and the runs whose ids are not `known`, oldest first."""
        runs = await self.list()
        return {run.run_id for run in runs}, [run for run in runs if run.run_id not in known]

    async def known_runs(self) -> Sequence[Run]:
        """Return the runs that this machine knows without asking the target, by their copies here; oldest first."""
        return ()

    async def copied_file(self, run_id: str, path: str) -> bytes:
        """Return what this machine has of a file of a run without asking the target, at most its last MiB."""
        return b""

    @abc.abstractmethod
    async def cancel(self, run_id: str) -> None:
        """Request the end of a run; idempotent; return when it is requested, not when the run has ended."""

    @abc.abstractmethod
    async def delete(self, run_id: str) -> None:
        """Remove an ended run's folder. Raises ``CommandError`` for a live one."""

    @abc.abstractmethod
    async def read(self, run_id: str, stream: str, offset: int, limit: int = 1 << 20) -> Chunk:
        """Return up to `limit` bytes of a stream from byte `offset`.

        A negative `offset` counts from the end. The data is empty at the end of the
        stream, or before it exists. A monitor's streams are read by the run
        id ``monitors/<id>``.
        """

    def complete_sweep(self, sweep: Sweep) -> Sweep:
        """Return a sweep in the form that the target runs. Any thread.

        Raises
        ------
        SpecError
            The target cannot run it.
        """
        return sweep

    async def children(self, run_id: str) -> ChildRuns:
        """Return the last known steps or trials of a run; reading the run's log updates them."""
        return ChildRuns()

    async def read_child(self, run_id: str, child: str, offset: int, limit: int = 1 << 20) -> Chunk:
        """Return up to `limit` bytes of the log of a step or trial, by its id, as :meth:`read` does.

        Raises
        ------
        CommandError
            The run has no such child.
        """
        raise CommandError(f"A run on {self.target.name!r} has no steps or trials.")

    # ---- files of a run: ``Run.folder`` is a path on the target, which only the backend opens

    async def local_copy(self, run_id: str, path: str = "") -> str | None:
        """Return a local path of a file or folder of a run, by default of its whole folder.

        A target on another machine copies it first: of the whole folder all but the code and the outputs, which are
        copied by their own paths. ``None`` if the run has no such file.
        """
        return None

    async def live_copies(self, run_ids: Sequence[str]) -> Mapping[str, str]:
        """Return local folders that have the journals of living runs, of those which may have logged more.

        Without `run_ids` the backend stops to follow the runs of the last call.
        """
        return {}

    def sending(self, run_id: str) -> str:
        """Return the progress of sending the files of a new run; empty if none are being sent."""
        return ""

    async def read_file(self, run_id: str, path: str, limit: int = 1 << 24) -> bytes:
        """Return a file by its path in the run's folder; empty if it is absent or larger than `limit` bytes."""
        local_path = await self.local_copy(run_id, path)
        return b"" if local_path is None else await asyncio.to_thread(read_local, local_path, limit)

    async def list_files(self, run_id: str, folder: str = "") -> Sequence[RunFile]:
        """Return all files below a folder of a run, with paths relative to it, by path."""
        local_path = await self.local_copy(run_id, folder)
        return [] if local_path is None else await asyncio.to_thread(list_local, local_path)

    async def read_part(self, run_id: str, path: str, offset: int, limit: int) -> bytes:
        """Return up to `limit` bytes of a file of a run from byte `offset`; empty at its end or if it is absent."""
        local_path = await self.local_copy(run_id, path)
        return b"" if local_path is None else await asyncio.to_thread(read_local_part, local_path, offset, limit)

    async def list_pictures(self, run_id: str) -> Sequence[Mapping[str, Any]]:
        """Return the newest image files of a run, oldest first; see ``agent/pictures/listing.py``."""
        local_path = await self.local_copy(run_id)
        return [] if local_path is None else await asyncio.to_thread(list_pictures, local_path)

    async def import_states(self, run_ids: Sequence[str]) -> Sequence[str]:
        """Return the result of the MLflow importer for runs: ``imported``, ``direct``, ``failed: <reason>``, ""."""
        return [tracking_state(await self.read_file(run_id, TRACKING_FILE)) for run_id in run_ids]

    @abc.abstractmethod
    async def log_path(self, run_id: str) -> str:
        """Return the path of the complete log, for display."""

    @abc.abstractmethod
    async def outputs(self, run_id: str, names: Sequence[str]) -> Mapping[str, OutValue | AmlTrainError]:
        """Return values of ``--out``; a name without a value maps to a ``ResultMissing``."""

    def lost_reason(self, run: Run) -> str:
        """Return why a run that the target no longer knows is lost, a phrase."""
        return f"its folder {run.folder} no longer exists"

    @abc.abstractmethod
    def events(self) -> RunEvents:
        """Return a new consumer of events of runs."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Stop watching runs; never cancel one."""

    async def monitor(self, monitor_id: str, gpus: Sequence[int] | None, period: float) -> str:
        """Start or continue sampling the target without a run; return the monitor's folder.

        A monitor ends automatically some 30 s after the last call.

        Parameters
        ----------
        gpus
            Indices of GPUs; ``None`` for all.
        period
            Seconds between samples.

        Raises
        ------
        CommandError
            The target has nothing to sample without a run.
        """
        raise CommandError(
            f"Target {self.target.name!r} does not support monitoring.",
            hint="Try: %aml_monitor local, or a run's dashboard.",
            code="monitor.unsupported",
        )

    def no_samples_reason(self, monitor_id: str) -> str:
        """Return why a monitor that was read has no samples yet, if the target knows; empty if they are due."""
        return ""

    async def stop_monitor(self, monitor_id: str) -> None:
        """End a monitor now; no error if it does not exist."""
        return None

    async def tail(self, run_id: str, stream: str, offset: int = 0) -> AsyncIterator[Chunk]:
        """Yield a stream from a byte offset, until the run has ended and everything is read."""
        ended, changes = False, self.events()
        try:
            while True:
                chunk = await self.read(run_id, stream, offset)
                if chunk.data:
                    offset = chunk.offset
                    yield chunk
                elif ended:
                    return
                else:
                    # Read once more after the end was seen, for bytes written in between.
                    status = (await self.poll((run_id,))).get(run_id)
                    ended = status is None or status.state.terminal
                    if not ended:
                        await changes.wait((run_id,), (run_id,), 1.0)
        finally:
            changes.close()
