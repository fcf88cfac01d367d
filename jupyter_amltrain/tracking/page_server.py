"""The process that serves MLflow's own web application for one project's store, to this user only."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import os
import re
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from tornado import httpserver, iostream, netutil, web

from jupyter_amltrain.agent.mlflow.project_server import SECRET_HEADER
from jupyter_amltrain.agent.processes import is_alive
from jupyter_amltrain.agent.tcp_owner import is_other_user
from jupyter_amltrain.errors import StateError
from jupyter_amltrain.state_dir import write_json
from jupyter_amltrain.tracking import importer, mlflow_private, page_proxy
from jupyter_amltrain.tracking.mlflow_store import artifact_roots, database_uri
from jupyter_amltrain.tracking.remote_artifacts import RemoteArtifacts

Environ = dict[str, Any]


class Activity:
    """When the page was last used.

    Attributes
    ----------
    last
        Time of the last accepted request (``time.monotonic``).
    """

    def __init__(self) -> None:
        self.last = time.monotonic()
        self._running = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self._running += 1

    def __exit__(self, *what: object) -> None:
        with self._lock:
            self._running -= 1
        self.last = time.monotonic()

    def idle_s(self) -> float:
        """Return the seconds since the last request ended; 0 while one runs."""
        return 0.0 if self._running else time.monotonic() - self.last


class SecretCheck:
    """WSGI middleware that rejects requests without the secret, if there is one, before their body is read."""

    def __init__(self, app: Callable[..., Iterable[bytes]], secret: str, activity: Activity) -> None:
        self._app, self._secret, self._activity = app, secret.encode(), activity
        self._header = "HTTP_" + SECRET_HEADER.upper().replace("-", "_")

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        secret = str(environ.pop(self._header, "")).encode("latin-1", "replace")
        if not hmac.compare_digest(secret, self._secret):
            start_response("403 Forbidden", [("Content-Type", "text/plain"), ("Connection", "close")])
            return [b"Forbidden\n"]
        return self._answered(environ, start_response)

    def _answered(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        with self._activity:
            parts = self._app(environ, start_response)
            try:
                yield from parts
            finally:
                close = getattr(parts, "close", None)
                if close is not None:
                    close()


def serve(project: str, folder: Path, secret: str, activity: Activity, *, is_elsewhere: bool = False) -> dict[str, Any]:
    """Listen in a thread; return the address, ``{"unix": path}`` or ``{"port": number}``.

    Parameters
    ----------
    project
        Folder that owns ``.amltrain``.
    folder
        An empty private folder (0700) for the socket.
    secret
        Requests without the secret are rejected.
    activity
        Updated by every accepted request.
    is_elsewhere
        The callers are jobs on other machines, which have only the socket.

    Raises
    ------
    StateError
        They are elsewhere, and this system has no Unix sockets.
    """
    roots = artifact_roots(project)
    app: Callable[..., Iterable[bytes]] = mlflow_private.application(database_uri(project), roots, proxied=is_elsewhere)
    if is_elsewhere:
        app = RemoteArtifacts(app, roots[0])
    app = SecretCheck(app, secret, activity)
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Handler(WSGIRequestHandler):
        timeout = 120  # seconds for a request to arrive

        def log_request(self, *what: Any) -> None:
            """Write no access log."""

    path = folder / "mlflow.sock"
    unix = hasattr(socket, "AF_UNIX") and os.name == "posix"
    if is_elsewhere and not unix:
        raise StateError("Jobs on other machines reach MLflow's store only through a Unix socket.")
    host = f"unix://{path}" if unix else "127.0.0.1"
    server = make_server(host, 0, app, threaded=True, request_handler=Handler)
    if unix:
        os.chmod(path, 0o600)
    threading.Thread(target=server.serve_forever, name="mlflow", daemon=True).start()
    return {"unix": str(path)} if unix else {"port": server.port}


#: Seconds between checks whether the page is still in use.
CHECK_INTERVAL_S = 2.0

#: Seconds for which an address with a token is valid: a saved notebook contains it, so it must expire.
TOKEN_LIFETIME_S = 900

_MAX_FOLDER_BYTES = 60

_COOKIE = "amltrain-mlflow"

_LOOPBACK = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?", re.I)

#: Loads the address without its token. A redirect would not work: a browser that came from another site
#: (JupyterLab at ``localhost``) sends a strict cookie only with a request by a page of this site.
_SCRIPT = (
    "var u = new URL(location.href); u.searchParams.delete('token'); location.replace(u.pathname + u.search + u.hash);"
)

_SCRIPT_HASH = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()

_ENTER = f"<!doctype html><title>MLflow</title><script>{_SCRIPT}</script>"

_REFUSED = (
    "<!doctype html><title>MLflow</title><p>This page needs the token of its address."
    " Get the address again with <code>%aml_runs ui</code>, or <code>amltrain runs ui</code> in a terminal.</p>"
)


class TokenPageHandler(web.RequestHandler):
    """Serves requests with a valid token or cookie."""

    def initialize(self, record: dict[str, Any], cookie: str, cookie_path: str, any_host: bool) -> None:
        """Set the page's record, its cookie, and whether a hub in front has its own host names."""
        self._record, self._cookie = record, cookie
        self._cookie_path, self._any_host = cookie_path, any_host

    def set_default_headers(self) -> None:
        """Keep the page out of other sites' frames, and its address out of their logs."""
        self.set_header("Content-Security-Policy", "frame-ancestors 'self'")
        self.set_header("Referrer-Policy", "same-origin")
        self.set_header("X-Content-Type-Options", "nosniff")

    def prepare(self) -> None:
        """Refuse foreign hosts, foreign origins, and requests without the token."""
        if not self._any_host and not _LOOPBACK.fullmatch(self.request.host):
            raise web.HTTPError(403)
        if self.request.method not in ("GET", "HEAD") and not page_proxy.is_same_origin(self.request):
            raise web.HTTPError(403)
        token = dict(parse_qsl(self.request.query)).get("token", "")
        if self.request.method == "GET" and is_token(self._record, token):
            self._enter()
        elif not _equal(self.get_cookie(self._cookie_name()) or "", self._cookie):
            self.set_status(403)
            self.finish(_REFUSED)

    def _cookie_name(self) -> str:
        return f"{_COOKIE}-{self._record['port']}"  # cookies are shared by all ports of a host

    def _enter(self) -> None:
        secure = self.request.headers.get("X-Forwarded-Proto", "").lower() == "https"
        self.set_cookie(
            self._cookie_name(),
            self._cookie,
            path=self._cookie_path,
            httponly=True,
            samesite="Strict",
            secure=secure,
        )
        self.set_header("Content-Security-Policy", f"default-src 'none'; script-src 'sha256-{_SCRIPT_HASH}'")
        self.set_header("Cache-Control", "no-store")
        self.finish(_ENTER)

    async def get(self, path: str) -> None:
        """Serve a request of any method."""
        if self._finished:
            return
        await page_proxy.forward(self, self._record, path, f"/{self._record['key']}")

    head = post = put = patch = delete = get

    def write_error(self, status_code: int, **how: Any) -> None:
        """Send only the status code."""
        self.finish(f"{status_code}\n")


