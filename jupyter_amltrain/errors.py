"""Every error a user can meet, as one tree.

::

    AmlTrainError                      .hint: what to type next  .code  .field  .details: for programs
     ├ CommandError                    a bad magic line or spec
     │   ├ UnknownTarget  UnknownRun  UnknownModel  SpecError  MissingDependency  PreflightError
     │   ├ ConfirmationNeeded          it costs or loses something: a question
     ├ TargetError
     │   ├ TargetUnreachable  AuthenticationError  QuotaExceeded  CapacityError  GpuDriverError
     │   │   ├ SubmitUnsure            whether the job was accepted is not known
     │   │   └ CreateUnsure            whether the compute is made is not known
     │   ├ WorkspaceGone               somebody has deleted the workspace
     ├ SubmitError
     │   ├ SnapshotTooLarge  EnvironmentFailed
     ├ RunError
     │   ├ RunFailed                   .exit_code  .log_tail  .cell_line
     │   ├ RunCanceled  RunLost  ResultMissing  UnrecordedRun
     ├ StateError                      the state root cannot be used
     └ ProtocolError                   two versions that do not understand each other

A message has the form *what — where — what to type next* on one line.  IPython
prints these errors without a traceback (:meth:`AmlTrainError._render_traceback_`)
and still counts the cell as failed, so "Run All" stops there.  Anything that is
not an ``AmlTrainError`` is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "AmlTrainError",
    "AuthenticationError",
    "CapacityError",
    "CommandError",
    "ConfirmationNeeded",
    "CreateUnsure",
    "EnvironmentFailed",
    "GpuDriverError",
    "MissingDependency",
    "PreflightError",
    "ProtocolError",
    "QuotaExceeded",
    "ResultMissing",
    "RunCanceled",
    "RunError",
    "RunFailed",
    "RunLost",
    "SnapshotTooLarge",
    "SpecError",
    "StateError",
    "SubmitError",
    "SubmitUnsure",
    "TargetError",
    "TargetUnreachable",
    "UnknownModel",
    "UnknownRun",
    "UnknownTarget",
    "UnrecordedRun",
    "WorkspaceGone",
    "of_name",
]


class AmlTrainError(Exception):
    """Base of all errors that a user can cause or cure.

    Parameters
    ----------
    message
        What happened and where, one sentence.
    hint
        What to type next; appended to the message.
    code
        What happened, for programs: ``"azure.no_compute"``. Nothing may parse the message instead.
    field
        The field that is wrong, as its Struct spells it: ``"resources.gpus"``.
    details
        Plain data about it (what a service answered, a line number); never a secret.
    """

    #: ``%config AMLTrain.short_errors = False`` turns tracebacks back on.
    short = True

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        code: str = "",
        field: str = "",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        # A path may hold bytes that are not UTF-8: no terminal and no notebook takes those.
        message, hint = (text.encode("utf-8", "replace").decode() for text in (message, hint))
        self.message = message
        self.hint = hint
        self.code = code
        self.field = field
        self.details: dict[str, Any] = dict(details or {})
        super().__init__(f"{message} {hint}" if hint else message)

    def _render_traceback_(self) -> list[str]:
        # A list, never a bare string: IPython stores it as the output's
        # traceback, and a string there makes an invalid notebook.
        if not AmlTrainError.short:
            import traceback

            return traceback.format_exception(type(self), self, self.__traceback__)
        return [f"{type(self).__name__}: {self}"]


class CommandError(AmlTrainError):
    """A magic line, command line or spec that cannot be carried out as written."""


class ConfirmationNeeded(CommandError):
    """The command costs or loses something; the hint holds the line that agrees to it."""


class UnknownTarget(CommandError):
    """No compute target of that name."""


class UnknownRun(CommandError):
    """No run of that handle, here or on its target."""


class UnknownModel(CommandError):
    """No registered model of that name and version."""


class SpecError(CommandError):
    """A field of a job has a value that is not allowed."""


class MissingDependency(CommandError):
    """An optional package is needed; the hint holds the install line."""


class PreflightError(CommandError):
    """The script was checked before anything was sent, and would have failed."""


class TargetError(AmlTrainError):
    """The compute target refused or could not do something."""


class TargetUnreachable(TargetError):
    """The target did not answer; runs on it are not lost by that."""


class SubmitUnsure(TargetUnreachable):
    """A job was sent and no answer came: the target may have it, and then lists it."""


class CreateUnsure(TargetUnreachable):
    """A compute was asked for, and what became of it is not known: it may be there, and bill."""


class WorkspaceGone(TargetError):
    """The service answers that there is no such workspace (any more)."""


class AuthenticationError(TargetError):
    """The target did not accept the credentials."""


class QuotaExceeded(TargetError):
    """More was asked for than the quota allows."""


class CapacityError(TargetError):
    """The target has no device of that kind or number."""


class GpuDriverError(TargetError):
    """The target's GPU driver does not work, or the GPUs asked for are lost; the message says what repairs it."""


class SubmitError(AmlTrainError):
    """A job could not be handed to its target."""


class SnapshotTooLarge(SubmitError):
    """The source folder is over the size limit; the message names the culprits."""


class EnvironmentFailed(SubmitError):
    """The job's environment could not be made ready."""


class RunError(AmlTrainError):
    """A run did not end well."""


class RunFailed(RunError):
    """The script raised, exited non-zero, was killed or ran out of time.

    Parameters
    ----------
    exit_code
        The process' exit code; ``None`` when a signal ended it.
    log_tail
        The last lines of the log.
    cell_line
        1-based line of the submitted cell where the exception arose, if known.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        exit_code: int | None = None,
        log_tail: str = "",
        cell_line: int | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code
        self.log_tail = log_tail
        self.cell_line = cell_line

    def _render_traceback_(self) -> list[str]:
        lines = super()._render_traceback_()
        if self.log_tail:
            lines += ["", "end of the log:", *("  " + x for x in self.log_tail.splitlines())]
        return lines


class RunCanceled(RunError):
    """Somebody cancelled the run that was waited for."""


class RunLost(RunError):
    """The target itself says that the run's supervisor is gone."""


class ResultMissing(RunError):
    """Values named by ``--out`` were not returned.

    Parameters
    ----------
    name
        Of the value, where it is one.
    why
        In words, without the name: ``"a DataFrame, saved as ..."``.
    """

    def __init__(self, message: str, *, hint: str = "", name: str = "", why: str = "") -> None:
        super().__init__(message, hint=hint)
        self.name, self.why = name, why

    @classmethod
    def of_all(cls, handle: str, missing: Sequence[ResultMissing]) -> ResultMissing:
        """One error that names every value of a run that was not returned."""
        if len(missing) == 1 or not all(one.name for one in missing):
            return missing[0]
        told = "; ".join(f"{one.name}: {one.why}" for one in missing)
        return cls(f"--out: {len(missing)} values of {handle} were not returned. {told}.")


class UnrecordedRun(RunError):
    """A run was not deleted, because only its folder holds what it logged to MLflow."""


class StateError(AmlTrainError):
    """The state root is read-only, full, of a newer schema, or not ours."""


class DamagedRun(StateError):
    """A run's folder cannot be understood; it can be deleted."""


class ProtocolError(AmlTrainError):
    """Two parts of different versions met."""


def of_name(name: str) -> type[AmlTrainError] | None:
    """The class of that name, as another process wrote it; ``None`` when it is none of these."""
    found = globals().get(name)
    return found if isinstance(found, type) and issubclass(found, AmlTrainError) else None
