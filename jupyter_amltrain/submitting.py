"""Submitting by a function: its keywords are the flags of ``%%aml_submit``."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.jobs.flags import FLAGS, job_fields, keyword_values
from jupyter_amltrain.naming import notebook_name
from jupyter_amltrain.session import controller
from jupyter_amltrain.spec.job import JobSpec
from jupyter_amltrain.spec.references import with_literals
from jupyter_amltrain.state import working_folder
from jupyter_amltrain.tracked_run import ANSWER, TrackedRun

if TYPE_CHECKING:
    from jupyter_amltrain.backends.base import Plan


#: A text that is the name of a file, not code.
_FILE = re.compile(r"[^\n]+\.py|[^\s=()]+\.(?:ipynb|csv|tsv|json|parquet|ya?ml|txt|md|sh)", re.I)


def submit_spec(spec: JobSpec, *, target: str | None = None, secrets: Mapping[str, str] | None = None) -> TrackedRun:
    """Submit a job; returns at once with the run."""
    c = controller()
    handle = c.loop.call(c.submit(spec, target, dict(os.environ), dict(secrets or {})))
    return TrackedRun(handle)


def check_spec(spec: JobSpec, *, target: str | None = None) -> None:
    """Raise the error for which the target would reject the job; sends nothing."""
    controller().loop.call(controller().prepare(spec, target), ANSWER)


def plan_spec(spec: JobSpec, *, target: str | None = None) -> Plan:
    """The exact request of a submit, without secrets; sends nothing."""
    return controller().loop.call(controller().plan(spec, target), ANSWER)


def submit(
    script: str | os.PathLike[str],
    *,
    target: str | None = None,
    args: Iterable[str] = (),
    secrets: Mapping[str, str] | None = None,
    **fields: Any,
) -> TrackedRun:
    """Submit a ``.py`` file, or code as text; returns when the target has accepted it.

        Parameters
        ----------
        script
            Path of a ``.py`` file (``os.PathLike``, or text that ends like a file's name), else code.
        target
            Where to run; default the target in use.
        args
            Further arguments of a file.
        secrets
            Names and values; handed to the job's process, stored nowhere.
        **fields
            The flags of ``%%aml_submit`` as keywords, with Python values. The signature lists them:
    %s

        Raises
        ------
        CommandError
            A value is wrong, the target is unknown, or it cannot run such a job.

        Examples
        --------
        >>> run = submit("accuracy = 0.9 + lr", params={"lr": 0.05}, out=["accuracy"])  # doctest: +SKIP
        >>> run.wait().result("accuracy")  # doctest: +SKIP
        0.95
    """
    from jupyter_amltrain import script as scripts

    if isinstance(args, str):
        raise CommandError(
            f"args must be a list of strings, got {args!r}.", hint=f"Example: args=[{args!r}]", field="args"
        )
    values = job_fields(keyword_values({**fields, "secrets": secrets}))
    folder = working_folder()
    inputs = values.get("inputs", {})
    params = values["params"] = dict(with_literals(values.get("params", {}), inputs))
    out, source = values.get("out", ()), values.get("source")
    code: dict[str, Any]
    if isinstance(script, os.PathLike) or _FILE.fullmatch(script):
        file = scripts.from_file(Path(script), source=Path(source) if source else None, out=out)
        code = {
            "script_name": file.name,
            "source_sha256": file.sha256,
            "notebook_dir": file.folder,
            "notes": file.notes,
        }
        name = Path(script).stem
    else:
        made = scripts.from_cell(script, magic_line="", params=params, out=out)
        code = {
            "script": made.text,
            "source_sha256": made.sha256,
            "notebook_dir": folder,
            "cell": script,
            "line_offset": made.line_offset + 1,  # no line of a magic stands above it
            "notes": made.notes,
        }
        name = "run"
    values.setdefault("name", name)
    values.setdefault("experiment", notebook_name() or "default")
    values["source"] = str(Path(source).resolve()) if source else None
    arguments = tuple(map(str, with_literals(tuple(args), inputs)))
    spec = JobSpec(**{**values, **code, "args": arguments, "project": folder})
    # A script may end right after this line: its target must have accepted the job by then.
    return submit_spec(spec, target=target, secrets=dict(secrets or {})).accepted()


def _documented(function: Any) -> None:
    """Put the keywords of the table of flags into a function's signature and docstring."""
    names = {flag.name: flag for flag in FLAGS}
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names if name not in signature.parameters
    ]
    more = [parameter.replace(default=None, annotation=Any) for parameter in more]
    function.__signature__ = signature.replace(parameters=[*own, *more])
    lines = [f"        * ``{flag.name}`` (``{flag.flag}``): {flag.keyword_help or flag.help}" for flag in FLAGS]
    function.__doc__ = (function.__doc__ or "").replace("%s", "\n" + "\n".join(lines), 1)


_documented(submit)
