"""Files, states, numbers and clocks that the agent and its readers share."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import threading
import time
from typing import Any, Dict, Iterator, Mapping, Optional

#: Name of a file with seconds to add to :func:`wall`; for the clock-jump test.
TEST_CLOCK = "AMLTRAIN_TEST_CLOCK"


def wall() -> float:
    """Unix seconds. May jump when somebody sets the clock."""
    path = os.environ.get(TEST_CLOCK)
    if not path:
        return time.time()
    try:
        with open(path) as file:
            return time.time() + float(file.read() or 0)
    except (OSError, ValueError):
        return time.time()


def mono() -> float:
    """Seconds since some moment of this boot, one clock for all processes of the machine."""
    return time.monotonic()


#: Of every file in a run folder and in the queue.
SCHEMA = 1

#: Of the conversation with the dispatcher.
PROTOCOL = 4

JOB, STATE, CANCEL, SOURCE = "job.json", "state.json", "cancel", "source"

LOG, AGENT_LOG = "log/rank-0.txt", "log/agent.txt"

METRICS = "metrics/rank-0.jsonl"

#: Of one machine of a run, by its number.
TELEMETRY, SUMMARY, TRUTH = "telemetry/node-%d.jsonl", "telemetry/summary-%d.json", "telemetry/truth-%d.json"

OUTPUTS, ARTIFACTS = "outputs", "artifacts"

RUNS, STAGING, MONITORS = "runs", "staging", "monitors"

#: Folders of a run that its processes write into.
RUN_FOLDERS = ("log", "metrics", "telemetry", OUTPUTS, ARTIFACTS)

QUEUED, RUNNING, FINALIZING = "queued", "running", "finalizing"

COMPLETED, FAILED, CANCELED, LOST = "completed", "failed", "canceled", "lost"

TERMINAL = frozenset({COMPLETED, FAILED, CANCELED, LOST})

#: The environment variable that marks every process of a run: ``<run>:<nonce>``.
MARK = "AMLTRAIN_RUN"

#: Seconds from SIGTERM to SIGKILL where a job does not say.
DEFAULT_GRACE = 10.0

#: Seconds of a run's life after which its GPUs may be called unused, where a job does not say.
DEFAULT_GPU_GRACE = 60.0

#: A longer file is no file of ours; a job may write what it likes into its folder.
MAX_JSON_BYTES = 64 << 20

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")


class AgentError(Exception):
    """Something that the caller can cure; crosses the wire as ``{"type", "message"}``.

    Parameters
    ----------
    kind
        Class name of ``jupyter_amltrain.errors``, or ``RunExists``.
    message
        What, where and what next: one sentence or two.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message

    def answer(self) -> Dict[str, Any]:
        """The form on the wire."""
        return {"error": {"type": self.kind, "message": self.message}}


def valid_run_id(run: object) -> bool:
    """Whether `run` can be a run id, and so a folder's name."""
    return isinstance(run, str) and _RUN_ID.match(run) is not None


def run_folder(home: str, run: str) -> str:
    """Folder of a run; UnknownRun for what cannot be a run id."""
    if not valid_run_id(run):
        raise AgentError("UnknownRun", "%r is not a run id. List the runs with: %%aml_runs" % (run,))
    return os.path.join(home, RUNS, run)


