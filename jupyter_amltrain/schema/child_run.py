"""Steps of a pipeline, and trials of a sweep or AutoML job: rows of their parent run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from jupyter_amltrain.errors import CommandError

#: Types of job that run as child jobs.
PARENT_TYPES = ("pipeline", "sweep", "automl")
#: File of a run folder with its :class:`ChildRuns`.
CHILDREN = "children.json"
#: Maximum size of the one that the driver of a sweep writes.
MAX_CHILDREN_BYTES = 8 << 20
#: Maximum number of children stored per run.
MAX_CHILDREN = 1000
#: Maximum points of a trial's curve.
MAX_CURVE_POINTS = 40
#: Maximum number of names that an error lists.
_MAX_NAMED = 12


class ChildRun(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a pipeline, or one trial of a sweep or AutoML job.

    Attributes
    ----------
    id
        The service's id.
    name
        Display name; the name of a step is unique in most pipelines.
    kind
        ``step`` or ``trial``.
    state
        A value of :class:`~jupyter_amltrain.schema.run.RunState`, or the service's own state if it has no equivalent.
    detail
        Reason for waiting or failing, one sentence.
    metric, value
        The parent's primary metric if it has one, else the metric that was logged last.
    best
        Whether this is the best trial so far by the primary metric.
    created, started, ended
        Unix seconds.
    url
        Page at the service.
    number
        Number of a trial in its sweep, from 0.
    params
        Values of the sweep's parameters in a trial; those of options that were not chosen are absent.
    handle
        Handle of the run of a trial, where trials are runs of their own.
    early
        Whether the sweep's policy stopped the trial; `detail` says why.
    reused
        Whether the step did not run, because the result of the run `handle` is used.
    steps, values
        Curve of the metric, at most :data:`MAX_CURVE_POINTS`; ``None`` for NaN and infinite values.
    """

    id: str
    name: str
    kind: str = "step"
    state: str = ""
    detail: str = ""
    metric: str = ""
    value: float | None = None
    best: bool = False
    created: float | None = None
    started: float | None = None
    ended: float | None = None
    url: str = ""
    number: int | None = None
    params: dict[str, Any] = {}
    handle: str = ""
    early: bool = False
    reused: bool = False
    steps: tuple[int, ...] = ()
    values: tuple[float | None, ...] = ()

    @property
    def seconds(self) -> float | None:
        """Duration in seconds; ``None`` before the end."""
        return None if self.started is None or self.ended is None else max(0.0, self.ended - self.started)


class ChildRuns(msgspec.Struct, frozen=True, kw_only=True):
    """The children of one run, oldest first.

    Attributes
    ----------
    hidden
        Number of children that are not listed.
    first
        Number of the first trial of a sweep's own; those before are of the sweep that it continues.
    importance
        Share of each parameter of a sweep in the differences of the metric; empty if unknown.
    message
        What a sweep waits for, or why it ended; one sentence.
    """

    runs: tuple[ChildRun, ...] = ()
    hidden: int = 0
    first: int = 0
    importance: dict[str, float] = {}
    message: str = ""

    def find(self, name: str) -> ChildRun:
        """Return the child with a name or id, or with a unique prefix of one.

        Raises
        ------
        CommandError
            No child matches, or several do.
        """
        matchers: tuple[Callable[[ChildRun], bool], ...] = (
            lambda run: run.id == name,
            lambda run: run.name == name,
            lambda run: run.id.startswith(name) or run.name.startswith(name),
        )
        for matches in matchers:
            matching = [run for run in self.runs if matches(run)] if name else []
            if len(matching) == 1:
                return matching[0]
            if matching:
                raise CommandError(
                    f"{name!r} matches {len(matching)} steps or trials.",
                    hint=f"Give an id: {_listed(r.id for r in matching)}.",
                )
        existing = (
            f"The run has: {_listed(run.name for run in self.runs)}." if self.runs else "The run has no children yet."
        )
        raise CommandError(f"There is no step or trial {name[:80]!r}.", hint=existing)


def most_relevant(runs: tuple[ChildRun, ...], limit: int) -> tuple[ChildRun, ...]:
    """Return at most `limit` children in their order: the best, the unfinished ones, then the newest."""
    if len(runs) <= limit:
        return runs
    ranked = sorted(range(len(runs)), key=lambda i: (not runs[i].best, runs[i].ended is not None, -i))
    return tuple(runs[i] for i in sorted(ranked[:limit]))


def _listed(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _MAX_NAMED} more" if len(listed) > _MAX_NAMED else ""
    return ", ".join(listed[:_MAX_NAMED]) + more
