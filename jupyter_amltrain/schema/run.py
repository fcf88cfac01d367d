"""Runs: handle, state, status, links, and the order of states."""

from __future__ import annotations

import enum
from typing import Any, NewType

import msgspec

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run_file import SavedValue

#: Reason of a run whose folder cannot be read. Its state is ``lost``, which readers of any version know.
DAMAGED = "damaged"
#: Reason of a live run whose state cannot be written at the moment: the displayed state may be out of date.
NOT_WRITTEN = "not-written"

#: ``"<target>/<run-id>"``: enough to attach from any kernel.
RunHandle = NewType("RunHandle", str)


class RunState(str, enum.Enum):
    """State of a run."""

    PREPARING = "preparing"  #: being checked and packed in the kernel
    QUEUED = "queued"  #: accepted by the target, waiting for a slot
    RUNNING = "running"  #: its process runs
    FINALIZING = "finalizing"  #: its process ended; left-over processes and files are removed
    COMPLETED = "completed"  #: exit code 0
    FAILED = "failed"  #: any other end without a cancel request
    CANCELED = "canceled"  #: ended by a cancel request
    LOST = "lost"  #: the target reports that the run has no supervisor any more

    @property
    def terminal(self) -> bool:
        """Whether the state is final."""
        return self in _TERMINAL


_TERMINAL = frozenset({RunState.COMPLETED, RunState.FAILED, RunState.CANCELED, RunState.LOST})
# PREPARING and QUEUED share a rank: a service may pack after it queues.
_RANK = {
    RunState.PREPARING: 0,
    RunState.QUEUED: 0,
    RunState.RUNNING: 1,
    RunState.FINALIZING: 2,
    RunState.COMPLETED: 3,
    RunState.FAILED: 3,
    RunState.CANCELED: 3,
    RunState.LOST: 3,
}


def advances(old: RunState, new: RunState) -> bool:
    """Return whether an observed run may go from `old` to `new`.

    Observers may miss states but states never go backward. Terminal states
    are final; the one way back is ``RUNNING -> QUEUED`` (preemption).
    """
    if old.terminal or old is new:
        return False
    if old is RunState.RUNNING and new is RunState.QUEUED:
        return True
    return _RANK[new] >= _RANK[old]


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """One phase of a run.

    Attributes
    ----------
    start, end
        Unix seconds; `end` is ``None`` while the phase lasts.
    seconds
        Duration by the target's monotonic clock, unaffected by clock changes.
    """

    name: str
    start: float
    end: float | None = None
    seconds: float | None = None


class RunLink(msgspec.Struct, frozen=True, kw_only=True):
    """Link to a page about a run, or to a service of a running one. It contains no secret: visitors have to sign in.

    Attributes
    ----------
    kind
        ``studio`` (the run's page at the service), ``jupyterlab``, ``vscode``, ``tensorboard``, ``ssh``, or ``other``.
    title
        Display name: ``JupyterLab``.
    url
        An ``https`` address; empty if a browser cannot open the link.
    hint
        Command to type instead, or the reason why the link is not open.
    """

    kind: str
    title: str
    url: str = ""
    hint: str = ""


class PastAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """End of an earlier attempt of a run that was started again.

    Attributes
    ----------
    reason
        As of :class:`RunStatus`.
    seconds
        Run time.
    """

    reason: str = ""
    detail: str = ""
    exit_code: int | None = None
    signal: int | None = None
    seconds: float | None = None


