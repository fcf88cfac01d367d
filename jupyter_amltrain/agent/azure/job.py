"""The job that a service starts process by process, and its folders."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
import tempfile
from typing import Any, Dict, List, Mapping, Match, NamedTuple, Sequence

from ..protocol import CHECKPOINTS, CHECKPOINTS_VARIABLE, OUTPUTS, AgentError, read_json
from ..queue.job_fields import FIELDS, check_payload
from ..supervise.hook_table import HOOKS
from .identity import Identity

#: Placeholder in ``argv`` for the interpreter that runs the agent.
PYTHON = "@python"

#: Similar to that in ``schema/inputs.py``.
_REFERENCE = re.compile(r"\$\{\{\s*(inputs|outputs|search_space)\.([\w.-]+)\s*\}\}")
#: Prefix of the variables with the values of a sweep's trial, as in ``schema/searched_values.py``.
_SEARCHED = "AML_SWEEP_"


class BadJob(Exception):
    """The job cannot be started; the message is for users."""


def read(path: str, data: Mapping[str, str]) -> Dict[str, Any]:
    """Return the job in the file `path`, in the supervisor's form.

    Parameters
    ----------
    data
        Variables with the paths of inputs and outputs (:func:`data_paths`).

    Raises
    ------
    BadJob
        The file has no valid job.
    """
    try:
        stored = read_json(path, "Code folder")
    except (OSError, AgentError) as error:
        raise BadJob("cannot read %s: %s" % (path, getattr(error, "strerror", None) or error)) from error
    if stored is None:
        raise BadJob("%s holds no job" % path)
    payload = {key: stored[key] for key in FIELDS if stored.get(key) is not None}
    # The file is part of the code, which is the same for all its runs: the service sets the id of this run.
    run = payload["run"] = payload.get("run") or os.environ.get("AZUREML_RUN_ID") or "run"
    payload["experiment"] = payload.get("experiment") or os.environ.get("AZUREML_EXPERIMENT_NAME") or ""
    tracking = payload["tracking"] = dict(payload.get("tracking") or {})
    tracking["run_id"] = tracking.get("run_id") or hashlib.sha256(("amltrain:" + run).encode()).hexdigest()[:32]
    try:
        job = check_payload(payload).job
    except AgentError as error:
        raise BadJob("%s: %s" % (path, error.message)) from error
    job["argv"] = command(job["argv"], dict(os.environ, **data), stored.get("search") or {})
    job["goal"] = str(stored.get("goal") or "")
    # The service sets the variables with paths: values from the submission are overridden.
    job["env"].update(data)
    # Those of hooks that the job turns off, which are removed elsewhere: an outer job may have set them.
    off = {hook.variable for hook in HOOKS if hook.variable and os.environ.get(hook.variable) == "0"}
    job["env"].update(dict.fromkeys(off, "0"))
    job["notebook_dir"] = ""
    return job


def command(words: Sequence[str], environ: Mapping[str, str], search: Mapping[str, Any] = {}) -> List[str]:
    """Return program and arguments, with this interpreter, and paths and values for references.

    Parameters
    ----------
    search
        Form of each searched parameter: ``int``, ``float``, the texts of its choices, or the words of a switch by
        ``true`` and ``false``.
    """

    def text(match: Match[str]) -> str:
        kind, name = match.groups()
        if kind == "search_space":
            value = environ.get(_SEARCHED + name)
            return match.group(0) if value is None else argument(value, search.get(name))
        return environ.get("AML_%s_%s" % ("INPUT" if kind == "inputs" else "OUTPUT", name.upper()), match.group(0))

    made = [sys.executable if word == PYTHON else _REFERENCE.sub(text, str(word)) for word in words]
    return [word for word, given in zip(made, words) if word or not given]  # a switch may have no word


def argument(value: str, form: Any) -> str:
    """Return the text of a searched value as elsewhere: 16 for ``16.0``, and ``true`` for ``True``."""
    if isinstance(form, dict):
        return str(form.get(value.lower(), value))
    if isinstance(form, list):
        if value in form:
            return value
        for option in form:
            if option == value.lower() or _same_number(option, value):
                return str(option)
    elif form == "int":
        try:
            return str(round(float(value)))
        except (ValueError, OverflowError):
            pass
    return value


def _same_number(one: str, other: str) -> bool:
    try:
        return abs(float(one) - float(other)) <= 1e-6 * abs(float(one))
    except ValueError:
        return False


def data_paths(words: Sequence[str]) -> Dict[str, str]:
    """Return ``AML_INPUT_NAME`` of ``in:NAME=PATH`` (or ``NAME=PATH``), ``AML_OUTPUT_NAME`` of ``out:NAME=PATH``.

    Raises
    ------
    BadJob
        An argument has another form.
    """
    variables = {}
    for word in words:
        name, equals, path = word.partition("=")
        kind, colon, rest = name.partition(":")
        kind, name = (kind, rest) if colon else ("in", name)
        if not equals or not name or kind not in ("in", "out"):
            raise BadJob("%r is not in:NAME=PATH or out:NAME=PATH" % word)
        variable = "AML_%s_%s" % ("INPUT" if kind == "in" else "OUTPUT", re.sub(r"\W", "_", name).upper())
        variables[variable] = path
    return variables


def working_folder(code: str, job: Mapping[str, Any]) -> str:
    """Return the job's working folder: ``cwd`` below the code folder, or the code folder."""
    return os.path.normpath(os.path.join(code, job["cwd"])) if job["cwd"] else code


