"""The job that a service starts process by process, and where it writes."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
import tempfile
from typing import Any, Dict, List, Mapping, Match, NamedTuple, Sequence

from ..protocol import OUTPUTS, AgentError, read_json
from ..queue.submission import checked
from .identity import Identity

#: Stands in ``argv`` for the interpreter that runs the agent.
PYTHON = "@python"

#: As in ``schema/inputs.py``.
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


#: Below the code folder; the service uploads ``logs`` while the job runs, and ``outputs`` at its end.
FOLDER, ARTIFACTS = "logs/amltrain", "outputs"

#: A folder in which nothing can ever be made: who has none writes here, and every reader takes the error.
NOWHERE = os.devnull


class Places(NamedTuple):
    """Folders of one process."""

    folder: str  #: a run folder in the local form, or :data:`NOWHERE`
    artifacts: str  #: what MLflow's artifacts go to
    outputs: str  #: ``$AML_OUTPUT_DIR``
    said: str  #: one sentence on what is not as it should be, or nothing


def find(code: str, run: str, who: Identity) -> Places:
    """Make the folders of the process `who`."""
    wanted = os.path.join(code, *FOLDER.split("/"))
    error = _made(wanted)
    if not error:
        found, said = wanted, ""
    else:
        found, said = NOWHERE, "cannot write ./%s (%s): no telemetry of this run" % (FOLDER, error)
        for base in temporary_folders():
            try:
                other = os.path.join(private_folder(base, run), "node-%d" % who.node)
            except OSError:
                continue
            if not _made(other):
                found = other
                said = "cannot write ./%s (%s): telemetry lies in %s, which is not uploaded" % (FOLDER, error, other)
                break
    mine = () if who.leads else ("rank-%d" % who.rank,)
    artifacts = os.path.join(code, ARTIFACTS)
    if _writable(artifacts):
        artifacts = os.path.join(found, "artifacts")
    return Places(found, os.path.join(artifacts, *mine), os.path.join(found, OUTPUTS, *mine), said)


def temporary_folders() -> List[str]:
    """Where else something may be written, best first."""
    found = [os.environ.get("TMPDIR") or ""]
    try:
        found.append(tempfile.gettempdir())
    except OSError:  # none at all
        pass
    return [path for path in dict.fromkeys([*found, "/dev/shm"]) if path and os.path.isdir(path)]


def private_folder(base: str, run: str) -> str:
    """Make or find this user's folder of a run below `base`, which other users may write, too.

    The processes of a node share it by its name. What somebody else made under that name is never
    used; then each process has a folder of its own.

    Raises
    ------
    OSError
        Nothing can be made in `base`.
    """
    path = os.path.join(base, "amltrain-%s-%d" % (run, os.getuid()))
    try:
        os.mkdir(path, 0o700)
        return path
    except FileExistsError:
        pass
    found = os.lstat(path)
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
        return path
    return tempfile.mkdtemp(prefix="amltrain-%s-" % run, dir=base)


def _made(folder: str) -> str:
    """Make a run folder; why it cannot be, or nothing."""
    for name in ("log", "metrics", "telemetry", OUTPUTS):
        why = _writable(os.path.join(folder, name))
        if why:
            return why
    return ""


def _writable(folder: str) -> str:
    probe = os.path.join(folder, ".amltrain-%d" % os.getpid())
    try:
        os.makedirs(folder, exist_ok=True)
        # Not by asking for rights: root may do all, and a mount may be read-only.
        try:  # a file without a name: the service uploads what it sees in ./outputs, and keeps it
            os.close(os.open(folder, os.O_WRONLY | os.O_TMPFILE, 0o600))
        except (AttributeError, OSError):  # another system, or a mount that cannot: then with one
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT, 0o600))
            os.unlink(probe)
    except OSError as error:
        return error.strerror or str(error)
    return ""
