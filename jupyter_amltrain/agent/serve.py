"""Server of one connection: answers a kernel on another machine over standard input and output.

A frame is two big-endian 32-bit lengths, a JSON object and bytes. A request has ``id`` and ``op``; its reply has the
same ``id``. Requests are answered concurrently, in any order. The process ends when its input ends; runs do not depend
on it.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import stat
import struct
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from . import calls
from .file_store import BLOBS, FileStore
from .folder_watch import FolderWatch
from .protocol import open_regular, read_up_to
from .whole_files import read_all

Json = Dict[str, Any]

_HEAD = struct.Struct("!II")
#: Maximum bytes of the JSON and of the data of one frame.
MAX_FRAME_BYTES = 64 << 20
#: Threads that answer requests; a request that waits for changes has a thread of its own.
_THREADS = 6
#: Seconds after its start at which a server deletes what is older.
_SWEEP_DELAY_S = 60.0


def read_frame(stream: Any) -> Optional[Tuple[Json, bytes]]:
    """Return the next frame of a binary stream; ``None`` at its end."""
    head = _exactly(stream, _HEAD.size)
    if head is None:
        return None
    size, more = _HEAD.unpack(head)
    if size > MAX_FRAME_BYTES or more > MAX_FRAME_BYTES:
        raise ValueError("a frame of %d + %d bytes" % (size, more))
    text, data = _exactly(stream, size), _exactly(stream, more)
    return None if text is None or data is None else (json.loads(text.decode()), data)


def _exactly(stream: Any, size: int) -> Optional[bytes]:
    parts = []
    while size > 0:
        part = stream.read(size)
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def frame(header: Mapping[str, Any], data: bytes = b"") -> bytes:
    """Return the bytes of a frame."""
    text = json.dumps(header, separators=(",", ":")).encode()
    return _HEAD.pack(len(text), len(data)) + text + data


class Server:
    """Answers the requests of one connection.

    Parameters
    ----------
    home
        The state root on this machine.
    agent
        Path of the agent's file, which the dispatcher is started from.
    """

    def __init__(self, source: Any, sink: Any, home: str, agent: Optional[str]) -> None:
        self._source, self._sink, self.home, self._agent = source, sink, home, agent
        self._writing = threading.Lock()
        self._watch = FolderWatch()
        self._waiting: Any = queue.Queue()  # of requests with their data
        self._files = FileStore(os.path.join(home, BLOBS))

    def run(self) -> None:
        """Answer until the input ends."""
        for _ in range(_THREADS):
            threading.Thread(target=self._work, daemon=True).start()
        threading.Thread(target=self._sweep, daemon=True).start()
        while True:
            try:
                request = read_frame(self._source)
            except (OSError, ValueError):
                return
            if request is None:
                return
            if request[0].get("op") == "wait":
                threading.Thread(target=self._answer, args=request, daemon=True).start()
            else:
                self._waiting.put(request)

    def _sweep(self) -> None:
        time.sleep(_SWEEP_DELAY_S)
        try:
            self._files.sweep(time.time())
        except (OSError, ValueError, KeyError):  # another server sweeps at the same time, or a list is damaged
            pass

    def _work(self) -> None:
        while True:
            self._answer(*self._waiting.get())

    def _answer(self, request: Json, data: bytes) -> None:
        try:
            reply, found = _OPS[str(request.get("op"))](self, request, data)
        except KeyError as error:
            reply, found = {"error": {"type": "ProtocolError", "message": "bad request: %s" % error}}, b""
        except OSError as error:
            text = error.strerror or str(error)
            reply, found = {"oserror": [error.errno or 0, text, str(error.filename or "")]}, b""
        except Exception as error:  # the connection serves other requests
            reply, found = (
                {"error": {"type": "ProtocolError", "message": "%s: %s" % (type(error).__name__, error)}},
                b"",
            )
        reply["id"] = request.get("id")
        message = frame(reply, found)
        with self._writing:
            try:
                self._sink.write(message)
                self._sink.flush()
            except (OSError, ValueError):  # the other end is gone
                os._exit(0)

    # ---- operations: each returns the reply and its data

    def _call(self, request: Json, data: bytes) -> Tuple[Json, bytes]:
        payload = dict(request["payload"])
        if request["call"] == "submit":
            # The job gets the environment of a login on this machine, not that of the kernel.
            payload["environ"] = dict(os.environ, **payload.get("environ", {}))
        return {"reply": calls.call(request["call"], payload, self.home, None, self._agent)}, b""

    def _read(self, request: Json, data: bytes) -> Tuple[Json, bytes]:
        try:
            handle = open_regular(request["path"])
        except (FileNotFoundError, NotADirectoryError):
            return {}, b""
        try:
            os.lseek(handle, request["offset"], os.SEEK_SET)
            return {}, read_up_to(handle, min(request["limit"], MAX_FRAME_BYTES))
        finally:
            os.close(handle)

    def _size(self, request: Json, data: bytes) -> Tuple[Json, bytes]:
        try:
            status = os.stat(request["path"])
        except (FileNotFoundError, NotADirectoryError):
            return {"size": 0, "kind": ""}, b""
        kind = "folder" if stat.S_ISDIR(status.st_mode) else "file" if stat.S_ISREG(status.st_mode) else "other"
        return {"size": status.st_size if kind == "file" else 0, "kind": kind, "modified": status.st_mtime}, b""

    def _read_many(self, request: Json, data: bytes) -> Tuple[Json, bytes]:
        """Return small files of a folder: their bytes, and size and time of each; ``None`` for one that is left out."""
        found = read_all(request["folder"], request["names"], request["limit"])
        facts = [None if file is None else [len(file.data), file.modified] for file in found]
        return {"files": facts}, b"".join(file.data for file in found if file is not None)

    def _digest(self, request: Json, data: bytes) -> Tuple[Json, bytes]:
        """Return the sha256 of the first `size` bytes of a file."""
        digest, left = hashlib.sha256(), request["size"]
        with os.fdopen(open_regular(request["path"]), "rb") as file:
            while left > 0:
                part = file.read(min(left, 1 << 20))
                if not part:
                    break
                digest.update(part)
                left -= len(part)
        return {"sha256": digest.hexdigest()}, b""

    def _list(self, request: Json, data: bytes) -> Tuple[Json, bytes]:
        folder: str = request["path"]
        found: List[List[Any]] = []
        for parent, folders, names in os.walk(folder):
            if parent == folder:
                folders[:] = [name for name in folders if name not in request["without"]]
            for name in names:
                path = os.path.join(parent, name)
                try:
                    status = os.stat(path)
                except OSError:
                    continue
                if stat.S_ISREG(status.st_mode):
                    is_executable = bool(status.st_mode & stat.S_IXUSR)
                    found.append([os.path.relpath(path, folder), status.st_size, status.st_mtime, is_executable])
        return {"files": sorted(found)}, b""

    def _stage(self, request: Json, data: bytes) -> Tuple[Json, bytes]:
        return self._files.stage(request, data), b""

    def _append(self, request: Json, data: bytes) -> Tuple[Json, bytes]:
        """Append a part of a large file of :meth:`_stage`; the last part completes it."""
        self._files.append(request["digest"], request["upload"], request["offset"], data, request["last"])
        return {}, b""

    def _wait(self, request: Json, data: bytes) -> Tuple[Json, bytes]:
        return {"changed": self._watch.wait(request["paths"], request["seconds"], request.get("key", ""))}, b""

    def _ping(self, request: Json, data: bytes) -> Tuple[Json, bytes]:
        return {}, b""


_OPS: Dict[str, Callable[[Server, Json, bytes], Tuple[Json, bytes]]] = {
    "call": Server._call,
    "read": Server._read,
    "read_many": Server._read_many,
    "size": Server._size,
    "digest": Server._digest,
    "list": Server._list,
    "stage": Server._stage,
    "append": Server._append,
    "wait": Server._wait,
    "ping": Server._ping,
}


def main(home: str, agent: Optional[str]) -> None:
    """Serve standard input until it ends; nothing else may write to standard output."""
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    source = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    Server(source, sink, home, agent).run()
    sys.stderr.flush()
    os._exit(0)