def nodes(job: Mapping[str, Any]) -> int:
    """Return the number of machines of the job."""
    try:
        return max(1, int(job["spec"]["resources"]["nodes"]))
    except (KeyError, TypeError, ValueError):
        return 1


def tracks(job: Mapping[str, Any]) -> bool:
    """Return whether the script's MLflow calls go to the agent's sink."""
    tracking = job["tracking"]
    return tracking.get("mode", "sink") == "sink" and "MLFLOW_TRACKING_URI" not in job["env"]


#: Below the code folder; the service uploads ``logs`` while the job runs, and ``outputs`` at its end.
FOLDER, ARTIFACTS = "logs/amltrain", "outputs"

#: A folder in which no file can be created: processes without a folder use it, and its readers handle the error.
NOWHERE = os.devnull


def checkpoints(code: str) -> str:
    """Return the folder of the job's checkpoints: an output of the job, or a folder that is uploaded at the end."""
    return os.environ.get(CHECKPOINTS_VARIABLE) or os.path.join(code, ARTIFACTS, CHECKPOINTS)


class JobFolders(NamedTuple):
    """Folders of one process of a job."""

    folder: str  #: a run folder in the local form, or :data:`NOWHERE`
    artifacts: str  #: folder of MLflow's artifacts
    outputs: str  #: ``$AML_OUTPUT_DIR``
    warning: str  #: one sentence if a folder is not writable, or empty


def find(code: str, run: str, rank: Identity) -> JobFolders:
    """Create the folders of the process `rank`."""
    preferred = os.path.join(code, *FOLDER.split("/"))
    error = _create(preferred)
    if not error:
        folder, warning = preferred, ""
    else:
        folder, warning = NOWHERE, "cannot write ./%s (%s): no telemetry of this run" % (FOLDER, error)
        for base in temporary_folders():
            try:
                other = os.path.join(private_folder(base, run), "node-%d" % rank.node)
            except OSError:
                continue
            if not _create(other):
                folder = other
                warning = "cannot write ./%s (%s): telemetry is in %s, which is not uploaded" % (FOLDER, error, other)
                break
    own = () if rank.leads else ("rank-%d" % rank.rank,)
    artifacts = os.path.join(code, ARTIFACTS)
    if _writable(artifacts):
        artifacts = os.path.join(folder, "artifacts")
    return JobFolders(folder, os.path.join(artifacts, *own), os.path.join(folder, OUTPUTS, *own), warning)


def temporary_folders() -> List[str]:
    """Return other writable folders, best first."""
    folders = [os.environ.get("TMPDIR") or ""]
    try:
        folders.append(tempfile.gettempdir())
    except OSError:  # none at all
        pass
    return [path for path in dict.fromkeys([*folders, "/dev/shm"]) if path and os.path.isdir(path)]


def hook_folder(run: str) -> str:
    """Return a folder outside of the job's code, which the service would upload, for the hooks of its Python."""
    for base in temporary_folders():
        try:
            return private_folder(base, run)
        except OSError:
            continue
    return NOWHERE


def private_folder(base: str, run: str) -> str:
    """Create or find this user's folder of a run below `base`, which other users may be able to write.

    The processes of a node share it by its name. If another user has created that name, the folder is not
    used; then each process has a folder of its own.

    Raises
    ------
    OSError
        No folder can be created in `base`.
    """
    path = os.path.join(base, "amltrain-%s-%d" % (run, os.getuid()))
    try:
        os.mkdir(path, 0o700)
        return path
    except FileExistsError:  # of another process of this node, or foreign: checked below
        pass
    status = os.lstat(path)
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022:
        return path
    return tempfile.mkdtemp(prefix="amltrain-%s-" % run, dir=base)


def _create(folder: str) -> str:
    """Create a run folder; return the reason if that fails, else an empty text."""
    for name in ("log", "metrics", "telemetry", OUTPUTS):
        reason = _writable(os.path.join(folder, name))
        if reason:
            return reason
    return ""


def _writable(folder: str) -> str:
    probe = os.path.join(folder, ".amltrain-%d" % os.getpid())
    try:
        os.makedirs(folder, exist_ok=True)
        # Permission bits are no proof: root may write anything, and a mount may be read-only.
        try:  # a file without a name: the service uploads, and keeps, every file in ./outputs
            os.close(os.open(folder, os.O_WRONLY | os.O_TMPFILE, 0o600))
        except (AttributeError, OSError):  # another system, or a mount that does not support it: a file with a name
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT, 0o600))
            os.unlink(probe)
    except OSError as error:
        return error.strerror or str(error)
    return ""
