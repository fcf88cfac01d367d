"""The process of a supervisor: forked with its guardian, before there is a job."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from typing import Any, Dict, Optional

from . import failpoints
from .forked import stdio_to, wake_on
from .guardian import STARTED, receive
from .heartbeat import Heartbeat
from .processes import become_subreaper, identity
from .protocol import AGENT_LOG
from .shelf import NumberedJsonDir
from .supervisor import QueueHost, Supervisor


def main(guardian: Optional[Dict[str, Any]], assigned: int, life: int, guarded: int, ready: int) -> None:
    """Body of a forked supervisor; never returns.

    Parameters
    ----------
    guardian
        Identity of our guardian.
    assigned
        Socket that brings the job.
    life
        Write end of the pipe by which the guardian notices our death.
    guarded
        Read end of the pipe that brings the guardian's go, and its death.
    ready
        Write end of the pipe by which the dispatcher hears who we are, and that we have begun.
    """
    try:
        become_subreaper()
        wakeup, _ = wake_on(signal.SIGCHLD, signal.SIGTERM)
        me = identity(os.getpid())
        os.write(ready, json.dumps({"supervisor": me}).encode() + b"\n")
        task = receive(assigned)
        if task is None or os.read(guarded, 1) != b"g":
            os._exit(0)
        failpoints.hit("before_started")
        try:
            os.write(ready, STARTED)
        except BrokenPipeError:  # the dispatcher is gone: the next one adopts us
            pass
        os.close(ready)
        heart = Heartbeat(life)
        heart.beat()
        stdio_to(os.path.join(task.folder, AGENT_LOG))
        NumberedJsonDir(os.path.join(task.queue, "slots")).hold(task.number)
        task.state["guardian"], task.state["supervisor"] = guardian, me
        Supervisor(task, QueueHost(task), wakeup, guarded, heart).run()
        heart.end()
    except BaseException:  # a forked child must never return into its parent's code
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(70)  # without a farewell: the guardian cleans up
    os._exit(0)
