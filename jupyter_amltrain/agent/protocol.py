"""File names, states, limits and clocks shared by the agent and its readers, and file helpers."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import threading
import time
from typing import Any, Dict, Iterator, Mapping, Optional

#: Environment variable with the name of a file whose number of seconds is added to :func:`wall`; for tests.
TEST_CLOCK = "AMLTRAIN_TEST_CLOCK"


def wall() -> float:
    """Return Unix seconds. May jump when the system clock is set."""
    path = os.environ.get(TEST_CLOCK)
    if not path:
        return time.time()
    try:
        with open(path) as file:
            return time.time() + float(file.read() or 0)
    except (OSError, ValueError):
        return time.time()


def mono() -> float:
    """Return monotonic seconds; the same clock for all processes of the machine until it reboots."""
    return time.monotonic()


#: Schema version of every file in a run folder and in the queue.
SCHEMA = 1

#: Version of the protocol between client and dispatcher.
PROTOCOL = 8

JOB, STATE, CANCEL, SOURCE = "job.json", "state.json", "cancel", "source"

LOG, AGENT_LOG = "log/rank-0.txt", "log/agent.txt"
#: Log of each process of a run of several.
LOG_OF_RANK = "log/rank-%d.txt"

#: Whole output of the build of a run's environment.
ENVIRONMENT_LOG = "log/environment.txt"

METRICS = "metrics/rank-0.jsonl"

#: Files of one machine of a run, by its number.
TELEMETRY, SUMMARY, GPU_USAGE = "telemetry/node-%d.jsonl", "telemetry/summary-%d.json", "telemetry/truth-%d.json"

OUTPUTS, ARTIFACTS = "outputs", "artifacts"
#: Folders of a run that its copy of the code has as ``./outputs`` and ``./logs``, as at a service; and their links.
LOGS = "logs"
KEPT_LINKS = {OUTPUTS: "../" + OUTPUTS, LOGS: "../" + LOGS}

#: Folder of a run that all its attempts share, and the variable with its path.
CHECKPOINTS, CHECKPOINTS_VARIABLE = "checkpoints", "AML_CHECKPOINT_DIR"
#: File in there by which somebody asks for a checkpoint; the script removes it when it has saved one.
SAVE_REQUEST = "save-now"

#: Variable of a job in which MLflow logs for the libraries that it knows, without a call in the script.
AUTOLOG = "AMLTRAIN_AUTOLOG"

#: Variable with the seconds that a Python waits for the next run, with the packages of the last one; 0: none does.
WARM = "AMLTRAIN_WARM"

#: Reason of an attempt that was stopped because its machine is needed or goes away.
PREEMPTED = "preempted"
#: Most restarts of a run, and the prefix of the line between two attempts in a log.
MAX_RESTARTS, RESTART_PREFIX = 100, "[restart] "

#: Interpreter, packages and machine of a run; uncommitted changes of the submitter's git repository.
PROVENANCE, GIT_DIFF = "provenance.json", "git.diff"

#: List of the files that a job has left in its working folder, and the link to that folder.
LEFT, LEFT_LINK = "left.json", "work"

#: Figures that the script has shown; created by the first one.
PICTURES = "pictures"

#: Values that the script has displayed, with their rich forms; created by the first one.
DISPLAYS = "displays"

#: Variables of the lines at which the script failed, by process.
FAILURE, FAILURE_OF_RANK = "failure", "failure/rank-%d.json"

#: How long each line of the script took, by process; created by the first one that runs lines of the user's.
LINES = "lines"

#: Questions that the processes of a run answer, and the statements that were run in there, one JSON object a line.
ASKS, POKES = "asks", "pokes.jsonl"

#: Stack of the process of a run that hangs.
STACK = "ranks/0.stack"

#: Files that the script has opened for TensorBoard and other trackers.
TRACKER_NOTES = "metrics/trackers.txt"

RUNS, STAGING, MONITORS = "runs", "staging", "monitors"

#: Folders of a run into which its processes write.
RUN_FOLDERS = ("log", "metrics", "telemetry", OUTPUTS, ARTIFACTS)

QUEUED, PREPARING, RUNNING, FINALIZING = "queued", "preparing", "running", "finalizing"

COMPLETED, FAILED, CANCELED, LOST = "completed", "failed", "canceled", "lost"

TERMINAL = frozenset({COMPLETED, FAILED, CANCELED, LOST})

#: The environment variable that marks every process of a run: ``<run>:<nonce>``.
MARK = "AMLTRAIN_RUN"

#: Seconds from SIGTERM to SIGKILL unless the job sets them.
DEFAULT_GRACE = 10.0

#: Seconds after which the GPUs of a run may be reported as unused, unless the job sets them.
DEFAULT_GPU_GRACE = 60.0

#: Actions for a job that does not use its GPUs (empty: warn), and forms of its ``CUDA_VISIBLE_DEVICES`` (empty: UUIDs).
REQUIRE_GPU, GPU_IDS = ("", "stop", "warn"), ("", "uuid", "index")

#: Longer files are rejected: a job can write anything into its folder.
MAX_JSON_BYTES = 64 << 20

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")


class AgentError(Exception):
    """An error that the caller can fix; sent over the wire as ``{"type", "message"}``.

    Parameters
    ----------
    kind
        Class name of ``jupyter_amltrain.errors``, or ``RunExists``.
    message
        What failed, why, and what to do: one or two sentences.
    code
        Identifier for programs.
    """

    def __init__(self, kind: str, message: str, code: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.code = code

    def to_reply(self) -> Dict[str, Any]:
        """Return the error as a reply of the protocol."""
        code = {"code": self.code} if self.code else {}
        return {"error": {"type": self.kind, "message": self.message, **code}}


def valid_run_id(run: object) -> bool:
    """Whether `run` is a valid run id, and so a valid folder name."""
    return isinstance(run, str) and _RUN_ID.match(run) is not None


def run_folder(home: str, run: str) -> str:
    """Return the folder of a run; raise UnknownRun for an invalid run id."""
    if not valid_run_id(run):
        raise AgentError("UnknownRun", "%r is not a run id. List the runs with: %%aml_runs" % (run,))
    return os.path.join(home, RUNS, run)


def write_json(path: str, value: Mapping[str, Any], durable: bool = False) -> None:
    """Replace `path` (0600) by `value` atomically: a reader sees the old or the new file.

    Parameters
    ----------
    durable
        Wait for the disk. Only for facts that cannot be determined again after a power failure.
    """
    _write(path, _encoded(value), durable)


def write_text(path: str, text: str) -> None:
    """Replace `path` (0600) by `text`, as :func:`write_json` does."""
    _write(path, text.encode("utf-8", "replace"))


def _write(path: str, data: bytes, durable: bool = False) -> None:
    temporary = "%s.%d.%x.tmp" % (path, os.getpid(), threading.get_ident())
    # A link or a FIFO that a job may have created there is not followed.
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
    """Open a regular file for reading and return its descriptor.

    A job can replace any file of its run by a FIFO, and opening a FIFO blocks forever.

    Raises
    ------
    FileNotFoundError
        There is no file, or it is not a regular file: a FIFO, a socket, a device, a folder.
    OSError
        It cannot be opened.
    """
    try:
        handle = _open_nonblocking(path)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise FileNotFoundError(errno.ENOENT, "not a regular file", path) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FileNotFoundError(errno.ENOENT, "not a regular file", path)
    return handle


def _open_nonblocking(path: str) -> int:
    """Open for reading without blocking on a FIFO or a terminal; return the descriptor."""
    flags = os.O_RDONLY
    for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"):
        flags |= getattr(os, name, 0)
    return os.open(path, flags)


def read_up_to(handle: int, limit: int) -> bytes:
    """Return up to `limit` bytes of a descriptor from its position; fewer only at the end."""
    parts = []
    while limit > 0:
        part = os.read(handle, min(limit, 1 << 20))
        if not part:
            break
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)


def read_regular(path: str, limit: int = MAX_JSON_BYTES) -> bytes:
    """Read a whole file that another process may have replaced.

    Raises
    ------
    OSError
        It cannot be read, it is not a regular file (a FIFO or a device would block), or it
        is longer than `limit` bytes.
    """
    handle = _open_nonblocking(path)
    try:
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", path)
        if status.st_size > limit:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        return read_up_to(handle, limit + 1)[:limit]
    finally:
        os.close(handle)


def read_json(path: str, what: str = "Run folder") -> Optional[Dict[str, Any]]:
    """Return the JSON object in `path`; ``None`` when the file is absent or not valid JSON.

    Raises
    ------
    AgentError
        ``StateError`` when a newer version has written the file.
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
    """Return ``state.json`` of a run folder, or ``None``."""
    return read_json(os.path.join(folder, STATE))


def whole_lines(data: bytes) -> Iterator[bytes]:
    """Return the complete lines of `data`, without an incomplete last line."""
    end = data.rfind(b"\n") + 1
    return iter(data[:end].splitlines())


def cut_torn_tail(path: str) -> bytes:
    """Truncate `path` after its last newline and return its last complete line (``b""`` if there is none)."""
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return b""
    try:
        size = os.fstat(handle).st_size
        tail, at = b"", size
        # Two newlines enclose the last line; lines are short, so one step usually suffices.
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
    """Create `path` (0700) with its parents.

    Raises
    ------
    AgentError
        ``StateError`` when the folder cannot be created.
    """
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
    except OSError as error:
        raise not_writable(path, error) from error


def not_writable(path: str, error: OSError) -> AgentError:
    """Return the error for a state root that cannot be written."""
    return AgentError(
        "StateError",
        "Cannot write %s: %s. Free some space, or set AMLTRAIN_HOME to a writable folder."
        % (path, error.strerror or error),
    )


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:  # removed already
        pass
