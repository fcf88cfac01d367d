"""MLflow's own server on the store of a run's project, for what the sink does not hold.

It starts when a job first asks for another run, a registered model or a search, answers by MLflow's own code, and
ends with the sink: its standard input closes.
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
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from .validation import Body, Refusal

#: Seconds until the server must answer; importing MLflow takes most of them.
START_TIMEOUT_S = 60.0

#: Seconds without a byte of a response.
RESPONSE_TIMEOUT_S = 120.0

#: Seconds after a failed start until the next one.
RETRY_S = 30.0

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
    """A response to pass on."""

    status: int
    content_type: str
    data: bytes


class ProjectServer:
    """Starts the server, and passes calls on to it; thread-safe.

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

    def ask(self, request: MlflowCall) -> MlflowResponse:
        """Pass a call on.

        Raises
        ------
        Refusal
            The server does not start or does not answer.
        """
        record = self._started()
        connection = http.client.HTTPConnection("localhost", timeout=RESPONSE_TIMEOUT_S)
        try:
            connection.sock = _connected(record["address"])
            headers = {SECRET_HEADER: str(record["secret"]), "Content-Type": request.content_type or "application/json"}
            connection.request(request.method, request.target, request.data or None, headers)
            response = connection.getresponse()
            # A client repeats a call for minutes after 429 and 5xx.
            status = 400 if response.status >= 500 or response.status == 429 else response.status
            return MlflowResponse(status, response.getheader("Content-Type") or "application/json", response.read())
        except (OSError, http.client.HTTPException) as error:
            raise _refusal("does not answer: %s" % (error or type(error).__name__)) from error
        finally:
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
            raise _refusal("gave no JSON to %s" % op) from error
        if response.status != 200:
            raise Refusal(str(answer.get("error_code")), str(answer.get("message")), response.status)
        return answer

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

    def _started(self) -> Dict[str, Any]:
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return self._record
            if self._failed_at is not None and time.monotonic() - self._failed_at < RETRY_S:
                raise _refusal(self._reason)
            self.close()
            try:
                self._record = self._start()
            except (OSError, ValueError, KeyError) as error:
                self._failed_at, self._reason = time.monotonic(), "does not start: %s" % error
                self._note("MLflow's server of the project %s" % self._reason)
                self.close()
                raise _refusal(self._reason) from error
            return self._record

    def _start(self) -> Dict[str, Any]:
        """Start the process and return its address."""
        env = {name: text for name, text in os.environ.items() if not name.startswith("MLFLOW_")}
        self._process = process = subprocess.Popen(
            self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd="/"
        )
        errors: List[bytes] = []
        threading.Thread(target=_drain, args=(process.stderr, errors), daemon=True).start()
        line = _line(process.stdout, time.monotonic() + START_TIMEOUT_S)
        if not line:
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


def _refusal(reason: str) -> Refusal:
    return Refusal(UNAVAILABLE, "MLflow's server of the project %s. The run's own record continues." % reason)
