"""Reads the files of TensorBoard and wandb with their own packages: a program in the Python of the job.

``tracker_files.py`` starts it with ``-c``. It gets lines ``[tracker, path, position]`` and writes lines
``{"path", "at", "points": [[name, value, step, unix seconds]]}`` or ``{"path", "error", "absent"}`` (the module that
this Python does not have, or an empty text); it looks once a second, and a last time when its input is over. A position
counts the values of a file.
"""

import json
import os
import struct
import sys
import threading
import time
import types
from typing import Any, Dict, Iterator, List, Set

#: Points of one line of output.
PART = 500


class TensorBoardFile:
    """One event file."""

    def __init__(self, path: str) -> None:
        # TensorBoard would import TensorFlow where it is installed.
        sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

        self._loader = EventFileLoader(path)
        self._scalars: Set[str] = set()

    def points(self) -> Iterator[List[Any]]:
        """Yield the new points."""
        from tensorboard.util import tensor_util

        for event in self._loader.Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    self._scalars.add(value.tag)
                if value.tag in self._scalars and value.HasField("tensor"):
                    array = tensor_util.make_ndarray(value.tensor)
                    if array.size == 1:
                        yield [value.tag, float(array.reshape(-1)[0]), event.step, event.wall_time]


class WandbFile:
    """The file of an offline run: records in the log format of LevelDB, each a message of wandb's protocol."""

    BLOCK = 32768

    def __init__(self, folder: str) -> None:
        self._folder, self._at, self._record = folder, 7, b""
        self._file: Any = None

    def points(self) -> Iterator[List[Any]]:
        """Yield the new points."""
        from wandb.proto import wandb_internal_pb2

        for data in self._records():
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") != "history":
                continue
            values = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
            moment = json.loads(values.get("_timestamp", "0")) or time.time()
            step = int(json.loads(values.get("_step", "0")) or record.history.step.num)
            for name, text in values.items():
                number = json.loads(text) if not name.startswith("_") else None
                if isinstance(number, (int, float)) and not isinstance(number, bool):
                    yield [name, float(number), step, moment]

    def _records(self) -> Iterator[bytes]:
        if self._file is None:
            names = [name for name in os.listdir(self._folder) if name.endswith(".wandb")]
            if not names:
                return
            self._file = open(os.path.join(self._folder, names[0]), "rb")  # noqa: SIM115
        while True:
            left = self.BLOCK - self._at % self.BLOCK
            if left < 7:
                self._at += left
            self._file.seek(self._at)
            head = self._file.read(7)
            if len(head) < 7:
                return
            size, kind = struct.unpack("<xxxxHB", head)
            data = self._file.read(size)
            if len(data) < size or not kind:
                return
            self._at += 7 + size
            self._record = data if kind in (1, 2) else self._record + data  # whole, first, middle, last
            if kind in (1, 4):
                yield self._record


READERS: Dict[str, Any] = {"TensorBoard": TensorBoardFile, "wandb": WandbFile}


class Follow:
    """All files, as they are named."""

    def __init__(self) -> None:
        self.files: Dict[str, List[Any]] = {}
        self.lock = threading.Lock()

    def add(self, tracker: str, path: str, position: int) -> None:
        """Read a file from a position."""
        try:
            reader = READERS[tracker](path)
        except Exception as error:  # the package is absent, or of a version with other names
            fail(path, error)
            return
        with self.lock:
            self.files[path] = [reader, 0, position]

    def look(self) -> None:
        """Write what is new."""
        with self.lock:
            files = list(self.files.items())
        for path, entry in files:
            part: List[Any] = []
            try:
                for point in entry[0].points():
                    entry[1] += 1
                    if entry[1] > entry[2]:
                        part.append(point)
                    if len(part) >= PART:
                        say({"path": path, "at": entry[1], "points": part})
                        part = []
            except Exception as error:  # a file that the package cannot read; the others go on
                fail(path, error)
                with self.lock:
                    self.files.pop(path)
            if part:
                say({"path": path, "at": entry[1], "points": part})


def say(what: Dict[str, Any]) -> None:
    """Write one line."""
    OUT.write(json.dumps(what) + "\n")
    OUT.flush()


def fail(path: str, error: Exception) -> None:
    """Write the line of a file that is not read further."""
    absent = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
    say({"path": path, "error": "%s: %s" % (type(error).__name__, error), "absent": absent})


def listen(follow: Follow, ended: threading.Event) -> None:
    """Add the files that the input names, until it is over."""
    for line in sys.stdin:
        follow.add(*json.loads(line))
    ended.set()


if __name__ == "__main__":
    OUT = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a package prints is not for the agent
    FOLLOW, ENDED = Follow(), threading.Event()
    threading.Thread(target=listen, args=(FOLLOW, ENDED), daemon=True).start()
    while not ENDED.wait(1.0):
        FOLLOW.look()
    FOLLOW.look()
