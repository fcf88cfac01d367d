"""The job that a service starts process by process: ``job.json``, and the arguments of ``agent.pyz rank``."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from typing import Any, Dict, List, Mapping, Match, Sequence

from .protocol import AgentError, read_json
from .submission import checked

#: Stands in ``argv`` for the interpreter that runs the agent.
PYTHON = "@python"
#: As in ``spec/references.py``.
_REFERENCE = re.compile(r"\$\{\{\s*(inputs|outputs)\.([\w.-]+)\s*\}\}")
#: Fields of the request that `submission.checked` knows and that mean something here.
_FIELDS = (
    "run", "name", "argv", "cwd", "env", "gpus", "timeout", "grace", "out", "spec", "snapshot", "project", "experiment",
    "tracking", "require_gpu", "gpu_grace",
)  # fmt: skip


class BadJob(Exception):
    """Nothing can be started; the message is for people."""


def read(path: str, data: Mapping[str, str]) -> Dict[str, Any]:
    """The job in the file `path`, as the supervisor takes it.

    Parameters
    ----------
    data
        Variables with the places of inputs and outputs (:func:`places_of_data`).

    Raises
    ------
    BadJob
        There is no job in it.
    """
    try:
        given = read_json(path, "Code folder")
    except (OSError, AgentError) as error:
        raise BadJob("cannot read %s: %s" % (path, getattr(error, "strerror", None) or error)) from error
    if given is None:
        raise BadJob("%s holds no job" % path)
    payload = {key: given[key] for key in _FIELDS if given.get(key) is not None}
    # The file is part of the code, which is the same for every run of it: the service says which run this is.
    run = payload["run"] = payload.get("run") or os.environ.get("AZUREML_RUN_ID") or "run"
    payload["experiment"] = payload.get("experiment") or os.environ.get("AZUREML_EXPERIMENT_NAME") or ""
    tracking = payload["tracking"] = dict(payload.get("tracking") or {})
    tracking["run_id"] = tracking.get("run_id") or hashlib.sha256(("amltrain:" + run).encode()).hexdigest()[:32]
    try:
        job = checked(payload).job
    except AgentError as error:
        raise BadJob("%s: %s" % (path, error.message)) from error
    job["argv"] = command(job["argv"], dict(os.environ, **data))
    # The names of places are the service's to fill: what was thought of at submit does not count.
    job["env"].update(data)
    job["notebook_dir"] = ""
    return job


def command(words: Sequence[str], environ: Mapping[str, str]) -> List[str]:
    """Program and arguments, with this interpreter and the paths of data that ``${{inputs.NAME}}`` refers to."""

    def path(found: Match[str]) -> str:
        kind = "INPUT" if found.group(1) == "inputs" else "OUTPUT"
        return environ.get("AML_%s_%s" % (kind, found.group(2).upper()), found.group(0))

    return [sys.executable if word == PYTHON else _REFERENCE.sub(path, str(word)) for word in words]


def places_of_data(words: Sequence[str]) -> Dict[str, str]:
    """``in:NAME=PATH`` (or ``NAME=PATH``) and ``out:NAME=PATH`` -> ``AML_INPUT_NAME``, ``AML_OUTPUT_NAME``.

    Raises
    ------
    BadJob
        A word of another form.
    """
    found = {}
    for word in words:
        name, equals, path = word.partition("=")
        kind, colon, rest = name.partition(":")
        kind, name = (kind, rest) if colon else ("in", name)
        if not equals or not name or kind not in ("in", "out"):
            raise BadJob("%r is not in:NAME=PATH or out:NAME=PATH" % word)
        variable = "AML_%s_%s" % ("INPUT" if kind == "in" else "OUTPUT", re.sub(r"\W", "_", name).upper())
        found[variable] = path
    return found


def working_folder(code: str, job: Mapping[str, Any]) -> str:
    """Where the job runs: ``cwd`` below the code folder, or that itself."""
    return os.path.normpath(os.path.join(code, job["cwd"])) if job["cwd"] else code


def nodes(job: Mapping[str, Any]) -> int:
    """Machines that the job was given."""
    try:
        return max(1, int(job["spec"]["resources"]["nodes"]))
    except (KeyError, TypeError, ValueError):
        return 1


def tracks(job: Mapping[str, Any]) -> bool:
    """Whether the script's MLflow calls come to our sink."""
    tracking = job["tracking"]
    return tracking.get("mode", "sink") == "sink" and "MLFLOW_TRACKING_URI" not in job["env"]
