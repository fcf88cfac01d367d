"""``--scaling``: the widths at which a job is measured, and the job of each width."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Sequence

import msgspec

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.schema.job import MAX_NAME, MAX_NODES, MAX_PROCESSES, Distribution, JobSpec, distribution_of
from jupyter_amltrain.schema.scaling import UNITS, ScalingSlice

#: Default seconds of a slice after its first metric; with a number of steps the limit if these are slow.
SLICE_S, SLICE_OF_STEPS_S = 60.0, 600.0
#: Run time without any metric after which a slice ends: imports, data and the compilation of a model take minutes.
START_S = 600.0
_EXAMPLE, _NODES = "Example: --scaling 1,2,4", "For machines: --scaling nodes:1,2"
#: Run time that the kernel has to end a slice, before the time limit does.
_MARGIN_S = 120.0
_MAX_WIDTHS = 12


class ScalingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--scaling`` asks for; fields as in :class:`~jupyter_amltrain.schema.scaling.ScalingSlice`."""

    unit: str
    widths: tuple[int, ...]
    seconds: float
    steps: int = 0


def _error(text: str, hint: str, field: str = "scaling") -> CommandError:
    return CommandError(text, hint=hint, code="scaling.value", field=field)


def parse_widths(text: str) -> tuple[str, tuple[int, ...]]:
    """Return unit and widths of ``1,2,4`` (processes) or ``nodes:1,2``."""
    unit, colon, rest = text.partition(":")
    unit, rest = (unit.strip(), rest) if colon else ("processes", text)
    if unit not in UNITS:
        raise _error(f"--scaling: expected processes or nodes, got {text[:80]!r}.", f"{_EXAMPLE}, or: nodes:1,2")
    numbers = [part.strip() for part in rest.split(",")]
    if not all(re.fullmatch(r"\d{1,6}", number) for number in numbers):
        raise _error(f"--scaling: expected whole numbers with commas, got {text[:80]!r}.", _EXAMPLE)
    return unit, tuple(map(int, numbers))


def plan_of(
    widths: str | Iterable[int] | None,
    seconds: float | None,
    steps: int | None,
) -> ScalingPlan | None:
    """Return what a line or a call asks for; ``None`` without widths.

    Raises
    ------
    CommandError
        The widths are no increasing positive numbers, or a limit has no measurement to limit.
    """
    if widths is None:
        if seconds is not None or steps is not None:
            flag = "--scaling-time" if seconds is not None else "--scaling-steps"
            raise _error(f"{flag} limits a measurement, and none is requested.", _EXAMPLE)
        return None
    unit, numbers = parse_widths(widths) if isinstance(widths, str) else ("processes", tuple(widths))
    if not all(isinstance(number, int) and not isinstance(number, bool) and number > 0 for number in numbers):
        raise _error(f"--scaling: widths are whole numbers from 1, got {_text(numbers)}.", _EXAMPLE)
    if list(numbers) != sorted(set(numbers)):
        raise _error(f"--scaling: widths must increase, got {_text(numbers)}.", _EXAMPLE)
    limit = MAX_NODES if unit == "nodes" else MAX_PROCESSES
    if not 2 <= len(numbers) <= _MAX_WIDTHS or numbers[-1] > limit:
        raise _error(
            f"--scaling compares 2 to {_MAX_WIDTHS} widths of at most {limit} {unit}, got {_text(numbers)}.", _EXAMPLE
        )
    if seconds is not None and not 1 <= seconds < 10**6:
        raise _error(f"--scaling-time must be at least 1 s, got {seconds:g}.", "Try: --scaling-time 60s")
    if steps is not None and not 0 < steps < 10**9:
        raise _error(f"--scaling-steps must be 1 or more, got {steps}.", "Try: --scaling-steps 200")
    default = SLICE_OF_STEPS_S if steps else SLICE_S
    return ScalingPlan(unit=unit, widths=numbers, seconds=default if seconds is None else seconds, steps=steps or 0)


def _text(numbers: Sequence[object]) -> str:
    return ",".join(map(str, numbers))


