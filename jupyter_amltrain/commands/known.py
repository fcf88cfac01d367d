"""What is known without asking anybody: names of targets, runs and GPUs, for completion.

Nothing here makes a controller, starts a process or talks to a target, and whoever asks
gets what was found after a fraction of a second, however slow the disk is.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import sys
import threading
from pathlib import Path

#: A look ends after this time; pressing Tab must feel like typing (seconds).
DEADLINE = 0.15
#: More names than anybody reads.
MOST = 200
_TERMINAL = frozenset({"completed", "failed", "canceled", "lost"})


class Known:
    """Names by kind, the newest run first; filled by one reader thread."""

    def __init__(self) -> None:
        self._targets: list[str] = ["local"]
        self._runs: dict[str, tuple[float, str]] = {}  # handle -> unix seconds of its submit, state or ""
        self._reader: threading.Thread | None = None

    def targets(self) -> list[str]:
        """Names of compute targets, ``local`` first."""
        return list(self._targets)

    def runs(self, *, ended: bool | None = None) -> list[str]:
        """Handles, newest first; `ended` leaves out those that are known to be otherwise."""
        rows = sorted(self._runs.items(), key=lambda row: row[1][0], reverse=True)
        return [h for h, (_, state) in rows if ended is None or not state or (state in _TERMINAL) is ended][:MOST]

    def gpus(self) -> list[int]:
        """GPUs of this machine, by their device files: the driver is left alone."""
        names = [os.path.basename(path) for path in glob.glob("/dev/nvidia[0-9]*")]
        return sorted(int(name[6:]) for name in names if re.fullmatch(r"nvidia\d+", name))

    def look(self, deadline: float = DEADLINE) -> Known:
        """Read anew, for `deadline` seconds at most; what comes later is there the next time."""
        reader = self._reader
        if reader is None or not reader.is_alive():
            reader = self._reader = threading.Thread(target=self._read, name="amltrain-known", daemon=True)
            reader.start()
        reader.join(deadline)
        return self

    def _read(self) -> None:
        found: dict[str, tuple[float, str]] = {}
        # A torn file, a folder of somebody else: each costs its own names only.
        with contextlib.suppress(Exception):
            from jupyter_amltrain.state import default_path

            home = default_path()
            self._targets = _targets(home)
            self._runs = found = _on_disk(home)
        with contextlib.suppress(Exception):
            self._runs = found | _of_controller()


def _targets(home: Path) -> list[str]:
    try:
        named = json.loads((home / "targets.json").read_bytes())["targets"]
        return ["local", *(name for name in dict(named) if name != "local")]
    except (OSError, ValueError, TypeError, KeyError):
        return ["local"]


def _on_disk(home: Path) -> dict[str, tuple[float, str]]:
    """Runs of this machine's target, by their folders."""
    found: list[tuple[float, str]] = []
    with contextlib.suppress(FileNotFoundError), os.scandir(home / "runs") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                found.append((os.stat(os.path.join(entry.path, "job.json")).st_mtime, entry.name))
    found.sort(reverse=True)
    return {f"local/{name}": (made, _state(home / "runs" / name)) for made, name in found[:MOST]}


def _state(folder: Path) -> str:
    try:
        return str(json.loads((folder / "state.json").read_bytes())["state"])
    except (OSError, ValueError, TypeError, KeyError):
        return ""


def _of_controller() -> dict[str, tuple[float, str]]:
    """Runs that the process' controller has heard of, on any target; none is made for that."""
    session = sys.modules.get("jupyter_amltrain.session")
    controller = None if session is None else session.existing()
    if controller is None:
        return {}

    async def read() -> dict[str, tuple[float, str]]:
        # Of a past run that nobody has looked at it is enough that it has ended.
        return {
            entry.handle: (entry.created, "completed" if entry.unread else entry.run.status.state.value)
            for entry in controller.store.entries()
        }

    return dict(controller.loop.call(read(), DEADLINE))
