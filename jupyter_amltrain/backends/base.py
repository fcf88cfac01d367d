"""Interface of a backend, which runs jobs on one target. Contract test: ``tests/contracts/backend.py``."""

from __future__ import annotations

import abc
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from jupyter_amltrain.backends.capabilities import (
    ChildReader,
    NativeSweeps,
    RunArrays,
    RunQuestions,
    RunSchedules,
    TargetMonitors,
    TargetOverview,
    TargetQuota,
    TargetSettings,
)
from jupyter_amltrain.backends.environments import BuiltEnvironments, NamedEnvironments
from jupyter_amltrain.backends.honored import check_honored
from jupyter_amltrain.backends.past_runs import PastRun
from jupyter_amltrain.backends.run_placement import RunPlacement
from jupyter_amltrain.backends.streams import Chunk, RunEvents
from jupyter_amltrain.backends.target_files import TargetFiles
from jupyter_amltrain.jobs.origin import Origin
from jupyter_amltrain.jobs.snapshot import Snapshot
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunStatus
from jupyter_amltrain.schema.target import ComputeTarget, TargetInfo

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
    text
        What ``--dry-run`` prints in place of the request; empty for the request.
    notes
        Notes for the user before the launch, one sentence each.
    origin
        Who submits the job, from which state of the project; collected for a submit only.
    """

    run_id: str
    spec: JobSpec
    snapshot: Snapshot
    request: dict[str, Any]
    text: str = ""
    notes: tuple[str, ...] = ()
    origin: Origin = Origin()


class Backend(abc.ABC):
    """Runs jobs on one target. Loop thread only, except where noted; no method blocks the loop.

    Attributes
    ----------
    files
        Files of the runs.
    children
        Steps and trials of the runs.
    settings
        Settings of the target that take effect at once.
    absence_reasons
        By run id, why runs are absent from the result of the last :meth:`poll`, as a phrase, where that is known.
    """

    Target: ClassVar[type[ComputeTarget]]
    #: Environments of the target; ``None`` for a target that keeps none.
    environments: BuiltEnvironments | NamedEnvironments | None = None
    #: Samples of the target without a run; ``None`` for a target that has none.
    monitors: TargetMonitors | None = None
    #: What the target has and does now, as tables; ``None`` for a target of one machine.
    overview: TargetOverview | None = None
    #: What the target lets this user have; ``None`` for a target without such limits.
    quota: TargetQuota | None = None
    #: Arrays of equal runs; ``None`` for a target that takes single runs.
    arrays: RunArrays | None = None
    schedules: RunSchedules | None = None
    #: Questions to runs; ``None`` for a target whose runs cannot be asked.
    questions: RunQuestions | None = None
    #: Sweeps whose trials the target chooses and runs itself; ``None`` for a target that runs single jobs.
    sweeps: NativeSweeps | None = None
    #: Number of machines that run jobs independently of each other, each watched by itself, and which runs they have.
    machines: int = 1
    placement: RunPlacement | None = None

    def __init__(self, target: ComputeTarget, files: TargetFiles) -> None:
        self.target, self.files = target, files
        self.children = ChildReader(files, target.name)
        self.settings = TargetSettings(target.name)
        self.absence_reasons: dict[str, str] = {}

    @abc.abstractmethod
    async def check(self) -> TargetInfo:
        """Return the resources of the target. Raises ``TargetUnreachable``, ``AuthenticationError``."""

    def complete_spec(self, spec: JobSpec) -> JobSpec:
        """Return the job with the target's defaults filled in; no network.

        Called in a thread before :meth:`check_job`.

        Raises
        ------
        PreflightError
            A default cannot be determined on this machine.
        """
        return spec

    def check_job(self, spec: JobSpec) -> None:
        """Raise :class:`SpecError` if the target cannot run a job; the message begins with the flag.

        Called in a thread before anything is sent: it checks `spec`, the target's own fields and the
        submitter's disk, without network calls.
        """
        check_honored(spec, self.target)

    @abc.abstractmethod
    async def plan(self, spec: JobSpec, snapshot: Snapshot, run_id: str) -> LaunchPlan:
        """Return the exact request, printable; send nothing."""

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

    @abc.abstractmethod
    async def list(self, known: Collection[str] = ()) -> tuple[Collection[str], Sequence[Run | PastRun]]:
        """Return the ids of all runs of the target, and the runs whose ids are not `known`, oldest first."""

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

    @abc.abstractmethod
    def events(self) -> RunEvents:
        """Return a new consumer of events of runs."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Stop watching runs; never cancel one."""