class Poke(msgspec.Struct, frozen=True, kw_only=True):
    """A statement that somebody has run in a job: the values of the run alone do not repeat it.

    Attributes
    ----------
    time
        Unix seconds.
    who
        User and machine.
    step
        Step of the newest metric that was logged before.
    error
        What it has raised; empty if it has run.
    """

    time: float
    who: str = ""
    rank: int = 0
    step: int | None = None
    text: str = ""
    error: str = ""


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of one run as a backend observed it at one moment."""

    state: RunState
    detail: str = ""
    #: exit, signal, oom, timeout, canceled, lost, launch, gpu-unused, preempted, damaged, not-written
    reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    phases: tuple[Phase, ...] = ()
    devices: tuple[str, ...] = ()
    cancel_requested: bool = False
    version: int = 0  #: grows with every write of the target
    truth: dict[str, str] = {}  #: whether it used its GPUs: verdict, detail, cause (``agent/telemetry/gpu_usage.py``)
    cause: dict[str, str] = {}  #: failure caused by its GPUs: kind, text, action (``agent/supervise/outcome.py``)
    nodes: int = 1  #: machines it runs on
    ranks: int = 1  #: processes with a log of their own, on all nodes
    attempt: int = 1  #: number of the current attempt
    attempts: tuple[PastAttempt, ...] = ()  #: ends of the earlier attempts
    failed_rank: int | None = None  #: process that failed first, of a run of several
    notes: tuple[str, ...] = ()  #: notes of the target about the start: a shared GPU, no GPU because of the driver
    experiment: str = ""  #: MLflow experiment that the script has chosen; empty for that of its job
    pokes: tuple[Poke, ...] = ()  #: the newest statements that were run in it (``agent/asking/pokes.py``)
    #: Its page first; the others while it runs. Files have an older name.
    links: tuple[RunLink, ...] = msgspec.field(default=(), name="doors")

    @property
    def started(self) -> float | None:
        """When it began to run, in Unix seconds."""
        return next((phase.start for phase in self.phases if phase.name == "running"), None)

    @property
    def ended(self) -> float | None:
        """When its last phase ended, or began where that is not known, in Unix seconds."""
        return (self.phases[-1].end or self.phases[-1].start) if self.phases else None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One tracked execution, as the kernel knows it."""

    handle: RunHandle
    spec: JobSpec
    status: RunStatus
    created: float  #: unix seconds, when it was submitted
    reachable: bool = True  #: False while the target does not answer; never a state
    seen_at: float = 0.0  #: unix seconds of the last observation
    folder: str = ""  #: the run folder on the target, or another name for it; empty until the target accepted the run
    project: str = ""  #: the folder whose ``.amltrain`` holds the MLflow store
    tracking_id: str = ""  #: MLflow run id, 32 hex digits
    tracking: str = "pending"  #: pending, imported, failed: <reason>, direct; see `tracking_state`
    outputs: dict[str, Any] = {}  #: values of ``--out`` that were returned
    saved: dict[str, SavedValue] = {}  #: values of ``--out`` that are files of the run
    graphs: dict[str, str] = {}  #: files with the values of ``--out`` that share objects, by name of the value
    error: str | None = None  #: one line, for the end of the run
    models: tuple[str, ...] | None = None  #: models among its files, as ``%aml_model`` takes them; once it has ended
    notes: tuple[str, ...] = ()  #: notes of the submit, one sentence each
    is_guest: bool = False  #: it belongs to another target, and this one only reaches it
    partial: bool = False  #: `spec` has only what lists show of the job; ``Controller.load`` reads the rest

    @property
    def target(self) -> str:
        """Name of the compute target."""
        return self.handle.partition("/")[0]

    @property
    def run_id(self) -> str:
        """The run's id on its target."""
        return self.handle.partition("/")[2]

    @property
    def experiment(self) -> str:
        """Name of its MLflow experiment: what its script has chosen, else that of its job."""
        return self.status.experiment or self.spec.experiment

    @property
    def tracking_state(self) -> str:
        """State of the run's record in MLflow: ``pending``, ``imported``, ``failed`` or ``direct``."""
        return self.tracking.partition(":")[0]

    @property
    def tracking_error(self) -> str:
        """Why the record in MLflow could not be written; empty unless `tracking_state` is ``failed``."""
        return self.tracking.partition(":")[2].strip()

    @property
    def parent(self) -> str:
        """Handle of the run that this one is part of; empty for a run of its own."""
        return self.spec.parent

    @property
    def damaged(self) -> bool:
        """Whether the run's folder cannot be read."""
        return self.status.reason == DAMAGED and self.status.state is RunState.LOST

    @property
    def cancel_requested(self) -> bool:
        """Whether a cancel was requested; a flag, not a state."""
        return self.status.cancel_requested


def make_handle(target: str, run_id: str) -> RunHandle:
    """Join a target's name and a run id."""
    return RunHandle(f"{target}/{run_id}")


def split_handle(handle: str) -> tuple[str, str]:
    """Split ``"<target>/<run-id>"``.

    Raises
    ------
    CommandError
        If `handle` has not exactly one slash with text on both sides.
    """
    target, slash, run_id = handle.partition("/")
    if not slash or not target or not run_id or "/" in run_id or not handle.isprintable():
        raise CommandError(f"{handle!r} is not a run handle.", hint="Write <target>/<run-id>; %aml_runs lists them.")
    return target, run_id
