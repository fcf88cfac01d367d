"""A run that is asked something while it runs."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Iterable, NamedTuple

from ..file_waits import wait_for
from ..protocol import ASKS, AgentError

Json = Dict[str, Any]

#: Seconds that a run which has just become running may take to start its process.
_START_S = 2.0


class AskedRun(NamedTuple):
    """A run that is running on this machine.

    Parameters
    ----------
    folder
        The run folder.
    job
        Content of its ``job.json``.
    members
        Returns the pids of its processes.
    """

    folder: str
    job: Json
    members: Callable[[], Iterable[int]]

    @property
    def spec(self) -> Json:
        """The job as it was submitted; empty if that is not known."""
        return self.job.get("spec") or {}

    def check_open(self) -> None:
        """Raise an error if the run takes no questions now, or not from this user."""
        if not wait_for(lambda: os.path.isdir(os.path.join(self.folder, ASKS)), _START_S):
            raise AgentError("CommandError", "This run has not begun yet. Try again in a moment.", "ask.state")
        owner = os.stat(self.folder).st_uid
        if owner != os.geteuid():  # root may write in there, but the run answers nobody else
            text = "This run belongs to another user (uid %d): only its own user can ask it." % owner
            raise AgentError("CommandError", text, "ask.owner")