class LocalServer(httpserver.HTTPServer):
    """Closes connections of other users of this machine before reading from them."""

    def handle_stream(self, stream: iostream.IOStream, address: Any) -> None:
        """Accept or close a new connection."""
        if is_other_user(stream.socket):
            stream.close()
        else:
            super().handle_stream(stream, address)


def listen(record: dict[str, Any], hub_prefix: str) -> LocalServer:
    """Listen on a free loopback port, and store the port in `record`."""
    (sock,) = netutil.bind_sockets(0, "127.0.0.1")
    record["port"] = sock.getsockname()[1]
    path = f"{hub_prefix.rstrip('/')}/proxy/{record['port']}/" if hub_prefix else f"/{record['key']}/"
    cookie = secrets.token_urlsafe(32)
    settings = {"record": record, "cookie": cookie, "cookie_path": path, "any_host": bool(hub_prefix)}
    app = web.Application([(rf"/{record['key']}(/.*)", TokenPageHandler, settings)], log_function=lambda handler: None)
    server = LocalServer(app, idle_connection_timeout=60, body_timeout=60, max_body_size=32 << 20)
    server.add_sockets([sock])
    return server


def main(text: str) -> None:
    """Body of the process; `text` is JSON.

    ``project``, ``record`` (file to write when the page is ready; without it a line of standard output), ``start``
    (any text, repeated in the record), ``front`` (whether to listen with a token), ``hub`` (path prefix of a hub),
    ``idle`` (seconds), ``create`` (whether to create a missing store), ``elsewhere`` (whether its callers are jobs of
    other machines),
    ``session`` (identity of the process with which to end; without it the process ends with standard input).
    """
    args = json.loads(text)
    # 0700. The path of a Unix socket is limited to about 100 bytes; $TMPDIR may be longer.
    temporary = tempfile.gettempdir()
    base = "/tmp" if os.name == "posix" and len(os.fsencode(temporary)) > _MAX_FOLDER_BYTES else temporary
    folder = Path(tempfile.mkdtemp(prefix="amltrain-mlflow-", dir=base))
    path = Path(args["record"]) if "record" in args else None
    signal.signal(signal.SIGTERM, lambda *what: sys.exit(0))
    try:
        asyncio.run(_serve(args, folder, path))
    finally:
        with contextlib.suppress(OSError, ValueError):
            if path is not None and json.loads(path.read_text()).get("start") == args["start"]:
                path.unlink()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)  # threads may still serve requests