def write_json(path: str, value: Mapping[str, Any], durable: bool = False) -> None:
    """Replace `path` (0600) by `value` at once: a reader sees the old or the new file.

    Parameters
    ----------
    durable
        Wait for the disk. Only for what nobody can tell again after a power cut.
    """
    data = _encoded(value)
    temporary = "%s.%d.%x.tmp" % (path, os.getpid(), threading.get_ident())
    # What a job may have put there, a link or a FIFO, is not followed.
    exclusive = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        handle = os.open(temporary, exclusive, 0o600)
    except FileExistsError:
        _remove(temporary)
        if os.path.lexists(temporary):
            temporary = "%s.%s.tmp" % (path, os.urandom(8).hex())
        handle = os.open(temporary, exclusive, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        if durable:
            os.fsync(handle)
    except OSError:
        os.close(handle)
        _remove(temporary)
        raise
    os.close(handle)
    os.replace(temporary, path)


def _encoded(value: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a path that is not UTF-8 has surrogates, which JSON keeps as escapes
        return json.dumps(value, separators=(",", ":")).encode()


def open_regular(path: str) -> int:
    """A descriptor of a regular file, for reading.

    A job can put a FIFO in the place of any file of its run, and who opens that waits for ever.

    Raises
    ------
    FileNotFoundError
        There is no file, or it is something else: a FIFO, a socket, a device, a folder.
    OSError
        It cannot be opened.
    """
    try:
        handle = _open_at_once(path)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise FileNotFoundError(errno.ENOENT, "not a regular file", path) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FileNotFoundError(errno.ENOENT, "not a regular file", path)
    return handle


def _open_at_once(path: str) -> int:
    """A descriptor for reading; a FIFO or a terminal is not waited for."""
    flags = os.O_RDONLY
    for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"):
        flags |= getattr(os, name, 0)
    return os.open(path, flags)


def read_regular(path: str, limit: int = MAX_JSON_BYTES) -> bytes:
    """Read a whole file that somebody else may have put there.

    Raises
    ------
    OSError
        It cannot be read, it is no regular file (a FIFO or a device would block), or it
        is longer than `limit` bytes.
    """
    handle = _open_at_once(path)
    try:
        found = os.fstat(handle)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", path)
        if found.st_size > limit:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        parts = []
        left = limit + 1
        while left > 0:
            part = os.read(handle, min(left, 1 << 20))
            if not part:
                break
            parts.append(part)
            left -= len(part)
    finally:
        os.close(handle)
    return b"".join(parts)[:limit]


def read_json(path: str, what: str = "Run folder") -> Optional[Dict[str, Any]]:
    """The JSON object in `path`; ``None`` when there is none (absent or not readable as JSON).

    Raises
    ------
    AgentError
        ``StateError`` when a newer version wrote it.
    OSError
        As `read_regular`.
    """
    try:
        value = json.loads(read_regular(path).decode("utf-8", "replace"))
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    schema = value.get("schema", 0)
    if isinstance(schema, (int, float)) and schema > SCHEMA:
        raise AgentError(
            "StateError",
            "%s %s was written by a newer jupyter_amltrain (schema %s, this one reads up to %d)."
            " Upgrade with: pip install -U jupyter-amltrain" % (what, os.path.dirname(path), schema, SCHEMA),
        )
    return value


def read_state(folder: str) -> Optional[Dict[str, Any]]:
    """``state.json`` of a run folder, or ``None``."""
    return read_json(os.path.join(folder, STATE))


def whole_lines(data: bytes) -> Iterator[bytes]:
    """The complete lines of `data`; a torn last one is left for the next reading."""
    end = data.rfind(b"\n") + 1
    return iter(data[:end].splitlines())


def cut_torn_tail(path: str) -> bytes:
    """Cut `path` behind its last newline and return its last whole line (``b""`` for none)."""
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return b""
    try:
        size = os.fstat(handle).st_size
        tail, at = b"", size
        # Two newlines enclose the last line; lines are short, so one step is the rule.
        while at > 0 and tail.count(b"\n") < 2:
            step = min(at, 4096)
            at -= step
            tail = os.pread(handle, step, at) + tail
        end = tail.rfind(b"\n") + 1
        if at + end < size:
            os.ftruncate(handle, at + end)
        return tail[:end].splitlines()[-1] if end else b""
    finally:
        os.close(handle)


def private_folder(path: str) -> None:
    """Make `path` (0700) with its parents.

    Raises
    ------
    AgentError
        ``StateError`` that says what to do where nothing can be written.
    """
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
    except OSError as error:
        raise not_writable(path, error) from error


def not_writable(path: str, error: OSError) -> AgentError:
    """The one sentence for a state root that cannot be written."""
    return AgentError(
        "StateError",
        "Cannot write %s: %s. Free some space or set AMLTRAIN_HOME to a folder that can be written."
        % (path, error.strerror or error),
    )


def not_readable(path: str, error: OSError) -> AgentError:
    """The one sentence for a file of a run that is there and cannot be read."""
    return AgentError(
        "StateError",
        "Cannot read %s: %s. Give it back to its owner, or remove the run's folder." % (path, error.strerror or error),
    )


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
