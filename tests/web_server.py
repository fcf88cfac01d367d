"""A real HTTP server on the loopback interface whose faults a test sets."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class WebServer:
    """Serves `content` at every path, with ETag, conditions and ranges.

    Attributes
    ----------
    requests
        Method, path and headers (names in lower case) of each request.
    sent
        Bytes of bodies that were sent.
    cut_after
        The next answers end after so many bytes of the body, one entry each.
    statuses
        The next answers are these errors.
    pause_s
        Seconds between blocks of a body.
    """

    def __init__(self) -> None:
        self.content = b"a,b\n1,2\n"
        self.has_etag, self.weak, self.has_ranges, self.has_length, self.ignores_conditions = (
            True,
            False,
            True,
            True,
            False,
        )
        self.modified = "Mon, 23 Nov 2026 10:00:00 GMT"
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.sent = 0
        self.cut_after: list[int] = []
        self.statuses: list[int] = []
        self.redirects: dict[str, str] = {}
        self.login = ""
        self.pause_s = 0.0
        self.block = 1 << 16
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def host(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        """Address of a file."""
        return f"http://{self.host}/files/table.csv"

    @property
    def etag(self) -> str:
        """ETag of the content."""
        return ("W/" if self.weak else "") + f'"{hashlib.md5(self.content).hexdigest()}"'

    def close(self) -> None:
        """Stop; later connections are refused."""
        self._server.shutdown()
        self._server.server_close()

    def _handler(owner) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                owner._answer(self)

            def log_message(self, *args: Any) -> None:
                pass

        return Handler

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        headers = {name.lower(): value for name, value in handler.headers.items()}
        self.requests.append((handler.command, handler.path, headers))
        path = handler.path
        handler.close_connection = True
        if path in self.redirects:
            return self._end(handler, 302, {"Location": self.redirects[path]})
        if self.login and headers.get("authorization") != self.login:
            return self._end(handler, 401, {"WWW-Authenticate": "Basic"})
        if self.statuses:
            return self._end(handler, self.statuses.pop(0), {})
        facts = {"ETag": self.etag} if self.has_etag else {}
        facts |= {"Last-Modified": self.modified} if self.modified else {}
        if not self.ignores_conditions:
            known = headers.get("if-none-match")
            if known == self.etag and self.has_etag:
                return self._end(handler, 304, facts)
            if known is None and self.modified and headers.get("if-modified-since") == self.modified:
                return self._end(handler, 304, facts)
        start, status = 0, 200
        wanted = headers.get("range", "")
        if wanted and self.has_ranges and headers.get("if-range") in (self.etag, self.modified):
            start, status = int(wanted.removeprefix("bytes=").rstrip("-")), 206
            if start >= len(self.content):
                return self._end(handler, 416, {"Content-Range": f"bytes */{len(self.content)}"})
            facts["Content-Range"] = f"bytes {start}-{len(self.content) - 1}/{len(self.content)}"
        body = self.content[start:]
        handler.send_response(status)
        for name, value in facts.items():
            handler.send_header(name, value)
        if self.has_length:
            handler.send_header("Content-Length", str(len(body)))
        handler.send_header("Connection", "close")
        handler.end_headers()
        if self.cut_after:
            body = body[: self.cut_after.pop(0)]
        try:
            for at in range(0, len(body), self.block):
                handler.wfile.write(body[at : at + self.block])
                handler.wfile.flush()
                self.sent += len(body[at : at + self.block])
                if self.pause_s:
                    time.sleep(self.pause_s)
        except OSError:  # the client has gone
            pass

    @staticmethod
    def _end(handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str]) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", "0")
        handler.send_header("Connection", "close")
        handler.end_headers()


@contextmanager
def serving() -> Iterator[WebServer]:
    """A server until the end of the block."""
    server = WebServer()
    try:
        yield server
    finally:
        server.close()
