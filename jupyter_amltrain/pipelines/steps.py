"""Steps as they are defined: by ``%%aml_step`` in this notebook, by functions, or by a file; linked when submitted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from jupyter_amltrain.errors import CommandError, SpecError
from jupyter_amltrain.pipelines.plan import DATA, VALUE, Link, PlannedStep, unknown_step
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.sweep import Sweep

#: Names of steps are folders, names of runs, and keys of files of ``az ml``.
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,40}")


class Need(NamedTuple):
    """What a step takes of another one.

    Attributes
    ----------
    name
        What it is called in this step.
    step
        The step that makes it; empty for the one that has such an output.
    output
        Its name there.
    """

    name: str
    step: str
    output: str


class StepDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A step before it is linked with others.

    Attributes
    ----------
    spec
        Its job.
    target
        Where it runs; empty for that of the pipeline.
    needs, after
        What it takes of other steps, and steps that only must have ended before.
    split
        Pattern of files of which each gets a run of its own.
    sweep
        Search of which `spec` is the job of a trial: the outputs of the step are those of the best trial.
    """

    name: str
    spec: JobSpec
    target: str = ""
    needs: tuple[Need, ...] = ()
    after: tuple[str, ...] = ()
    split: str = ""
    sweep: Sweep | None = None


#: Steps of this notebook by name, the last definition of each.
_defined: dict[str, StepDefinition] = {}


def define(step: StepDefinition) -> None:
    """Remember a step of this notebook; it replaces one of the same name."""
    _defined.pop(step.name, None)
    _defined[step.name] = step


def defined() -> dict[str, StepDefinition]:
    """Return the steps of this notebook, the last defined ones last."""
    return dict(_defined)


def forget(names: Sequence[str] = ()) -> None:
    """Forget steps of this notebook, all of them without `names`."""
    for name in names or list(_defined):
        _defined.pop(name, None)


def chosen(names: Sequence[str]) -> list[StepDefinition]:
    """Return steps of this notebook, all of them without `names`.

    Raises
    ------
    CommandError, SpecError
        There are none, or a step does not exist.
    """
    if not _defined:
        raise CommandError(
            "This notebook has no steps yet.", hint="Write %%aml_step NAME above a cell.", code="pipeline.no_steps"
        )
    for name in names:
        if name not in _defined:
            raise unknown_step(name, _defined)
    return [_defined[name] for name in dict.fromkeys(names or _defined)]


def check_name(name: str) -> str:
    """Return a name of a step.

    Raises
    ------
    CommandError
        It has other characters than letters, digits and ``_``.
    """
    if not NAME.fullmatch(name):
        raise CommandError(
            f"{name[:60]!r} is not the name of a step: letters, digits and _ only, at most 41.", hint="Try: prep"
        )
    return name


def need(text: str) -> Need:
    """Return what ``data``, ``prep.data`` or ``table=prep.data`` takes.

    Raises
    ------
    CommandError
        The text has another form.
    """
    name, equals, source = text.strip().partition("=")
    source = source if equals else name
    step, dot, output = source.rpartition(".")
    found = Need(name if equals else output, step, output)
    if not (found.name.isidentifier() and output.isidentifier()) or (dot and not NAME.fullmatch(step)):
        raise CommandError(
            f"{text[:60]!r} is not the output of a step.", hint="Try: data, prep.data, or table=prep.data"
        )
    return found


def linked(definitions: Sequence[StepDefinition], target: str) -> list[PlannedStep]:
    """Return the steps with what each takes of the others.

    Parameters
    ----------
    target
        Where steps run that name no target.

    Raises
    ------
    SpecError
        No step makes what a step needs, several do, or it cannot travel.
    """
    makers: dict[str, list[str]] = {}
    for one in definitions:
        for name in (*one.spec.out_names, *one.spec.outputs):
            makers.setdefault(name, []).append(one.name)
    by_name = {one.name: one for one in definitions}
    return [_linked(one, by_name, makers, target) for one in definitions]


