"""Failpoints: named places where a test can make the agent die, fail or wait.

``AMLTRAIN_FAILPOINT="name[:action],..."`` with the actions ``kill`` (SIGKILL to
ourselves, the default), ``raise``, ``raise-without=FILE`` and ``sleep=SECONDS``.  With
``AMLTRAIN_FAILPOINT_ONCE=<folder>`` each one fires only once across all processes
and restarts.
"""

from __future__ import annotations

import os
import signal
import time


class FailpointError(Exception):
    """Raised at a failpoint whose action is ``raise``."""


def hit(name: str) -> None:
    """Perform the action that the environment sets for the failpoint `name`, if any."""
    value = os.environ.get("AMLTRAIN_FAILPOINT")
    if not value:
        return
    for item in value.split(","):
        failpoint, _, action = item.strip().partition(":")
        if failpoint == name and _first_time(name):
            _act(name, action or "kill")


def _first_time(name: str) -> bool:
    folder = os.environ.get("AMLTRAIN_FAILPOINT_ONCE")
    if not folder:
        return True
    try:
        os.close(os.open(os.path.join(folder, name), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True


def _act(name: str, action: str) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)  # the signal is pending; nothing may run after it
    elif action == "raise":
        raise FailpointError(name)
    elif action.startswith("raise-without="):
        if not os.path.exists(action[len("raise-without=") :]):
            raise FailpointError(name)
    elif action.startswith("sleep="):
        time.sleep(float(action[len("sleep=") :]))
    else:
        raise ValueError("AMLTRAIN_FAILPOINT: %r is not kill, raise, raise-without=FILE or sleep=S" % (action,))
