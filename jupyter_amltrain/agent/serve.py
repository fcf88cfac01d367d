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
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Set, Tuple

from . import calls
from .folder_watch import FolderWatch
from .protocol import open_regular, read_up_to

Json = Dict[str, Any]

_HEAD = struct.Struct("!II")
#: Maximum bytes of the JSON and of the data of one frame.
MAX_FRAME_BYTES = 64 << 20
#: Threads that answer requests; a request that waits for changes has a thread of its own.
_THREADS = 6
#: Folder of the state root with files of earlier submits, by their sha256.
BLOBS = "blobs"
#: Folder in it with lists of files, by :func:`manifest_digest`.
_MANIFESTS = "manifests"
#: Seconds after which an interpreter that is asked for its modules counts as hanging.
_MODULES_TIMEOUT_S = 30.0
#: Seconds after the last submit that named it for which a file is kept.
KEEP_S = 30 * 86400.0
#: Lists of files that are kept at least; one of a large tree has a megabyte.
MAX_MANIFESTS = 32
#: Seconds after its start at which a server deletes what is older.
_SWEEP_DELAY_S = 60.0
_FIND = """
import importlib.util, json, sys
def missing(name):
    try:
        return importlib.util.find_spec(name) is None
    except Exception:
        return True
print(json.dumps([sys.version.split()[0], [name for name in sys.argv[1:] if missing(name)]]))
"""


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


def manifest_digest(rows: Mapping[str, Tuple[str, bool]]) -> str:
    """Return the sha256 of a list of files: digest of the content, and whether it is executable, by name."""
    whole = hashlib.sha256()
    for name in sorted(rows):
        digest, executable = rows[name]
        whole.update(("%s %d %s\0" % (digest, executable, name)).encode("utf-8", "surrogatepass"))
    return whole.hexdigest()


def prune(folder: str, count: int) -> None:
    """Delete the oldest files of a folder, if it has more than twice as many as are kept."""
    names = os.listdir(folder)
    if len(names) <= 2 * count:
        return
    ages = []
    for name in names:
        try:
            ages.append((os.stat(os.path.join(folder, name)).st_mtime, name))
        except OSError:  # deleted by another server
            continue
    for _, name in sorted(ages, reverse=True)[count:]:
        try:
            os.unlink(os.path.join(folder, name))
        except OSError:
            continue


