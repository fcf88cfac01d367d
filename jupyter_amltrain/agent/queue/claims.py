"""Claims: whether a submission was accepted or revoked, decided once.

A submitter without a reply must not report "not submitted" while its request can
still be served, and a dispatcher that continues after a stop must not start a job that
was given up. Both record their decision under the name of the submission; the first one wins.
"""

from __future__ import annotations

import errno
import hashlib
import os

from ..protocol import valid_run_id

CLAIMS = "claims"
#: The two decisions. The dispatcher makes the first one, the submitter the second one.
ACCEPTED, REVOKED = "accepted", "revoked"


def decide(queue: str, submission: str, decision: str) -> str:
    """Record a decision on a submission unless there is one already.

    A symbolic link is created atomically with its content: readers never see a partial decision.

    Parameters
    ----------
    queue
        The queue folder.
    submission
        Name that the submitter chose for this submission.
    decision
        `ACCEPTED` or `REVOKED`.

    Returns
    -------
    str
        The decision in effect.

    Raises
    ------
    OSError
        The decision cannot be recorded, so nothing is decided.
    """
    path = _path(queue, submission)
    while True:
        try:
            os.symlink(decision, path)
            return decision
        except FileExistsError:  # decided already: read below
            pass
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            continue
        try:
            return os.readlink(path)
        except OSError as error:
            if error.errno != errno.ENOENT:  # else it was removed meanwhile
                raise


def forget(queue: str, submission: str) -> None:
    """Remove the decision on a submission whose submitter has received its reply."""
    try:
        os.unlink(_path(queue, submission))
    except OSError:  # removed already
        pass


def sweep_claims(queue: str) -> None:
    """Remove all decisions. Only for a new dispatcher without a socket: no earlier request can reach it."""
    folder = os.path.join(queue, CLAIMS)
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        try:
            os.unlink(os.path.join(folder, name))
        except OSError:  # removed already
            pass


def _path(queue: str, submission: str) -> str:
    name = submission
    if not valid_run_id(name):
        name = hashlib.sha256(submission.encode("utf-8", "surrogatepass")).hexdigest()
    return os.path.join(queue, CLAIMS, name)
