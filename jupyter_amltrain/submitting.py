"""Submitting by a function: the same fields as the flags of ``%%aml_submit``, as keywords."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.job_words import distribution_word, door, environment_of, inputs_of, outputs_of
from jupyter_amltrain.naming import notebook_name
from jupyter_amltrain.session import controller
from jupyter_amltrain.spec.environment import Environment
from jupyter_amltrain.spec.job import JobSpec
from jupyter_amltrain.spec.references import with_literals
from jupyter_amltrain.spec.resources import Resources, distribution_of
from jupyter_amltrain.state import working_folder
from jupyter_amltrain.tracked_run import ANSWER, TrackedRun

if TYPE_CHECKING:
    from jupyter_amltrain.backends.base import Plan


#: A text that is no code but the name of a file; what is no script is refused.
_FILE = re.compile(r"[^\n]+\.py|[^\s=()]+\.(?:ipynb|csv|tsv|json|parquet|ya?ml|txt|md|sh)", re.I)


def submit_spec(spec: JobSpec, *, target: str | None = None, secrets: Mapping[str, str] | None = None) -> TrackedRun:
    """Submit a job; returns at once with the run."""
    c = controller()
    handle = c.loop.call(c.submit(spec, target, dict(os.environ), dict(secrets or {})))
    return TrackedRun(handle)


def check_spec(spec: JobSpec, *, target: str | None = None) -> None:
    """Raise what the target would refuse the job for; sends nothing."""
    controller().loop.call(controller().prepare(spec, target), ANSWER)


def plan_spec(spec: JobSpec, *, target: str | None = None) -> Plan:
    """The exact request of a submit, without secrets; sends nothing."""
    return controller().loop.call(controller().plan(spec, target), ANSWER)


def submit(
    script: str | os.PathLike[str],
    *,
    target: str | None = None,
    source: str | os.PathLike[str] | None = None,
    params: Mapping[str, Any] | None = None,
    args: Iterable[str] = (),
    out: Iterable[str] = (),
    env: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    gpus: int | None = None,
    require_gpu: str = "",
    gpu_grace: float | None = None,
    share_gpus: bool = False,
    gpu_ids: str = "",
    name: str | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    timeout: float | None = None,
    nodes: int = 1,
    processes: int | None = None,
    distribution: str = "",
    instance_type: str = "",
    shm_size: str = "",
    docker_args: str = "",
    environment: str | Environment = "",
    derive_env: bool = False,
    inputs: Mapping[str, Any] | None = None,
    outputs: Mapping[str, Any] | Iterable[str] = (),
    identity: str = "",
    services: Iterable[str] = (),
    priority: str = "",
    tier: str = "",
) -> TrackedRun:
    """Submit a ``.py`` file, or code as text; returns when the target has accepted it.

    Parameters
    ----------
    script
        Path of a ``.py`` file (``os.PathLike``, or text that ends like a file's name), else code.
    params
        Assigned before the first line of code; ``--name value`` arguments of a file. ``"${{inputs.data}}"`` is
        the path of the input ``data``.
    out
        Variables of the code whose JSON value comes home: ``run.result(name)``.
    secrets
        Names and values; handed to the job's process, stored nowhere.
    require_gpu
        When the run leaves its GPUs unused: ``"stop"`` ends it, ``"warn"`` (as ``""``) says so.
    gpu_grace
        Seconds that it has to begin to use them; default 60.
    share_gpus
        Also GPUs on which other processes compute.
    gpu_ids
        What ``CUDA_VISIBLE_DEVICES`` of the run holds: ``"uuid"`` (as ``""``), or ``"index"`` for tools that parse
        numbers (DeepSpeed's launcher, vLLM).
    experiment
        Of MLflow; default the notebook's name, as with the magic, else ``default``.
    timeout
        Seconds of run time.
    nodes, processes, distribution
        Machines, processes on each (default one for each GPU), and how they find each other:
        ``"pytorch"`` (default of several), ``"mpi"``, ``"tensorflow"``, ``"tensorflow:1"`` with a parameter server.
    instance_type, shm_size, docker_args
        Size of machine where the target finds one; shared memory and ``docker run`` arguments of its container.
    environment
        As ``--env``: ``"name@latest"``, ``"conda.yml"``, an image, a folder with a Dockerfile.
        (`env` are environment variables.)
    derive_env
        Where MLflow of the named environment cannot log, use one made of it that can.
    inputs
        By name: a path or address as ``--input`` takes it, a number or truth value, or a
        :class:`~jupyter_amltrain.spec.inputs.JobInput`. Its place is in ``$AML_INPUT_<NAME>``.
    outputs
        Names, or addresses by name. The place to write to is in ``$AML_OUTPUT_<NAME>``.
    identity, services, priority, tier
        As the flags of those names.

    Examples
    --------
    >>> run = submit("accuracy = 0.9 + lr", params={"lr": 0.05}, out=["accuracy"])  # doctest: +SKIP
    >>> run.wait().result("accuracy")  # doctest: +SKIP
    0.95
    """
    from jupyter_amltrain import script as scripts

    here = working_folder()
    for word, given in (("out", out), ("args", args), ("outputs", outputs), ("services", services)):
        if isinstance(given, str):
            raise CommandError(f"{word}={given!r}: a list of texts is wanted.", hint=f"Try: {word}=[{given!r}]")
    found = distribution_word(distribution)
    data = inputs_of(inputs or {})
    params = dict(with_literals(params or {}, data))
    args, out, secrets = with_literals(tuple(args), data), tuple(out), dict(secrets or {})
    text, script_name, cell, offset = "", "script.py", "", 0
    notes: tuple[str, ...] = ()
    if isinstance(script, os.PathLike) or _FILE.fullmatch(script):
        made_file = scripts.from_file(Path(script), source=Path(source) if source else None, out=out)
        script_name, sha256, file_dir = made_file.name, made_file.sha256, made_file.folder
        notes = made_file.notes
        default_name = Path(script).stem
    else:
        made = scripts.from_cell(script, magic_line="", params=params, out=out)
        text, sha256, cell, notes = made.text, made.sha256, script, made.notes
        offset = made.line_offset + 1  # there is no magic's line above it
        default_name, file_dir = "run", here
    spec = JobSpec(
        name=name or default_name,
        script=text,
        script_name=script_name,
        source=str(Path(source).resolve()) if source else None,
        params=params,
        args=tuple(map(str, args)),
        out=out,
        env=dict(env or {}),
        secrets=tuple(sorted(secrets)),
        resources=Resources(
            gpus=gpus, nodes=nodes, instance_type=instance_type, shm_size=shm_size, docker_args=docker_args
        ),
        distribution=distribution_of(found.kind, processes, nodes, found.parameter_servers),
        environment=environment if isinstance(environment, Environment) else environment_of(environment, derive_env),
        inputs=data,
        outputs=outputs_of(outputs),
        identity=identity,
        services=tuple(door(service) for service in services),
        priority=priority,
        tier=tier,
        require_gpu=require_gpu,
        gpu_grace=gpu_grace,
        share_gpus=share_gpus,
        gpu_ids=gpu_ids,
        experiment=experiment or notebook_name() or "default",
        tags=dict(tags or {}),
        timeout=timeout,
        notebook_dir=file_dir,
        project=here,
        cell=cell,
        line_offset=offset,
        source_sha256=sha256,
        notes=notes,
    )
    # A script may end right after this line: the job must be its target's by then.
    return submit_spec(spec, target=target, secrets=secrets).accepted()
