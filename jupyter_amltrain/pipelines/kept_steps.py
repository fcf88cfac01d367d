"""Results of steps that pipelines of this user have made, by what they depend on; for later pipelines. Any thread."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import msgspec

from jupyter_amltrain.pipelines.step_output import StepOutput, has_files
from jupyter_amltrain.state_dir import default_path

#: Days after their last use in which results are known.
KEEP_DAYS = 90
_FOLDER = "pipelines"


class KeptStep(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a step.

    Attributes
    ----------
    handle
        The run that made it.
    folder
        Folder of that run, if it was on this machine.
    seconds
        Time that the run took.
    """

    handle: str
    outputs: dict[str, StepOutput] = {}
    folder: str = ""
    seconds: float | None = None
    made: float = 0.0


class KeptSteps:
    """The results in a folder, one file for each, named by its key.

    Parameters
    ----------
    folder
        Default: that of this user's state root.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or default_path() / _FOLDER
        self._decoder, self._encoder = msgspec.json.Decoder(KeptStep), msgspec.json.Encoder()

    def find(self, key: str) -> KeptStep | None:
        """Return the result of a key if its run and its files still exist. Blocks on the disk."""
        path = self._path(key)
        try:
            found = self._decoder.decode(path.read_bytes())
        except (OSError, msgspec.MsgspecError):
            return None
        if found.folder and not os.path.isdir(found.folder):
            return None
        if not all(map(has_files, found.outputs.values())):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return found

    def add(self, key: str, step: KeptStep) -> None:
        """Remember a result. Blocks on the disk."""
        path = self._path(key)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = path.with_name(f".{os.getpid()}-{path.name}")
        part.write_bytes(self._encoder.encode(step))
        os.replace(part, path)

    def prune(self) -> None:
        """Forget results that no pipeline has used for :data:`KEEP_DAYS`. Blocks on the disk."""
        oldest = time.time() - KEEP_DAYS * 86400
        for path in self._folder.glob("??/*.json"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < oldest:
                    path.unlink()

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key[2:]}.json"