def sweep(store: str, now: float) -> None:
    """Delete files of submits that no list of files of the last days names, and those lists that are older."""
    manifests = os.path.join(store, _MANIFESTS)
    named: Set[str] = set()
    for name in os.listdir(manifests):
        path = os.path.join(manifests, name)
        if now - os.stat(path).st_mtime > KEEP_S:
            os.unlink(path)
            continue
        with open(path, "rb") as file:
            named.update(digest for _, digest, _ in json.loads(file.read().decode()))
    for name in os.listdir(store):
        path = os.path.join(store, name)
        if name not in named and name != _MANIFESTS and now - os.stat(path).st_mtime > KEEP_S:
            os.unlink(path)


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
        self._present: Set[str] = set()  # digests of files in the store

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
            sweep(self._store(), time.time())
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
        """Several small files at once: the bytes of each, ``None`` for one that cannot be read."""
        parts: List[bytes] = []
        sizes: List[Optional[int]] = []
        for path in request["paths"]:
            try:
                _, part = self._read({"path": path, "offset": 0, "limit": request["limit"]}, b"")
            except OSError:
                sizes.append(None)
                continue
            sizes.append(len(part))
            parts.append(part)
        return {"sizes": sizes}, b"".join(parts)

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
                    found.append([os.path.relpath(path, folder), status.st_size, status.st_mtime])
        return {"files": sorted(found)}, b""

    def _stage(self, request: Json, data: bytes) -> Tuple[Json, bytes]:
        """Make a folder from files by content; files that are sent along are kept for later submits.

        The list of files comes as changes of an earlier one, `base`. The reply has ``base: false`` if that is not
        here, and ``missing`` with the digests of files that are not; in both cases nothing was made.
        """
        store = self._store()
        at = 0
        for digest, size in request["sent"]:
            _write(os.path.join(store, _name(digest)), data[at : at + size])
            at += size
        rows = self._rows(request, store)
        if rows is None:
            return {"base": False, "missing": []}, b""
        missing = sorted({digest for digest, _ in rows.values() if not self._has(store, digest)})
        if not missing:
            missing = self._copy_all(store, rows, os.path.normpath(request["folder"]))
        return {"base": True, "missing": missing}, b""

    def _store(self) -> str:
        store = os.path.join(self.home, BLOBS)
        os.makedirs(os.path.join(store, _MANIFESTS), mode=0o700, exist_ok=True)
        return store

    def _rows(self, request: Json, store: str) -> Optional[Dict[str, Tuple[str, bool]]]:
        """Return digest and mode of each file; ``None`` if the base is not here."""
        rows: Dict[str, Tuple[str, bool]] = {}
        if request["base"]:
            path = os.path.join(store, _MANIFESTS, _name(request["base"]))
            try:
                with open(path, "rb") as file:
                    rows = {name: (digest, executable) for name, digest, executable in json.loads(file.read().decode())}
                os.utime(path)  # in use
            except (OSError, ValueError):
                return None
        for name in request["removed"]:
            rows.pop(name, None)
        rows.update((name, (digest, executable)) for name, digest, executable in request["changed"])
        if manifest_digest(rows) != request["manifest"]:
            return None
        path = os.path.join(store, _MANIFESTS, _name(request["manifest"]))
        if not os.path.exists(path):
            text = json.dumps([[name, digest, mode] for name, (digest, mode) in rows.items()], separators=(",", ":"))
            _write(path, text.encode())
            prune(os.path.dirname(path), MAX_MANIFESTS)
        return rows

    def _has(self, store: str, digest: str) -> bool:
        if digest not in self._present and os.path.exists(os.path.join(store, _name(digest))):
            self._present.add(digest)
        return digest in self._present

    def _copy_all(self, store: str, rows: Mapping[str, Tuple[str, bool]], folder: str) -> List[str]:
        """Copy files into their folder; return the digests of files that have disappeared meanwhile."""
        jobs = []
        for name, (digest, executable) in rows.items():
            path = os.path.normpath(os.path.join(folder, name))
            if not path.startswith(folder + os.sep):
                raise ValueError("a file outside of its folder: %r" % name)
            jobs.append((digest, path, 0o700 if executable else 0o600))
        for parent in sorted({os.path.dirname(path) for _, path, _ in jobs}):
            _make_folder(parent)
        missing = []
        for digest, path, mode in jobs:
            try:
                _copy(os.path.join(store, digest), path, mode)
            except FileNotFoundError:
                self._present.discard(digest)
                missing.append(digest)
        return missing

    def _append(self, request: Json, data: bytes) -> Tuple[Json, bytes]:
        """Append a part of a large file of :meth:`_stage`; the last part completes it."""
        blobs = self._store()
        path = os.path.join(blobs, ".part-" + _name(request["digest"]))
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if request["offset"] == 0 else 0)
        with os.fdopen(os.open(path, flags, 0o600), "r+b" if request["offset"] else "wb") as file:
            file.seek(request["offset"])
            file.write(data)
        if request["last"]:
            os.replace(path, os.path.join(blobs, _name(request["digest"])))
        return {}, b""

    def _wait(self, request: Json, data: bytes) -> Tuple[Json, bytes]:
        return {"changed": self._watch.wait(request["paths"], request["seconds"], request.get("key", ""))}, b""

    def _modules(self, request: Json, data: bytes) -> Tuple[Json, bytes]:
        """Which modules an interpreter of this machine does not have."""
        argv = [request["python"], "-c", _FIND] + list(request["names"])
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_MODULES_TIMEOUT_S)
        if done.returncode:
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise OSError(0, lines[-1] if lines else "exit code %d" % done.returncode)
        version, missing = json.loads(done.stdout.decode())
        return {"version": version, "missing": missing}, b""

    def _ping(self, request: Json, data: bytes) -> Tuple[Json, bytes]:
        return {}, b""


def _make_folder(path: str) -> None:
    """Make a folder and its parents, for this user alone; `os.makedirs` leaves the parents readable."""
    if not os.path.isdir(path):
        _make_folder(os.path.dirname(path))
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:  # made by another thread
            pass


def _name(digest: Any) -> str:
    if not isinstance(digest, str) or not digest.isalnum():
        raise ValueError("not a digest: %r" % (digest,))
    return digest


def _copy(source: str, path: str, mode: int) -> None:
    """Copy a file: not a link, so that a job that changes its code does not change that of later runs."""
    come = os.open(source, os.O_RDONLY)
    try:
        go = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        try:
            while True:
                part = os.read(come, 1 << 20)
                if part:
                    os.write(go, part)
                if len(part) < 1 << 20:
                    break
        finally:
            os.close(go)
    finally:
        os.close(come)


def _write(path: str, data: bytes) -> None:
    part = "%s.%d.part" % (path, threading.get_ident())
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    os.replace(part, path)


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
    "modules": Server._modules,
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