def check_job(spec: JobSpec, plan: ScalingPlan) -> None:
    """Raise :class:`CommandError` for a job that cannot be measured, or whose flags contradict the widths."""
    processes, nodes, gpus = spec.distribution.processes, spec.resources.nodes, spec.resources.gpus
    flags: list[tuple[object, str, str]] = [
        (spec.job_type, "a job file sets its processes itself.", "Measure its script: %aml_submit train.py"),
        (
            spec.tracking == "direct" or "MLFLOW_TRACKING_URI" in spec.env,
            "the metrics go to another server, which is not read.",
            "Leave out MLFLOW_TRACKING_URI.",
        ),
    ]
    if plan.unit == "processes":
        flags += [
            (processes is not None, f"the widths are the processes; leave out --processes {processes}.", _EXAMPLE),
            (nodes > 1, f"the widths are processes of one machine; leave out --nodes {nodes}.", _NODES),
            (gpus, f"each process gets one GPU; leave out --gpus {gpus}.", "For none: --gpus 0"),
        ]
    else:
        flags.append((nodes > 1, f"the widths are the nodes; leave out --nodes {nodes}.", _NODES))
    for refused, reason, hint in flags:
        if refused:
            raise CommandError(f"--scaling: {reason}", hint=hint, code="scaling.contradiction", field="scaling")


def slices_of(
    spec: JobSpec,
    plan: ScalingPlan,
    *,
    has_gpus: bool = False,
    price: float | None = None,
    currency: str = "",
    notes: Sequence[str] = (),
) -> tuple[JobSpec, ...]:
    """Return the job of each width.

    Parameters
    ----------
    has_gpus
        Whether the target has GPUs: then each process gets one.
    price
        Of one machine per hour; ``None`` if it is not known.
    notes
        Of the first run.
    """
    group = uuid.uuid4().hex[:12]
    jobs: list[JobSpec] = []
    for width in plan.widths:
        nodes = width if plan.unit == "nodes" else 1
        measured = ScalingSlice(
            group=group,
            unit=plan.unit,
            width=width,
            widths=plan.widths,
            seconds=plan.seconds,
            steps=plan.steps,
            start_s=START_S,
            price=None if price is None else price * nodes,
            currency=currency,
        )
        own_notes = (*(notes if not jobs else ()), *_out_note(spec, first=not jobs))
        jobs.append(_slice(spec, measured, nodes, has_gpus, own_notes))
    return tuple(jobs)


def _slice(spec: JobSpec, measured: ScalingSlice, nodes: int, has_gpus: bool, notes: Sequence[str]) -> JobSpec:
    """Return the job of one width."""
    width, unit = measured.width, measured.unit
    resources = msgspec.structs.replace(spec.resources, nodes=nodes)
    if unit == "processes" and has_gpus and spec.resources.gpus is None:
        resources = msgspec.structs.replace(resources, gpus=width)
    suffix = f"-x{width}"
    # Should the kernel end before it has ended a run on several machines, their time limit does.
    limit = START_S + measured.seconds + _MARGIN_S
    return msgspec.structs.replace(
        spec,
        name=spec.name[: MAX_NAME - len(suffix)] + suffix,
        resources=resources,
        distribution=_distribution(spec.distribution, unit, width),
        scaling=measured,
        timeout=spec.timeout if nodes == 1 else min(spec.timeout or limit, limit),
        tags={**spec.tags, "scaling": spec.name, f"scaling.{unit}": str(width)},
        out=(),
        notes=(*spec.notes, *notes),
    )


def slice_limits(spec: JobSpec) -> dict[str, float]:
    """Return the limits of a run for its agent; empty if the kernel ends it, as on several machines.

    Each machine has an agent of its own, and only the first one sees the metrics.
    """
    measured = spec.scaling
    if measured is None or spec.resources.nodes > 1:
        return {}
    return {"seconds": measured.seconds, "steps": measured.steps, "start_s": measured.start_s}


def _distribution(given: Distribution, unit: str, width: int) -> Distribution:
    """Return the distribution of a width; one process has the same kind, so that it finds the same variables."""
    processes = width if unit == "processes" else given.processes
    kind = given.kind or distribution_of("", 2, 1).kind
    return msgspec.structs.replace(given, kind=kind, processes=processes)


def _out_note(spec: JobSpec, *, first: bool) -> tuple[str, ...]:
    names = ", ".join(spec.out)
    return (f"--out {names} is not returned: a measured slice ends before the script does.",) if names and first else ()