def _linked(
    step: StepDefinition, by_name: Mapping[str, StepDefinition], makers: Mapping[str, list[str]], target: str
) -> PlannedStep:
    links: dict[str, Link] = {}
    for one in step.needs:
        if one.name in links:
            raise _error(step, one, "is taken twice.", "Give one of them another name: --in NAME=STEP.OUTPUT")
        link = _link(step, one, by_name, makers)
        _check_travels(step, one, link, by_name[link.step])
        links[one.name] = link
    return PlannedStep(
        name=step.name, target=step.target or target, links=links, after=step.after, values=step.spec.out_names,
        data=tuple(step.spec.outputs), split=step.split,
    )  # fmt: skip


def _link(
    step: StepDefinition, one: Need, by_name: Mapping[str, StepDefinition], makers: Mapping[str, list[str]]
) -> Link:
    if one.step and one.step not in by_name:
        raise unknown_step(one.step, by_name, f"Step {step.name!r} takes {one.output} of {one.step!r}")
    sources = [one.step] if one.step else [name for name in makers.get(one.output, ()) if name != step.name]
    if not sources:
        hint = f"Add --out {one.output} to the step that makes it, and name that step in the line."
        raise _error(step, one, f"none of the steps {', '.join(by_name)} makes it.", hint)
    if len(sources) > 1:
        hint = f"Choose one: --in {one.name}={sources[-1]}.{one.output}"
        raise _error(step, one, f"the steps {', '.join(sources)} make it.", hint)
    maker = by_name[sources[0]].spec
    if one.output in maker.outputs:
        return Link(step=sources[0], output=one.output, kind=DATA, type=maker.outputs[one.output].type)
    if one.output in maker.out_names:
        return Link(step=sources[0], output=one.output, kind=VALUE)
    made = ", ".join((*maker.out_names, *maker.outputs)) or "nothing"
    hint = f"Add to the step {sources[0]}: --out {one.output}, or --output {one.output} for files."
    raise _error(step, one, f"the step {sources[0]} makes {made}.", hint)


def _check_travels(step: StepDefinition, one: Need, link: Link, maker: StepDefinition) -> None:
    """Raise an error for a link by which nothing can travel."""
    if link.kind == VALUE and not step.spec.cell:
        hint = f"Let {maker.name} write a file, with --output {one.output}, which {step.name} reads."
        raise _error(step, one, "is a variable, which only a cell can take.", hint)
    if link.kind == DATA and maker.spec.outputs[link.output].path:
        hint = "Leave its address out: the files stay with the run of the step."
        raise _error(step, one, "is written to a store of its own, where other targets do not find it.", hint)
    taken = step.spec.params if link.kind == VALUE else {**step.spec.inputs, **step.spec.values}
    if one.name in taken:
        raise _error(step, one, "has another value of this name.", "Give it another name: --in NAME=STEP.OUTPUT")


def _error(step: StepDefinition, one: Need, what: str, hint: str) -> SpecError:
    return SpecError(f"--in {one.name}: {what}", hint=hint, code="pipeline.input", field="in").about(
        f"Step {step.name!r}"
    )


def with_params(definitions: Sequence[StepDefinition], params: Mapping[str, Any]) -> list[StepDefinition]:
    """Return the steps with other values of parameters: ``lr`` in each step that has it, ``train.lr`` in one.

    Raises
    ------
    SpecError
        No step has the parameter.
    """
    from jupyter_amltrain.jobs import params as jobs

    found = {one.name: one for one in definitions}
    for name, value in params.items():
        step, dot, own = name.rpartition(".")
        users = [one for one in found.values() if own in one.spec.params and (not dot or one.name == step)]
        if not users:
            known = ", ".join(f"{one.name}.{key}" for one in definitions for key in one.spec.params) or "none"
            raise SpecError(
                f"--param {name}: no step has this parameter. Parameters: {known}.",
                hint=f"Add it to a step: %%aml_step NAME --param {own}=...",
                code="pipeline.param",
                field="params",
            )
        for one in users:
            spec = jobs.with_params(one.spec, {own: value})
            found[one.name] = msgspec.structs.replace(one, spec=spec)
    return list(found.values())
