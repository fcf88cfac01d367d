"""Submitting a run's job once more, as it was."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec

from jupyter_amltrain.commands.submit import secret
from jupyter_amltrain.errors import AmlTrainError, CommandError
from jupyter_amltrain.snapshot import of_yaml, take
from jupyter_amltrain.spec.job import JobSpec
from jupyter_amltrain.spec.run import Run
from jupyter_amltrain.state import working_folder


def again(run: Run) -> tuple[JobSpec, dict[str, str]]:
    """The job of `run` to be submitted again, and the values of its secrets. Blocks on disk and keyring.

    The code is the run's, or there is none: what was copied from a folder that has changed
    since is taken from the run's own copy; without one it is refused.

    Raises
    ------
    CommandError
        The code is not what it was, or a secret has no value.
    """
    if run.damaged:
        raise CommandError(f"{run.handle} cannot run again: {run.error}")
    if run.partial:  # its folder was removed after it was listed
        raise CommandError(f"{run.handle} cannot run again: its job cannot be read any more.")
    spec = _unchanged(run)
    return spec, {name: secret(name) for name in spec.secrets}


def _unchanged(run: Run) -> JobSpec:
    spec = run.spec
    then = _digest(run)
    reason = "has changed"
    try:
        now = _now(run)
    except (AmlTrainError, OSError):
        now, reason = "", "cannot be read any more"
    if now and then in ("", now):
        return spec
    copy = Path(run.folder) / "source" if run.folder else None
    if spec.source and not spec.script and copy is not None and copy.is_dir():
        return msgspec.structs.replace(spec, source=str(copy))
    if spec.script:
        what = f"the folder {spec.source}" if spec.source else f"what its cell imports from {spec.notebook_dir}"
        hint = "Run its cell to submit what is there now."
    else:
        path = os.path.join(spec.source or spec.notebook_dir, spec.script_name)
        what = f"{path}, or what it imports,"
        hint = f"Submit what is there now: %aml_submit {path}"
    raise CommandError(f"{run.handle} cannot run again as it was: {what} {reason}.", hint=hint)


def _now(run: Run) -> str:
    """Digest of the files that the run would have now."""
    spec = run.spec
    if spec.job_type:  # of a service it is the file alone: who loads it sends the code
        return next(
            (digest for code in (True, False) if (digest := of_yaml(spec, code=code).digest) == _digest(run)), ""
        )
    return take(
        spec.script_name, spec.script, notebook_dir=spec.notebook_dir or working_folder(), source=spec.source
    ).digest


def _digest(run: Run) -> str:
    """Digest of the files that the run had; empty when it is not known here."""
    try:
        job = json.loads((Path(run.folder) / "job.json").read_bytes()) if run.folder else {}
        return str(job["snapshot"]["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
