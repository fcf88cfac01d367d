"""Exceptions shown to users, as one class hierarchy.

::

    AmlTrainError                      .hint: what to type next  .code  .field  .details: for programs
     ├ CommandError                    a bad magic line or spec
     │   ├ UnknownTarget  UnknownRun  UnknownModel  SpecError  MissingDependency  PreflightError
     │   ├ ConfirmationNeeded          costs money or loses data: ask first
     ├ TargetError
     │   ├ TargetUnreachable  AuthenticationError  QuotaExceeded  CapacityError  GpuDriverError
     │   │   ├ SubmitUnsure            unknown whether the job was accepted
     │   │   └ CreateUnsure            unknown whether the compute was created
     │   ├ WorkspaceGone               the workspace was deleted
     ├ SubmitError
     │   ├ SnapshotTooLarge  EnvironmentFailed
     ├ RunError
     │   ├ RunFailed                   .exit_code  .log_tail  .cell_line  .frames
     │   ├ RunCanceled  RunLost  ResultMissing  UnrecordedRun
     ├ StateError                      the state root cannot be used
     └ ProtocolError                   two incompatible versions

A message has the form *<what failed>: <why>. <what to do>.* on one line.  IPython
prints these errors without a traceback (:meth:`AmlTrainError._render_traceback_`)
and still counts the cell as failed, so "Run All" stops there.  Anything that is
not an ``AmlTrainError`` is a bug in this package and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

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
    "NoAnswer",
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
    "error_class",
]


class AmlTrainError(Exception):
    """Base class of all errors that a user can cause or fix.

    Parameters
    ----------
    message
        What happened and where, one sentence.
    hint
        What to type next; appended to the message.
    code
        Identifier for programs: ``"spec.value"``. Code must not parse the message instead.
    field
        The invalid field, as its Struct spells it: ``"resources.gpus"``.
    details
        Plain data about the error (the reply of a service, a line number); never a secret.
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
        # A path may hold bytes that are not UTF-8, which terminals and notebooks reject.
        message, hint = (text.encode("utf-8", "replace").decode() for text in (message, hint))
        #: What the message is about, such as a target or flag, and how it begins; see :meth:`about`.
        self.subject = ""
        #: The message without its subject.
        self.reason = message
        self.message = message
        self.hint = hint
        self.code = code
        self.field = field
        self.details: dict[str, Any] = dict(details or {})
        super().__init__(f"{message} {hint}" if hint else message)

    def about(self, subject: str) -> Self:
        """Put the subject before the message: ``QuotaExceeded("no cores left.").about("'gpu'")``; returns the error.

        A caller that names the subject itself uses :attr:`reason` instead of the message.
        """
        subject = subject.encode("utf-8", "replace").decode()  # as in __init__
        self.subject = subject
        self.message = f"{subject}: {self.reason}" if subject else self.reason
        self.args = (f"{self.message} {self.hint}" if self.hint else self.message,)
        return self

    def _render_traceback_(self) -> list[str]:
        # A list, never a bare string: IPython stores it as the output's
        # traceback, and a string there makes an invalid notebook.
        if not AmlTrainError.short:
            import traceback

            return traceback.format_exception(type(self), self, self.__traceback__)
        return [f"{type(self).__name__}: {self}"]


class CommandError(AmlTrainError):
    """A magic line, command line or spec that cannot be executed as written."""


class ConfirmationNeeded(CommandError):
    """The command costs money or loses data; the hint holds the line that confirms it."""


class UnknownTarget(CommandError):
    """No compute target has this name."""


class UnknownRun(CommandError):
    """No run has this handle, here or on its target."""


class UnknownModel(CommandError):
    """No registered model has this name and version."""


class SpecError(CommandError):
    """A field of a job has a value that is not allowed."""


class MissingDependency(CommandError):
    """An optional package is needed; the hint holds the install line."""


class PreflightError(CommandError):
    """A check before the submission has found that the script would fail."""


class TargetError(AmlTrainError):
    """The compute target refused or could not do something."""


class TargetUnreachable(TargetError):
    """The target did not answer; its runs are not affected."""


