"""Steps of a pipeline, and trials of a sweep or AutoML job: rows of their parent run."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from jupyter_amltrain.errors import CommandError

#: Types of job whose work is done by children.
PARENT_TYPES = ("pipeline", "sweep", "automl")
#: Children that are kept of one run: a sweep may have a thousand trials.
MAX_CHILDREN = 100
#: Names that an error lists.
_MAX_NAMED = 12


class ChildRun(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a pipeline, or one trial of a sweep or AutoML job.

    Attributes
    ----------
    id
        What the service calls it.
    name
        For people; that of a step is unique in most pipelines.
    kind
        ``step`` or ``trial``.
    state
        A word of :class:`~jupyter_amltrain.schema.run.RunState`, or the service's own where that has no such state.
    detail
        Why it waits, or why it failed, one sentence.
    metric, value
        The primary metric where the parent has one, else the metric that was logged last.
    best
        It is the best trial so far by the primary metric.
    created, started, ended
        Unix seconds.
    url
        Its page at the service.
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

    @property
    def seconds(self) -> float | None:
        """How long it ran; ``None`` before its end."""
        return None if self.started is None or self.ended is None else max(0.0, self.ended - self.started)


class ChildRuns(msgspec.Struct, frozen=True, kw_only=True):
    """The children of one run, oldest first.

    Attributes
    ----------
    hidden
        Further ones, which are not listed.
    """

    runs: tuple[ChildRun, ...] = ()
    hidden: int = 0

    def find(self, name: str) -> ChildRun:
        """Return the child of a name or id, or of the beginning of one.

        Raises
        ------
        CommandError
            There is none, or there are several.
        """
        ways: tuple[Callable[[ChildRun], bool], ...] = (
            lambda run: run.id == name,
            lambda run: run.name == name,
            lambda run: run.id.startswith(name) or run.name.startswith(name),
        )
        for way in ways:
            found = [run for run in self.runs if way(run)] if name else []
            if len(found) == 1:
                return found[0]
            if found:
                raise CommandError(
                    f"{name!r} names {len(found)} steps or trials.", hint=f"Give an id: {_listed(r.id for r in found)}."
                )
        said = f"It has: {_listed(run.name for run in self.runs)}." if self.runs else "It has none yet."
        raise CommandError(f"There is no step or trial {name[:80]!r}.", hint=said)


def most_telling(runs: tuple[ChildRun, ...], limit: int) -> tuple[ChildRun, ...]:
    """Return at most `limit` children: the best, those that go on, then the newest; their order stays."""
    if len(runs) <= limit:
        return runs
    places = sorted(range(len(runs)), key=lambda i: (not runs[i].best, runs[i].ended is not None, -i))
    return tuple(runs[i] for i in sorted(places[:limit]))


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    more = f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
    return ", ".join(found[:_MAX_NAMED]) + more
