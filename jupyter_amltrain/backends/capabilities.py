"""Capabilities of a backend besides running jobs: settings, monitors, children of runs, sweeps.

``environments.py`` has those for environments, ``target_files.py`` has the files of runs.
"""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from jupyter_amltrain.backends.streams import Chunk
from jupyter_amltrain.backends.target_files import TargetFiles
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.schema.child_run import CHILDREN, MAX_CHILDREN_BYTES, ChildRuns
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.sweep import Sweep

#: Changes settings of a target, and returns all of them.
ChangeSettings = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


class TargetSettings:
    """Settings of a target that take effect at once.

    Parameters
    ----------
    **changes
        By name of a setting, the function that changes it: ``share_gpus`` of a queue, or ``idle_shutdown`` (minutes),
        ``schedule_start`` and ``schedule_stop``.
    """

    def __init__(self, target: str, /, **changes: ChangeSettings) -> None:
        self._target, self._changes = target, changes

    async def change(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change settings, which one function of the target knows; return all of its settings.

        Raises
        ------
        CommandError
            The target has no such setting.
        """
        first = next(iter(settings), "")
        if settings and settings.keys() <= self._changes.keys():
            return await self._changes[first](settings)
        if "share_gpus" not in settings:
            raise CommandError(
                f"{self._target!r} does not stop automatically.",
                hint="Instances (--kind instance) and machines over SSH have --idle-shutdown.",
                code="compute.setting",
                field=first,
            )
        raise CommandError(
            f"{self._target!r} does not support sharing GPUs: each run has GPUs of its own.",
            hint="Targets that run jobs on this machine support it: %aml_compute edit local --share-gpus yes",
        )


class TargetMonitors(abc.ABC):
    """Samples of the machines of a target without a run, as ``monitors/<id>`` in :meth:`Backend.read`."""

    @abc.abstractmethod
    async def start(self, monitor_id: str, gpus: Sequence[int] | None, period: float) -> str:
        """Start or continue sampling; return the monitor's folder.

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

    @abc.abstractmethod
    async def stop(self, monitor_id: str) -> None:
        """End a monitor now; no error if it does not exist."""

    def no_samples_reason(self, monitor_id: str) -> str:
        """Return why a monitor that was read has no samples yet, if the target knows; empty if they are due."""
        return ""


class TargetOverview(abc.ABC):
    """What a target of many machines has and does now, in place of the samples of one machine."""

    @abc.abstractmethod
    async def read(self) -> tuple[str, list[dict[str, Any]]]:
        """Return tables for people, and the same as rows for programs.

        Raises
        ------
        TargetUnreachable
            The target does not answer.
        """


class TargetQuota(abc.ABC):
    """What a target lets this user have, and what is used of it."""

    @abc.abstractmethod
    async def read(self, *, everything: bool = False) -> tuple[str, list[dict[str, Any]]]:
        """Return tables for people, and the same as rows for programs.

        Parameters
        ----------
        everything
            Also what allows nothing.

        Raises
        ------
        CommandError
            The target does not tell.
        """


class RunSchedules(abc.ABC):
    """Jobs that a target submits itself at fixed times."""

    @abc.abstractmethod
    async def create(self, name: str, cron: str, spec: JobSpec) -> dict[str, Any]:
        """Let the target submit a job at these times from now on; a schedule of this name is replaced.

        Parameters
        ----------
        cron
            Minute, hour, day, month, day of the week.
        spec
            Checked job.

        Returns
        -------
        dict
            Its row: ``name``, ``when``, ``time_zone``, ``enabled``, ``job``.

        Raises
        ------
        SpecError
            The target cannot run such a job itself.
        """

    @abc.abstractmethod
    async def list(self) -> list[dict[str, Any]]:
        """Return the rows of all schedules."""

    @abc.abstractmethod
    async def remove(self, name: str) -> bool:
        """Remove a schedule; return whether there was one. Jobs that it has submitted stay."""


class RunArrays(abc.ABC):
    """Runs that differ only in their parameters: the target queues them together, and starts so many at a time itself.

    An array is opened, its runs are submitted as others are, and it is released: then they start.
    """

    @abc.abstractmethod
    async def max_runs(self) -> int:
        """Return how many runs an array has at most; 0 for a target that takes none now."""

    @abc.abstractmethod
    async def open(
        self,
        array: str,
        spec: JobSpec,
        run_ids: Sequence[str],
        max_running: int,
        environ: Mapping[str, str],
        secrets: Mapping[str, str],
    ) -> None:
        """Queue an array whose runs do not start yet; an array of this name that exists gets these runs.

        Parameters
        ----------
        array
            Its name, a valid run id.
        spec
            Checked job of one of the runs.
        run_ids
            Ids with which its runs are submitted from now on.
        environ, secrets
            As for :meth:`Backend.launch`.

        Raises
        ------
        SubmitError
            The target does not take it; single runs it may take.
        SpecError
            The target cannot run the job.
        """

    @abc.abstractmethod
    async def release(self, array: str) -> None:
        """Let the runs of an array start; those that were not submitted are removed from it. Idempotent."""

    @abc.abstractmethod
    async def cancel(self, array: str) -> None:
        """Request the end of all runs of an array, as :meth:`Backend.cancel` does."""


class RunQuestions(abc.ABC):
    """Questions that the processes of a run answer while it runs."""

    @abc.abstractmethod
    async def ask(self, run_id: str, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the answers of a run, as :func:`jupyter_amltrain.agent.asking.questions.ask` does.

        Raises
        ------
        CommandError
            The run is not running, or answers no questions.
        """


class ChildReader:
    """Steps and trials of the runs of a target, which a file in the folder of their run lists."""

    def __init__(self, files: TargetFiles, target: str) -> None:
        self._files, self._target = files, target

    async def list(self, run_id: str) -> ChildRuns:
        """Return the last known steps or trials of a run; reading the run's log updates them."""
        data = await self._files.read(run_id, CHILDREN, MAX_CHILDREN_BYTES)
        try:
            return msgspec.json.decode(data, type=ChildRuns) if data else ChildRuns()
        except msgspec.MsgspecError:  # a job can write any file of its folder
            return ChildRuns()

    async def read_log(self, run_id: str, child: str, offset: int, limit: int = 1 << 20) -> Chunk:
        """Return up to `limit` bytes of the log of a step or trial, by its id, as :meth:`Backend.read` does.

        Raises
        ------
        CommandError
            The run has no such child.
        """
        raise CommandError(f"A run on {self._target!r} has no steps or trials.")


class NativeSweeps(abc.ABC):
    """Sweeps of a target that chooses and runs the trials itself."""

    @abc.abstractmethod
    def complete(self, sweep: Sweep) -> Sweep:
        """Return a sweep in the form that the target runs. Any thread.

        Raises
        ------
        SpecError
            The target cannot run it.
        """