async def _serve(args: dict[str, Any], folder: Path, path: Path | None) -> None:
    orphaned = threading.Event()
    if "session" not in args:
        threading.Thread(target=_wait_for_end_of_input, args=(orphaned,), daemon=True).start()
    activity = Activity()
    elsewhere = bool(args.get("elsewhere"))
    secret = "" if elsewhere else secrets.token_urlsafe(32)
    if args.get("create"):
        await asyncio.to_thread(importer.create_store, args["project"])
    address = await asyncio.to_thread(serve, args["project"], folder, secret, activity, is_elsewhere=elsewhere)
    activity.last = time.monotonic()  # the time of the import does not count as idle
    record = {"schema": 1, "pid": os.getpid(), "start": args["start"], "address": address, "secret": secret}
    server = None
    if args["front"]:
        record |= {"token_key": secrets.token_urlsafe(32), "key": secrets.token_hex(8)}
        server = listen(record, args.get("hub", ""))
    if path is None:
        print(json.dumps(record), flush=True)
    else:
        write_json(path, record)
    while not orphaned.is_set() and activity.idle_s() < args["idle"]:
        if args.get("session") and not is_alive(args["session"]):
            break
        await asyncio.sleep(min(CHECK_INTERVAL_S, args["idle"] / 4))
    if server is not None:
        server.stop()


def _wait_for_end_of_input(ended: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    ended.set()


def address(record: dict[str, Any], hub_prefix: str) -> str:
    """Return the address, with a token, of a page that listens on its own port."""
    base = f"{hub_prefix.rstrip('/')}/proxy/{record['port']}" if hub_prefix else f"http://127.0.0.1:{record['port']}"
    return f"{base}/{record['key']}/?{urlencode({'token': new_token(record)})}"


def new_token(record: dict[str, Any], lifetime_s: float = TOKEN_LIFETIME_S) -> str:
    """Return a token that opens the page of `record` for some minutes."""
    until = str(int(time.time() + lifetime_s))
    return f"{until}.{_signature(record, until)}"


def is_token(record: dict[str, Any], token: str) -> bool:
    """Return whether `token` was created by :func:`new_token` and has not expired."""
    until, _, signature = token.partition(".")
    return _equal(signature, _signature(record, until)) and until.isdigit() and int(until) > time.time()


def _signature(record: dict[str, Any], until: str) -> str:
    return hmac.new(record["token_key"].encode(), until.encode("utf-8", "replace"), "sha256").hexdigest()


def _equal(value: str, expected: str) -> bool:
    return hmac.compare_digest(value.encode("utf-8", "replace"), expected.encode())


if __name__ == "__main__":
    main(sys.argv[1])
