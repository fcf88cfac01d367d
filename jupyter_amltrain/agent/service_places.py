"""Where a job of a service writes: the folder that the service uploads, or what else can be written."""

from __future__ import annotations

import os
import stat
import tempfile
from typing import List, NamedTuple

from .protocol import OUTPUTS
from .service_identity import Identity

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
