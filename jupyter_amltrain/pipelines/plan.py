"""Plan of a pipeline: its steps, what each needs of others, and how it is run. Frozen and checked."""

from __future__ import annotations

import graphlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.text import close_matches, did_you_mean

#: What an output is: a variable of the step, or a file or folder that it writes.
VALUE, DATA = "value", "data"
#: Ways of a pipeline with results that exist: use them where nothing has changed, never, only for the steps before the
#: one that is named, or for all steps that do not depend on it.
REUSE, NEVER, ONLY, FROM = "reuse", "never", "only", "from"
#: Largest number of steps.
MAX_STEPS = 1000


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """An output of a step that another step takes.

    Attributes
    ----------
    step, output
        The step that makes it, and its name there.
    kind
        :data:`VALUE` or :data:`DATA`.
    type
        Of data: its type in the schema of ``az ml``.
    """

    step: str
    output: str
    kind: str = VALUE
    type: str = "uri_folder"


class PlannedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step; its job has the same name in the driver's jobs.

    Attributes
    ----------
    target
        Where it runs.
    links
        What it takes of other steps, by the name that it has in this step.
    after
        Steps that must have ended before, without giving anything.
    values, data
        Names of the variables, and of the files and folders, that it makes.
    split
        Pattern of files of which each gets a run of its own; empty for one run.
    """

    name: str
    target: str
    links: dict[str, Link] = {}
    after: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    split: str = ""

    @property
    def needs(self) -> tuple[str, ...]:
        """Steps that must have ended before it."""
        return tuple(dict.fromkeys((*(link.step for link in self.links.values()), *self.after)))


class PipelinePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The steps, each after those that it needs, and how they are run.

    Attributes
    ----------
    reuse
        One of :data:`REUSE`, :data:`NEVER`, :data:`ONLY`, :data:`FROM`.
    named
        The step that `reuse` names.
    keep_going
        Whether steps that do not depend on a failed one go on to start.
    """

    steps: tuple[PlannedStep, ...]
    reuse: str = REUSE
    named: str = ""
    keep_going: bool = False

    def must_run(self) -> frozenset[str]:
        """Return the steps that run although nothing has changed."""
        if self.reuse == NEVER:
            return frozenset(step.name for step in self.steps)
        if self.reuse == ONLY:
            return frozenset((self.named,))
        return frozenset(dependents(self.steps, self.named)) if self.reuse == FROM else frozenset()

    def may_not_run(self) -> frozenset[str]:
        """Return the steps of which only an earlier result is used."""
        if self.reuse != ONLY:
            return frozenset()
        return frozenset(step.name for step in self.steps if step.name != self.named)


def dependents(steps: Iterable[PlannedStep], first: str) -> list[str]:
    """Return a step and all that need it, in the order of `steps`, which each follow those that they need."""
    found = [first]
    for step in steps:
        if step.name not in found and not set(found).isdisjoint(step.needs):
            found.append(step.name)
    return found


def ancestors(steps: Iterable[PlannedStep], last: str) -> list[str]:
    """Return a step and all that it needs, in the order of `steps`."""
    found = {last}
    for step in reversed(tuple(steps)):
        if step.name in found:
            found.update(step.needs)
    return [step.name for step in steps if step.name in found]


def ordered(steps: Sequence[PlannedStep]) -> tuple[PlannedStep, ...]:
    """Return the steps so that each follows those that it needs.

    Raises
    ------
    SpecError
        Steps need each other in a circle, one that does not exist, or there are too many of them.
    """
    if len(steps) > MAX_STEPS:
        raise SpecError(
            f"The pipeline has {len(steps)} steps; at most {MAX_STEPS} are supported.",
            hint="Let one step do more, or use --map.",
            code="pipeline.size",
        )
    by_name = {step.name: step for step in steps}
    for step in steps:
        if unknown := next((name for name in step.needs if name not in by_name), ""):
            raise unknown_step(unknown, by_name, f"Step {step.name!r} needs the step {unknown!r}")
    graph = {step.name: step.needs for step in steps}
    try:
        return tuple(by_name[name] for name in graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        circle = " -> ".join(error.args[1])
        raise SpecError(
            f"The steps need each other in a circle: {circle}.",
            hint="Let one of them take another input.",
            code="pipeline.cycle",
        ) from None


def unknown_step(name: str, known: Iterable[str], what: str = "") -> SpecError:
    """Return the error of a step that does not exist."""
    names = list(known)
    listed = f"Steps: {', '.join(names[:20])}." if names else "Write %%aml_step NAME above a cell."
    hint = did_you_mean(close_matches(name, names, 1), listed)
    return SpecError(f"{what or f'There is no step {name!r}'}{', which does not exist' if what else ''}.", hint=hint,
                     code="pipeline.unknown_step")  # fmt: skip


def last_values(steps: Sequence[PlannedStep]) -> dict[str, str]:
    """Return the variables that steps make and no other step takes: name -> step; those of later steps win."""
    taken = {(link.step, link.output) for step in steps for link in step.links.values()}
    return {name: step.name for step in steps for name in step.values if (step.name, name) not in taken}


def levels(steps: Sequence[PlannedStep]) -> Mapping[str, int]:
    """Return for each step the number of steps on the longest way to it."""
    found: dict[str, int] = {}
    for step in steps:
        found[step.name] = 1 + max((found[name] for name in step.needs if name in found), default=-1)
    return found
