"""What ``%aml_pipeline submit --dry-run`` prints: the steps in their order, and whose results are used again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from jupyter_amltrain.jobs.snapshot import files_of_job
from jupyter_amltrain.pipelines.kept_steps import KeptStep, KeptSteps
from jupyter_amltrain.pipelines.plan import FROM, NEVER, ONLY, PipelinePlan, PlannedStep, dependents
from jupyter_amltrain.pipelines.split import PART, files_of_pattern
from jupyter_amltrain.pipelines.step_key import step_key
from jupyter_amltrain.pipelines.step_output import StepOutput, content_digest, outputs_of_parts
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.text import ago, table

_FLAGS = {NEVER: "--no-reuse", ONLY: "--only", FROM: "--from"}


def plan_text(job: JobSpec, plan: PipelinePlan, outlook: Mapping[str, str]) -> str:
    """Return a pipeline before it is sent.

    Parameters
    ----------
    outlook
        What becomes of each step, by its name.
    """
    rows = [(step.name, step.target, _taken(step), ", ".join((*step.values, *step.data)), outlook[step.name])
            for step in plan.steps]  # fmt: skip
    lines = [f"Pipeline {job.name}, {len(rows)} step{'s' * (len(rows) != 1)}", ""]
    lines.append(table(("step", "target", "takes", "makes", "will"), rows, whole_end=True))
    lines += ["", f"Returns {', '.join(job.out)}."] if job.out else []
    return "\n".join([*lines, *(f"Note: {note}" for note in job.notes)])


def _taken(step: PlannedStep) -> str:
    links = step.links.items()
    texts = [f"{'' if name == link.output else f'{name}='}{link.step}.{link.output}" for name, link in links]
    return ", ".join([*texts, *(f"after {name}" for name in step.after)])


class StepOutlook(NamedTuple):
    """What becomes of a step.

    Attributes
    ----------
    text
        The end of a sentence: the step will ...
    outputs
        What it has made; ``None`` for a step that may run.
    """

    text: str
    outputs: Mapping[str, StepOutput] | None = None


def outlook_of(job: JobSpec, plan: PipelinePlan, here: Collection[str]) -> dict[str, str]:
    """Return what becomes of each step, as its driver will decide. Blocks on the disk.

    Parameters
    ----------
    here
        Targets on this machine.
    """
    assert job.driver is not None
    kept, found = KeptSteps(), dict[str, StepOutlook]()
    must_run, may_not_run = plan.must_run(), plan.may_not_run()
    later = dependents(plan.steps, plan.named)[1:] if plan.reuse == ONLY else ()
    for step in plan.steps:
        waits = [name for name in step.needs if found[name].outputs is None]
        flag = f"{_FLAGS.get(plan.reuse, '')} {plan.named}".strip()
        if step.name in later:
            one = StepOutlook(f"not run ({flag})")
        elif step.name in must_run:
            one = StepOutlook(f"run ({flag})")
        elif waits:
            one = StepOutlook(f"run, unless {' and '.join(waits)} gives the same result as before")
        else:
            made = {name: found[name].outputs or {} for name in step.needs}
            one = _outlook(job.driver.jobs[step.name], step, made, kept, step.target in here)
        if one.outputs is None and step.name in may_not_run and step.name not in later:
            one = StepOutlook(f"fail: there is no result to use, and {flag} runs no other step")
        found[step.name] = one
    return {name: one.text for name, one in found.items()}


def _outlook(
    spec: JobSpec, step: PlannedStep, made: Mapping[str, Mapping[str, StepOutput]], kept: KeptSteps, is_here: bool
) -> StepOutlook:
    """Return what becomes of a step whose inputs exist."""
    code = files_of_job(spec)
    taken = {name: made[link.step][link.output].identity for name, link in step.links.items()}
    if not step.split:
        result = kept.find(step_key(spec, code, step.target, taken, {}, is_here))
        return StepOutlook("run") if result is None else StepOutlook(_reused(result), result.outputs)
    paths = files_of_pattern(step.split, spec.notebook_dir)
    keys = [step_key(spec, code, step.target, taken, {PART: content_digest(path)}, is_here) for path in paths]
    results = [result for key in keys if (result := kept.find(key)) is not None]
    if len(results) == len(paths):
        outputs = outputs_of_parts([result.outputs for result in results])
        return StepOutlook(f"be reused: none of its {len(paths)} files has changed", outputs)
    return StepOutlook(f"run for {len(paths) - len(results)} of {len(paths)} files")


def _reused(result: KeptStep) -> str:
    return f"be reused: unchanged since {result.handle}, {ago(result.made)}"
