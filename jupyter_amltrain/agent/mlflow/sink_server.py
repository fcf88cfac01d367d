"""MLflow tracking server on the loopback interface for one job, with the standard library only."""

import errno
import hmac
import http.client
import itertools
import json
import os
import signal
import socket
import struct
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Dict, Iterator, Mapping, Optional
from urllib.parse import parse_qs, unquote, urlsplit

from .. import testing
from ..tcp_owner import OwnerLookup, rank_of
from .journal import clean, has_escapes
from .project_search import ProjectSearch
from .project_server import (
    RESPONSE_TIMEOUT_S,
    START_TIMEOUT_S,
    MlflowCall,
    MlflowResponse,
    ProjectServer,
    ServerPlace,
)
from .routes import Sink
from .sink_state import Recorder
from .validation import Refusal

#: Connections that the kernel accepts while the sink is busy or restarts; ``net.core.somaxconn``
#: may lower the number.
BACKLOG = 4096

#: Open connections, each with a thread. A job has one or a few for each of its processes.
MAX_CONNECTIONS = 512

#: Of these, maximum number of connections that have not sent the token.
MAX_UNTRUSTED = 64

#: Seconds until a connection must have sent a request with the token, and between two parts of a request.
REQUEST_TIMEOUT_S = 10.0

#: Seconds after which an unused connection is closed; the client opens another when it needs one.
IDLE_TIMEOUT_S = 600.0


class _Connection:
    def __init__(self, now: float) -> None:
        self.trusted = False
        self.busy = True
        self.since = now


class Connections:
    """Limits the sink's connections, and refuses those of other users.

    Parameters
    ----------
    on_note
        Called with one sentence when a connection was refused or closed.
    """

    def __init__(self, on_note: Callable[[str], None]) -> None:
        self._note = on_note
        self._lookup = OwnerLookup()
        self._uid = os.geteuid() if hasattr(os, "geteuid") else -1
        self._lock = threading.Lock()
        self._open: Dict[socket.socket, _Connection] = {}
        self._limit = min(MAX_CONNECTIONS, _descriptors() // 2)

    def admit(self, connection: socket.socket) -> bool:
        """Return whether an accepted connection may stay; otherwise it is reset.

        On Linux the owner of a connection is known. On other systems, and for other
        programs of the same user, the token and the limits protect the sink.
        """
        owner = self._lookup.owner(connection)
        # root may do anything anyway, and jobs use sudo
        if owner is not None and (owner.uid not in (self._uid, 0) or not owner.inode):
            if owner.inode:
                self._note("connections of Unix user %d were refused" % owner.uid)
            try:  # no TIME_WAIT entry for each of them
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            except OSError:  # its client has closed it
                pass
            return False
        with self._lock:
            self._open[connection] = _Connection(time.monotonic())
            untrusted = [key for key, value in self._open.items() if not value.trusted]
            if len(untrusted) > MAX_UNTRUSTED:
                self._close(untrusted[0])
            elif len(self._open) > self._limit:
                self._close(self._least_used(connection))
        return True

    def make_room(self) -> None:
        """Close the least used connection; the process has no descriptor left."""
        with self._lock:
            if self._open:
                self._close(self._least_used(None))

    def _least_used(self, new: Optional[socket.socket]) -> socket.socket:
        """Return an old connection without the token, else the one that has been idle longest, else the oldest."""

        def order(item: socket.socket) -> object:
            state = self._open[item]
            return item is new, state.trusted, state.busy, state.since

        return min(self._open, key=order)  # type: ignore[arg-type]

    def _close(self, connection: socket.socket) -> None:
        """Wake the thread of a connection, which then closes it."""
        del self._open[connection]
        self._note("there were too many connections; the least used ones were closed")
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # its client has closed it
            pass

    def trust(self, connection: socket.socket) -> None:
        """Mark a connection as authenticated and busy."""
        with self._lock:
            state = self._open.get(connection)
            if state is not None:
                state.trusted = state.busy = True

    def rest(self, connection: socket.socket) -> None:
        """Mark a connection as idle."""
        with self._lock:
            state = self._open.get(connection)
            if state is not None:
                state.busy, state.since = False, time.monotonic()

    def remove(self, connection: socket.socket) -> None:
        """Remove a closed connection."""
        with self._lock:
            self._open.pop(connection, None)


def _descriptors() -> int:
    """Return the maximum number of open files of this process."""
    try:
        import resource

        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except (ImportError, OSError, ValueError):
        return 256


#: Response to ``GET /version``. Below 3.4 a client keeps a trace's spans in an artifact
#: instead of sending them as OpenTelemetry protobuf.
VERSION = "3.3.0"

#: Largest request, bytes; MLflow itself allows 1 MB for a batch.
MAX_BODY = 64 << 20

#: Largest body of a request without the token, and largest head of any request, bytes.
MAX_UNTRUSTED_BODY = MAX_HEAD = 64 << 10

#: Paths that need no token.
_OPEN_PATHS = ("/health", "/version")

#: Settings of the submitter's shell that would direct the client to another server.
CLEARED = (
    "MLFLOW_RUN_ID",  # every process would use it once, and the sink has no run of another store
    "MLFLOW_EXPERIMENT_ID",
    "MLFLOW_EXPERIMENT_NAME",
    "MLFLOW_TRACKING_USERNAME",  # takes precedence over the token
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_AUTH",
)


def client_env(port: int, token: str, base: Optional[Mapping[str, str]] = None) -> Dict[str, str]:
    """Return the environment that makes MLflow in a job log to the sink.

    Retries are few and short: by default one lost ``log_metric`` blocks a job for four
    minutes. Three retries (1 + 2 + 4 s) are enough for a restart of the sink.

    Parameters
    ----------
    port
        Port of the sink on 127.0.0.1.
    token
        The sink's secret.
    base
        The rest of the job's environment, to extend its ``no_proxy``.

    Returns
    -------
    dict
        Variables to set; those in :data:`CLEARED` are to be removed.
    """
    env = {
        "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}",
        "MLFLOW_TRACKING_TOKEN": token,
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
        "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
        "MLFLOW_HTTP_REQUEST_BACKOFF_JITTER": "0",
        # the project's server may have to start, and answers slowly on a busy machine
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "%d" % (START_TIMEOUT_S + RESPONSE_TIMEOUT_S),
        # its links to a run would point at the sink, which has no pages
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    }
    for name in ("no_proxy", "NO_PROXY"):
        hosts = (base or {}).get(name, "")
        env[name] = hosts + ",127.0.0.1" if hosts else "127.0.0.1"
    return env


def serve(
    listening_socket: socket.socket,
    recorder: Recorder,
    token: str,
    project_place: Optional[ServerPlace] = None,
    on_end: Callable[[], None] = lambda: None,
) -> int:
    """Serve until SIGTERM; the body of a forked process. Returns 0, for ``os._exit``.

    The parent opens the socket and keeps it open, so that requests wait in its backlog
    while a killed sink is restarted; the new process reads the journal and continues it.

    Parameters
    ----------
    listening_socket
        Bound to 127.0.0.1 and listening.
    token
        Bearer token that every request must carry.
    project_place
        Where MLflow's own server of the project is; ``None`` where its store cannot be reached.
    on_end
        Called when the job has ended, before the journal is closed.
    """
    project = None if project_place is None else ProjectServer(project_place)
    server = _Server(listening_socket, recorder, token, project)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is meant for the job
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))  # which has waited for the handler
        # wakes once a second to write lines that a full disk has held back
        server.serve_forever(poll_interval=1.0)
    except _Stop:  # SIGTERM: the end of the job
        pass
    if project is not None:
        project.close()
    on_end()
    recorder.close()
    return 0