class NoAnswer(TargetUnreachable, TimeoutError):
    """A call took longer than callers wait for it."""


class SubmitUnsure(TargetUnreachable):
    """A job was sent without an answer: if the target has accepted it, the target lists it."""


class CreateUnsure(TargetUnreachable):
    """The creation of a compute was requested, and its result is unknown: the compute may exist and cost money."""


class WorkspaceGone(TargetError):
    """The service reports that the workspace does not exist, or no longer exists."""


class AuthenticationError(TargetError):
    """The target did not accept the credentials."""


class QuotaExceeded(TargetError):
    """The request exceeds the quota."""


class CapacityError(TargetError):
    """The target does not have devices of this kind or number."""


class GpuDriverError(TargetError):
    """The target's GPU driver does not work, or the requested GPUs are lost; the message says how to repair it."""


class SubmitError(AmlTrainError):
    """A job could not be sent to its target."""


class SnapshotTooLarge(SubmitError):
    """The source folder is over the size limit; the message names the largest files."""


class EnvironmentFailed(SubmitError):
    """The job's environment could not be prepared."""


class RunError(AmlTrainError):
    """A run ended without success."""


class RunFailed(RunError):
    """The script raised, exited with a non-zero code, was killed or reached its time limit.

    Parameters
    ----------
    exit_code
        The process' exit code; ``None`` when a signal ended it.
    log_tail
        The last lines of the log.
    cell_line
        1-based line of the submitted cell that raised the exception, if known.
    title
        The message without the reason.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        exit_code: int | None = None,
        log_tail: str = "",
        cell_line: int | None = None,
        title: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        #: Frames at which the script failed, with their variables (``schema/failure.py``), the innermost first.
        self.frames: tuple[Any, ...] = ()
        self.exit_code = exit_code
        self.log_tail = log_tail
        self.cell_line = cell_line
        self._title = title
        #: The cell's output shows reason and log already: the error does not repeat them.
        self.log_is_shown = False

    def _render_traceback_(self) -> list[str]:
        lines = super()._render_traceback_()
        if self.log_is_shown and self._title and self.short:
            return [f"{type(self).__name__}: {self._title} {self.hint}"]
        if self.log_tail and not self.log_is_shown and self.log_tail.strip() not in self.message:
            lines += ["", "end of the log:", *("  " + x for x in self.log_tail.splitlines())]
        return lines


class RunCanceled(RunError):
    """The run was canceled while a caller waited for it."""


class RunLost(RunError):
    """The target reports that the run's supervisor no longer exists."""


class ResultMissing(RunError):
    """Values named by ``--out`` were not returned.

    Parameters
    ----------
    name
        Name of the value, if the error is about a single one.
    why
        Reason without the name: ``"a DataFrame, saved as ..."``.
    """

    def __init__(self, message: str, *, hint: str = "", name: str = "", why: str = "", code: str = "") -> None:
        super().__init__(message, hint=hint, code=code)
        self.name, self.why = name, why

    @classmethod
    def of_all(cls, handle: str, missing: Sequence[ResultMissing]) -> ResultMissing:
        """Combine errors into one that names every value of a run that was not returned."""
        if len(missing) == 1 or not all(one.name for one in missing):
            return missing[0]
        reasons = "; ".join(f"{one.name}: {one.why}" for one in missing)
        return cls(f"--out: {len(missing)} values of {handle} were not returned. {reasons}.")


class UnrecordedRun(RunError):
    """A run was not deleted, because what it logged to MLflow exists only in its folder."""


class StateError(AmlTrainError):
    """The state root is read-only, full, of a newer schema, or owned by another user."""


class DamagedRun(StateError):
    """A run's folder cannot be parsed; the run can be deleted."""


class ProtocolError(AmlTrainError):
    """Two components of incompatible versions communicated."""


def error_class(name: str) -> type[AmlTrainError] | None:
    """Return the error class of this name, as another process wrote it; ``None`` if it does not exist."""
    value = globals().get(name)
    return value if isinstance(value, type) and issubclass(value, AmlTrainError) else None
