"""The process that shows MLflow's page of one project.

``jupyter_amltrain.tracking.page_server {json}``. For a Jupyter server it only answers on a private
socket. Else it also listens on a loopback port, where every request needs a token: it comes once in the
address, then in a cookie. The process ends with its owner (a kernel's worker, or the shell of a
terminal), and when nobody has used the page for a while.
"""

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
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from tornado import httpserver, iostream, netutil, web

from jupyter_amltrain.agent.processes import alive
from jupyter_amltrain.agent.tcp_owner import is_other_user
from jupyter_amltrain.state import write_json
from jupyter_amltrain.tracking import page_backend, page_proxy

#: Seconds between looks whether somebody still needs the page.
CHECK_INTERVAL_S = 2.0
#: Seconds for which an address with a token can be opened: it stays in a saved notebook, so it must not stay valid.
TOKEN_LIFETIME_S = 900
_MAX_FOLDER_BYTES = 60
_COOKIE = "amltrain-mlflow"
_LOOPBACK = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?", re.I)
#: Loads the address without its token. A redirect would not do: a browser that came from another site
#: (JupyterLab at ``localhost``) sends a strict cookie only after a page of ours has asked.
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
    """Answers whoever came with a token."""

    def initialize(self, record: dict[str, Any], cookie: str, cookie_path: str, any_host: bool) -> None:
        """Take the page's record, its cookie, and whether a hub in front has its own host names."""
        self._record, self._cookie = record, cookie
        self._cookie_path, self._any_host = cookie_path, any_host

    def set_default_headers(self) -> None:
        """Keep it out of other sites' frames, and its address out of their logs."""
        self.set_header("Content-Security-Policy", "frame-ancestors 'self'")
        self.set_header("Referrer-Policy", "same-origin")
        self.set_header("X-Content-Type-Options", "nosniff")

    def prepare(self) -> None:
        """Refuse foreign hosts, foreign origins, and everybody without the token."""
        if not self._any_host and not _LOOPBACK.fullmatch(self.request.host):
            raise web.HTTPError(403)
        if self.request.method not in ("GET", "HEAD") and not page_proxy.is_same_origin(self.request):
            raise web.HTTPError(403)
        given = dict(parse_qsl(self.request.query)).get("token", "")
        if self.request.method == "GET" and is_token(self._record, given):
            self._enter()
        elif not _equal(self.get_cookie(self._cookie_name()) or "", self._cookie):
            self.set_status(403)
            self.finish(_REFUSED)

    def _cookie_name(self) -> str:
        return f"{_COOKIE}-{self._record['port']}"  # cookies know no ports

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
        """Answer any method."""
        if self._finished:
            return
        await page_proxy.forward(self, self._record, path, f"/{self._record['key']}")

    head = post = put = patch = delete = get

    def write_error(self, status_code: int, **how: Any) -> None:
        """Say no more than the status."""
        self.finish(f"{status_code}\n")


class LocalServer(httpserver.HTTPServer):
    """Closes connections of other users of this machine before it reads from them."""

    def handle_stream(self, stream: iostream.IOStream, address: Any) -> None:
        """Take a new connection."""
        if is_other_user(stream.socket):
            stream.close()
        else:
            super().handle_stream(stream, address)


def listen(record: dict[str, Any], hub_prefix: str) -> LocalServer:
    """Listen on a free loopback port, which is put into `record`."""
    (sock,) = netutil.bind_sockets(0, "127.0.0.1")
    record["port"] = sock.getsockname()[1]
    path = f"{hub_prefix.rstrip('/')}/proxy/{record['port']}/" if hub_prefix else f"/{record['key']}/"
    cookie = secrets.token_urlsafe(32)
    how = {"record": record, "cookie": cookie, "cookie_path": path, "any_host": bool(hub_prefix)}
    app = web.Application([(rf"/{record['key']}(/.*)", TokenPageHandler, how)], log_function=lambda handler: None)
    server = LocalServer(app, idle_connection_timeout=60, body_timeout=60, max_body_size=32 << 20)
    server.add_sockets([sock])
    return server


def main(text: str) -> None:
    """Body of the process; `text` is JSON.

    ``project``, ``record`` (file to write when the page answers), ``start`` (any text, given back in the
    record), ``front`` (whether to listen with a token), ``hub`` (path prefix of a hub), ``idle`` (seconds),
    ``session`` (identity of the process to end with; without one it ends with standard input).
    """
    asked = json.loads(text)
    # 0700. The path of a Unix socket holds some 100 bytes; $TMPDIR may be longer.
    place = tempfile.gettempdir()
    base = "/tmp" if os.name == "posix" and len(os.fsencode(place)) > _MAX_FOLDER_BYTES else place
    folder = Path(tempfile.mkdtemp(prefix="amltrain-mlflow-", dir=base))
    path = Path(asked["record"])
    signal.signal(signal.SIGTERM, lambda *what: sys.exit(0))
    try:
        asyncio.run(_serve(asked, folder, path))
    finally:
        with contextlib.suppress(OSError, ValueError):
            if json.loads(path.read_text()).get("start") == asked["start"]:
                path.unlink()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)  # threads may still answer


async def _serve(asked: dict[str, Any], folder: Path, path: Path) -> None:
    orphaned = threading.Event()
    if "session" not in asked:
        threading.Thread(target=_wait_for_end_of_input, args=(orphaned,), daemon=True).start()
    activity = page_backend.Activity()
    secret = secrets.token_urlsafe(32)
    address = await asyncio.to_thread(page_backend.serve, asked["project"], folder, secret, activity)
    activity.last = time.monotonic()  # the import is no use of it
    record = {"schema": 1, "pid": os.getpid(), "start": asked["start"], "address": address, "secret": secret}
    server = None
    if asked["front"]:
        record |= {"token_key": secrets.token_urlsafe(32), "key": secrets.token_hex(8)}
        server = listen(record, asked.get("hub", ""))
    write_json(path, record)
    while not orphaned.is_set() and activity.idle_s() < asked["idle"]:
        if asked.get("session") and not alive(asked["session"]):
            break
        await asyncio.sleep(min(CHECK_INTERVAL_S, asked["idle"] / 4))
    if server is not None:
        server.stop()


def _wait_for_end_of_input(ended: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    ended.set()


def address(record: dict[str, Any], hub_prefix: str) -> str:
    """Return the address of a page that listens by itself, with its token."""
    place = f"{hub_prefix.rstrip('/')}/proxy/{record['port']}" if hub_prefix else f"http://127.0.0.1:{record['port']}"
    return f"{place}/{record['key']}/?{urlencode({'token': new_token(record)})}"


def new_token(record: dict[str, Any], lifetime_s: float = TOKEN_LIFETIME_S) -> str:
    """Return a token that opens the page of `record` for some minutes."""
    until = str(int(time.time() + lifetime_s))
    return f"{until}.{_signature(record, until)}"


def is_token(record: dict[str, Any], given: str) -> bool:
    """Whether `given` was made by :func:`new_token` and has not expired."""
    until, _, signature = given.partition(".")
    return _equal(signature, _signature(record, until)) and until.isdigit() and int(until) > time.time()


def _signature(record: dict[str, Any], until: str) -> str:
    return hmac.new(record["token_key"].encode(), until.encode("utf-8", "replace"), "sha256").hexdigest()


def _equal(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


if __name__ == "__main__":
    main(sys.argv[1])
