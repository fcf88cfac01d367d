"""MLflow's own server on the store of a run's project, for what the sink does not hold.

It starts when a job first asks for another run, a registered model or a search, and answers by MLflow's own code. On
the machine of the notebook it is a process of the sink (:class:`ServerProcess`), elsewhere one of the notebook's kernel
(:class:`~.project_sockets.ProjectSockets`).
"""

import contextlib
import http.client
import json
import os
import select
import shutil
import socket
import subprocess
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Protocol, Sequence, Tuple

from .validation import Body, Refusal

#: Seconds until the server must answer; importing MLflow takes most of them.
START_TIMEOUT_S = 60.0

#: Seconds without a byte of a response.
RESPONSE_TIMEOUT_S = 120.0

#: Seconds after a failed start until the next one.
RETRY_S = 30.0

#: Bytes of a body that are in memory at once.
PART_BYTES = 1 << 20

#: Header of the secret of MLflow's process.
SECRET_HEADER = "X-Amltrain-Secret"

#: MLflow's code of a refusal because the server does not start or does not answer.
UNAVAILABLE = "TEMPORARILY_UNAVAILABLE"


class MlflowCall(NamedTuple):
    """A call of the job, as it came."""

    method: str
    target: str
    content_type: str
    data: bytes


class MlflowResponse(NamedTuple):
    """A response to pass on.

    Attributes
    ----------
    data
        Its body, or the beginning of it.
    rest
        Parts of the body after `data`, as those of a file that need not fit into memory; ``None`` for a whole body.
    """

    status: int
    content_type: str
    data: bytes
    rest: Optional[Iterator[bytes]] = None


class ServerPlace(Protocol):
    """Where the server of a project is."""

    def connect(self) -> Tuple[socket.socket, str]:
        """Return a new connection to it, and its secret; start it if need be.

        Raises
        ------
        OSError, Refusal
            It does not start, or cannot be reached.
        """

    def close(self) -> None:
        """End it, if it is a process of the sink."""


class ProjectServer:
    """Passes calls on to the server; thread-safe."""

    def __init__(self, place: ServerPlace) -> None:
        self._place = place

    def ask(self, request: MlflowCall) -> MlflowResponse:
        """Pass a call on.

        Raises
        ------
        Refusal
            The server does not start or does not answer.
        """
        connection = http.client.HTTPConnection("localhost", timeout=RESPONSE_TIMEOUT_S)
        is_whole = True
        try:
            connection.sock, secret = self._place.connect()
            headers = {SECRET_HEADER: secret, "Content-Type": request.content_type or "application/json"}
            connection.request(request.method, request.target, request.data or None, headers)
            response = connection.getresponse()
            # A client repeats a call for minutes after 429 and 5xx.
            status = 400 if response.status >= 500 or response.status == 429 else response.status
            kind = response.getheader("Content-Type") or "application/json"
            data = response.read(PART_BYTES)
            is_whole = len(data) < PART_BYTES
            return MlflowResponse(status, kind, data, None if is_whole else _parts(connection, response))
        except (OSError, http.client.HTTPException) as error:
            raise unavailable("does not answer: %s" % (error or type(error).__name__)) from error
        finally:
            if is_whole:
                connection.close()

    def json(self, method: str, op: str, body: Body) -> Body:
        """Return the response to a call of MLflow's REST interface.

        Raises
        ------
        Refusal
            As MLflow refuses the call.
        """
        target = "/api/2.0/mlflow/" + op
        data = b"" if method == "GET" else json.dumps(body).encode()
        response = self.ask(MlflowCall(method, target, "application/json", data))
        try:
            answer: Body = json.loads(response.data)
        except ValueError as error:
            raise unavailable("gave no JSON to %s" % op) from error
        if response.status != 200:
            raise Refusal(str(answer.get("error_code")), str(answer.get("message")), response.status)
        return answer

    def close(self) -> None:
        """End the server, if it is a process of the sink."""
        self._place.close()


