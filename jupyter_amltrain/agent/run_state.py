"""State file of a run as its supervisor keeps it: against a job that damages or moves it."""

from __future__ import annotations

import errno
import os
from typing import Any, Callable, Dict, Optional, Tuple

from . import clock, lifecycle
from .processes import LINUX
from .protocol import CANCEL, JOB, STATE, AgentError, read_json

#: Seconds that a run folder may be away at the end of its run before its record is given up.
FOLDER_RETURN_TIMEOUT_S = float(os.environ.get("AMLTRAIN_FOLDER_RETURN_TIMEOUT") or 20.0)


class StateFile:
    """``state.json`` of one run, whose only writer we are.

    The folder is held open, so that it is found again after a job has renamed it.

    Parameters
    ----------
    folder
        The run folder.
    submission
        What ``job.json`` of the folder names, by which a copy of the folder is known.
    """

    def __init__(self, folder: str, submission: str = "") -> None:
        self.folder = folder
        self._submission = submission
        self._handle = -1
        self._written: Optional[Tuple[int, int, int]] = None
        if LINUX:  # elsewhere a descriptor is no path
            try:
                self._handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError:
                pass

    @property
    def place(self) -> str:
        """Path of the folder, wherever it is now."""
        if self._handle >= 0 and not self._is_ours(self.folder):
            held = "/proc/self/fd/%d" % self._handle
            if self._is_ours(held):
                return held
        return self.folder

    def exists(self) -> bool:
        """Whether the folder is somewhere, for as far as we can tell."""
        return self._is_ours(self.place)

    def cancel_requested(self) -> bool:
        """Whether the file that asks for the run's end is there."""
        return os.path.lexists(os.path.join(self.place, CANCEL))

    def save(self, state: Dict[str, Any], durable: bool = False) -> None:
        """Write a state; see `lifecycle.save`.

        Raises
        ------
        OSError
            It cannot be written now, or the folder was removed: whoever did that wants no run there.
        """
        if self._handle >= 0 and not self.exists():
            raise FileNotFoundError(errno.ENOENT, "the run folder was removed", self.folder)
        lifecycle.save(self.place, state, durable)
        self._written = self._signature()

    def changed(self) -> bool:
        """Whether somebody else wrote, replaced or removed the file since `save`."""
        return self._written is not None and self._signature() != self._written and self.exists()

    def save_patiently(self, state: Dict[str, Any], tick: Callable[[], None]) -> None:
        """Write the last state, once a second until the disk takes it; give up when the folder stays away.

        Parameters
        ----------
        tick
            Called before each try.
        """
        seen = clock.mono()

        def write() -> None:
            tick()
            self.save(state, durable=True)

        def gone() -> bool:
            nonlocal seen
            if self.exists():
                seen = clock.mono()
            return clock.mono() - seen > FOLDER_RETURN_TIMEOUT_S

        lifecycle.save_patiently(gone, write)

    def _signature(self) -> Optional[Tuple[int, int, int]]:
        try:
            found = os.lstat(os.path.join(self.place, STATE))
        except OSError:
            return None
        return found.st_ino, found.st_ctime_ns, found.st_size

    def _is_ours(self, folder: str) -> bool:
        try:
            here = os.stat(folder)
        except OSError:
            return False
        if self._handle >= 0:
            held = os.fstat(self._handle)
            if (here.st_dev, here.st_ino) == (held.st_dev, held.st_ino):
                return held.st_nlink > 0 and os.path.isdir(folder)
        if not self._submission:
            return self._handle < 0
        try:
            job = read_json(os.path.join(folder, JOB)) or {}
        except (AgentError, OSError):
            return False
        return job.get("submission") == self._submission
