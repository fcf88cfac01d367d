"""Submit the job of a run again, with the code that the run had."""

from __future__ import annotations

import json
import os

import msgspec

from jupyter_amltrain.backends.run_files import RunFiles
from jupyter_amltrain.errors import AmlTrainError, CommandError
from jupyter_amltrain.jobs import values
from jupyter_amltrain.jobs.snapshot import of_script, of_yaml
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run


def resubmit(run: Run, files: RunFiles) -> tuple[JobSpec, dict[str, str]]:
    """Return the job of `run` to submit again, and the values of its secrets. Blocks on disk, target and keyring.

    The job uses the code of the run: if a source folder has changed since, the run's own copy.

    Parameters
    ----------
    files
        The files of the run.

    Raises
    ------
    CommandError
        The code has changed and no copy of it exists, or a secret has no value.
    """
    from jupyter_amltrain.commands.submit import secret

    if run.damaged:
        raise CommandError(f"{run.handle} cannot run again: {run.error}")
    if run.partial:  # its folder was deleted after the listing
        raise CommandError(f"{run.handle} cannot run again: its job can no longer be read.")
    spec = msgspec.structs.replace(_unchanged(run, files), parent="")  # not a child of the original's parent
    return spec, {name: secret(name) for name in spec.secrets}


def _unchanged(run: Run, files: RunFiles) -> JobSpec:
    spec = run.spec
    original = _digest(files)
    if spec.values and (copy := files.local_copy("source")) is not None:
        values.restore(spec, copy)
    reason = "has changed"
    try:
        current = _current_digest(run, original)
    except (AmlTrainError, OSError):
        current, reason = "", "can no longer be read"
    if current and original in ("", current):
        return spec
    if spec.source and not spec.script and (copy := files.local_copy("source")) is not None:
        return msgspec.structs.replace(spec, source=copy)
    if spec.script:
        code = (
            f"the folder {spec.source}" if spec.source else f"a module that its cell imports from {spec.notebook_dir}"
        )
        hint = "Run its cell to submit the current code."
    else:
        path = os.path.join(spec.source or spec.notebook_dir, spec.script_name)
        code = f"{path}, or a module that it imports,"
        hint = f"To submit the current code: %aml_submit {path}"
    raise CommandError(f"{run.handle} cannot run again as it was: {code} {reason}.", hint=hint, code="resubmit.changed")


def _current_digest(run: Run, original: str) -> str:
    """Return the digest of the files that the run would have now; `original` is that of the files that it had."""
    spec = run.spec
    if spec.job_type:  # a service's job has the digest of the file alone: its SDK sends the code
        return next((digest for code in (True, False) if (digest := of_yaml(spec, code=code).digest) == original), "")
    return of_script(spec).digest


def _digest(files: RunFiles) -> str:
    """Return the digest of the files that the run had; empty if it is unknown."""
    try:
        return str(json.loads(files.read("job.json"))["snapshot"]["digest"])
    except (ValueError, KeyError, TypeError):
        return ""