class _Disconnected(Exception):
    """The client closed the connection in the middle of a request."""


class _Stop(BaseException):
    """SIGTERM arrived."""


def _stop(number: int, frame: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Stop


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(
        self, listening: socket.socket, recorder: Recorder, token: str, project: Optional[ProjectServer] = None
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        # A new object on the same descriptor: the parent's object is not changed.
        self.socket = socket.socket(fileno=os.dup(listening.fileno()))
        self.socket.settimeout(None)
        self.socket.listen(BACKLOG)
        self.server_address = self.socket.getsockname()
        self.recorder = recorder
        experiments = recorder.state.experiments
        self.sink = Sink(recorder, None if project is None else ProjectSearch(project, experiments))
        self.authorization = ("Bearer " + token).encode()
        self.connections = Connections(recorder.note_once)

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # retried immediately: the connection stays in the backlog
                self.connections.make_room()
                time.sleep(0.01)
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return self.connections.admit(request)

    def shutdown_request(self, request: Any) -> None:
        self.connections.remove(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        self.recorder.flush()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""


class _BoundedHead:
    """The incoming stream of a connection; limits the head of a request to :data:`MAX_HEAD` bytes."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.left = MAX_HEAD
        self.read = file.read
        self.close = file.close

    def readline(self, limit: int = -1) -> bytes:
        line: bytes = self._file.readline(limit)
        self.left -= len(line)
        if self.left < 0:
            raise ConnectionAbortedError("the head of a request is too long")
        return line


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = REQUEST_TIMEOUT_S
    wbufsize = -1  # one send per response; sending header and body separately costs a delayed ACK
    server: _Server

    def setup(self) -> None:
        super().setup()
        self._head = _BoundedHead(self.rfile)
        self.rfile: Any = self._head

    def handle_one_request(self) -> None:
        self._head.left = MAX_HEAD
        super().handle_one_request()

    def log_message(self, format: str, *args: Any) -> None:
        """Write no access log: on a loopback server it is noise."""

    def _serve(self) -> None:
        response: Any
        try:
            trusted = self._authenticate()
            raw = self._body(MAX_BODY if trusted else MAX_UNTRUSTED_BODY)
            code, response = 200, self._answer(raw)
        except _Disconnected:
            self.close_connection = True
            return
        except Refusal as refusal:
            code, response = refusal.http, {"error_code": refusal.code, "message": refusal.message}
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            message = f"amltrain's sink cannot read this request: {type(error).__name__}: {error}"
            code, response = 400, {"error_code": "INVALID_PARAMETER_VALUE", "message": message}
        except Exception as error:  # an internal error: the job must neither wait nor die of a retry
            message = f"amltrain's sink failed: {type(error).__name__}: {error}"
            self.server.recorder.note_once(message)
            code, response = 400, {"error_code": "INTERNAL_ERROR", "message": message}
        rest: Optional[Iterator[bytes]] = None
        if isinstance(response, MlflowResponse):  # of MLflow's own server
            code, kind, data, rest = response
        elif isinstance(response, str):
            kind, data = "text/plain", response.encode()
        else:
            kind, data = "application/json", json.dumps(response).encode()
        testing.hit("sink_before_answer")
        self.send_response(code)
        self.send_header("Content-Type", kind)
        if rest is not None:
            self._send_parts(data, rest)
        else:
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            self.wfile.flush()
        self.server.connections.rest(self.connection)

    def _send_parts(self, first: bytes, rest: Iterator[bytes]) -> None:
        """Send a long body as it comes, in the chunks of HTTP/1.1: one that breaks off has no end for its client."""
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for part in itertools.chain([first], rest):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")
            self.wfile.flush()
        except (OSError, http.client.HTTPException):
            self.close_connection = True

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _serve

    def _authenticate(self) -> bool:
        """Check the request's head before its body is read; return whether it carries the token.

        Raises
        ------
        Refusal
            The request is refused.
        """
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        if host not in ("127.0.0.1", "localhost"):  # a web page that names this port
            self._refuse("wrong Host header")
        header = (self.headers.get("Authorization") or "").encode("latin-1", "replace")
        if not hmac.compare_digest(header, self.server.authorization):
            if urlsplit(self.path).path in _OPEN_PATHS:
                return False
            self._refuse("wrong token in MLFLOW_TRACKING_TOKEN")
        self.server.connections.trust(self.connection)
        self.connection.settimeout(IDLE_TIMEOUT_S)
        return True

    def _refuse(self, reason: str) -> None:
        # Read a small body, otherwise its sender would see a reset instead of the response.
        self._body(MAX_UNTRUSTED_BODY)
        self.close_connection = True
        raise Refusal("PERMISSION_DENIED", "amltrain's sink: " + reason, 403)

    def _body(self, limit: int) -> bytes:
        """Return the body of the request.

        Raises
        ------
        Refusal
            The body is longer than `limit` bytes.
        _Disconnected
            The client disconnected or stopped within the body.
        """
        length = max(int(self.headers.get("Content-Length") or 0), 0)
        if length > limit:
            self.close_connection = True  # the body stays unread
            raise Refusal("INVALID_PARAMETER_VALUE", f"a request of {length} bytes; at most {limit}", 413)
        if not length:
            return b""
        try:
            raw: bytes = self.rfile.read(length)
        except OSError as error:
            raise _Disconnected from error
        if len(raw) < length:
            raise _Disconnected
        return raw

    def _answer(self, raw: bytes) -> Any:
        url = urlsplit(self.path)
        if url.path == "/health":
            return "OK"
        if url.path == "/version":
            return VERSION
        body: Dict[str, Any] = {}
        if raw and "json" in (self.headers.get("Content-Type") or "json"):
            # "NaN" stays text, as in MLflow's own JSON: not every reader accepts a bare NaN
            body = json.loads(raw, parse_constant=str)
            if has_escapes(raw):
                body = clean(body)
        for name, values in parse_qs(url.query).items():
            body.setdefault(name, values[0] if len(values) == 1 else values)
        request = MlflowCall(self.command, self.path, self.headers.get("Content-Type") or "", raw)
        return self.server.sink.handle(self.command, unquote(url.path), body, self._rank, request)

    def _rank(self) -> str:
        return rank_of(OwnerLookup().owner(self.connection))


def new_run_id() -> str:
    """Return a new MLflow run id: 32 hex digits."""
    return uuid.uuid4().hex