class ServerProcess:
    """The server as a child of this process, started when it is needed and again after its end; thread-safe.

    Parameters
    ----------
    argv
        Command of ``tracking/page_server.py``, which prints its address as a line of JSON when it is ready.
    on_note
        Called with one sentence when the server does not start.
    """

    def __init__(self, argv: Sequence[str], on_note: Callable[[str], None]) -> None:
        self._argv, self._note = list(argv), on_note
        self._lock = threading.Lock()
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._record: Dict[str, Any] = {}
        self._failed_at: Optional[float] = None
        self._reason = ""

    def close(self) -> None:
        """End the server."""
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        try:
            process.wait(2.0)
        except subprocess.TimeoutExpired:
            process.kill()
        folder = os.path.dirname(str(self._record.get("address", {}).get("unix") or ""))
        if os.path.basename(folder).startswith("amltrain-mlflow-"):  # it was killed with the run
            shutil.rmtree(folder, ignore_errors=True)

    def connect(self) -> Tuple[socket.socket, str]:
        """See :meth:`ServerPlace.connect`."""
        record = self.record()
        return _connected(record["address"]), str(record["secret"])

    def record(self) -> Dict[str, Any]:
        """Return its ``address`` (``{"unix": path}`` or ``{"port": number}``) and ``secret``, started if need be.

        Raises
        ------
        Refusal
            It does not start.
        """
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return self._record
            if self._failed_at is not None and time.monotonic() - self._failed_at < RETRY_S:
                raise unavailable(self._reason)
            self.close()
            try:
                self._record = self._start()
            except (OSError, ValueError, KeyError) as error:
                self._failed_at, self._reason = time.monotonic(), "does not start: %s" % error
                self._note("MLflow's server of the project %s" % self._reason)
                self.close()
                raise unavailable(self._reason) from error
            return self._record

    def _start(self) -> Dict[str, Any]:
        """Start the process and return its address."""
        env = {name: text for name, text in os.environ.items() if not name.startswith("MLFLOW_")}
        self._process = process = subprocess.Popen(
            self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd="/"
        )
        errors: List[bytes] = []
        reader = threading.Thread(target=_drain, args=(process.stderr, errors), daemon=True)
        reader.start()
        line = _line(process.stdout, time.monotonic() + START_TIMEOUT_S)
        if not line:
            reader.join(2.0)  # the output of a process that ended is over before its error is read
            text = b"".join(errors).decode("utf-8", "replace").strip().splitlines()
            raise ValueError(text[-1] if text else "no answer within %g s" % START_TIMEOUT_S)
        record: Dict[str, Any] = json.loads(line)
        record["address"], record["secret"]  # KeyError if one is missing
        return record


def _connected(address: Body) -> socket.socket:
    if "unix" in address:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(RESPONSE_TIMEOUT_S)
        connection.connect(address["unix"])
        return connection
    return socket.create_connection(("127.0.0.1", int(address["port"])), RESPONSE_TIMEOUT_S)


def _line(stream: Any, until: float) -> bytes:
    """Return the first line that begins an object; other output of the process is skipped."""
    data = b""
    while time.monotonic() < until:
        if not select.select([stream], [], [], 0.2)[0]:
            continue
        part = os.read(stream.fileno(), 65536)
        if not part:
            return b""
        data += part
        for line in data.split(b"\n")[:-1]:
            if line.startswith(b'{"'):
                return line
    return b""


def _drain(stream: Any, errors: List[bytes]) -> None:
    """Read what the process writes, and keep the newest."""
    with contextlib.suppress(OSError, ValueError):
        for line in stream:
            errors.append(line)
            del errors[:-20]


def _parts(connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield the rest of a body, then close its connection."""
    with contextlib.closing(connection):
        while part := response.read(PART_BYTES):
            yield part


def unavailable(reason: str) -> Refusal:
    """Return the refusal of a call that needs the server."""
    return Refusal(UNAVAILABLE, "MLflow's server of the project %s. The run's own record continues." % reason)
