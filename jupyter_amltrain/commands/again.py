"""Submitting a run's job once more, as it was."""

from __future__ import annotations

import json
import os

import msgspec

from jupyter_amltrain.backends.run_files import RunFiles
from jupyter_amltrain.commands.submit import secret
from jupyter_amltrain.errors import AmlTrainError, CommandError
from jupyter_amltrain.snapshot import of_yaml, take
from jupyter_amltrain.spec.job import JobSpec
from jupyter_amltrain.spec.run import Run
from jupyter_amltrain.state import working_folder


def again(run: Run, files: RunFiles) -> tuple[JobSpec, dict[str, str]]:
    """The job of `run` to be submitted again, and the values of its secrets. Blocks on disk, target and keyring.

    The code is that of the run: if the folder it came from has changed since, the run's own copy is used,
    and without a copy the job is refused.

    Parameters
    ----------
    files
        The files of the run.

    Raises
    ------
    CommandError
        The code is not what it was, or a secret has no value.
    """
    if run.damaged:
        raise CommandError(f"{run.handle} cannot run again: {run.error}")
    if run.partial:  # its folder was removed after it was listed
        raise CommandError(f"{run.handle} cannot run again: its job cannot be read any more.")
    spec = msgspec.structs.replace(_unchanged(run, files), parent="")  # a run of its own
    return spec, {name: secret(name) for name in spec.secrets}


def _unchanged(run: Run, files: RunFiles) -> JobSpec:
    spec = run.spec
    then = _digest(files)
    reason = "has changed"
    try:
        now = _now(run, then)
    except (AmlTrainError, OSError):
        now, reason = "", "cannot be read any more"
    if now and then in ("", now):
        return spec
    if spec.source and not spec.script and (copy := files.local_copy("source")) is not None:
        return msgspec.structs.replace(spec, source=copy)
    if spec.script:
        what = f"the folder {spec.source}" if spec.source else f"what its cell imports from {spec.notebook_dir}"
        hint = "Run its cell to submit what is there now."
    else:
        path = os.path.join(spec.source or spec.notebook_dir, spec.script_name)
        what = f"{path}, or what it imports,"
        hint = f"Submit what is there now: %aml_submit {path}"
    raise CommandError(f"{run.handle} cannot run again as it was: {what} {reason}.", hint=hint)


def _now(run: Run, then: str) -> str:
    """Digest of the files that the run would have now; `then` is that of the files that it had."""
    spec = run.spec
    if spec.job_type:  # of a service it is the file alone: who loads it sends the code
        return next((digest for code in (True, False) if (digest := of_yaml(spec, code=code).digest) == then), "")
    return take(
        spec.script_name, spec.script, notebook_dir=spec.notebook_dir or working_folder(), source=spec.source
    ).digest


def _digest(files: RunFiles) -> str:
    """Digest of the files that the run had; empty when it is unknown."""
    try:
        return str(json.loads(files.read("job.json"))["snapshot"]["digest"])
    except (ValueError, KeyError, TypeError):
        return ""
