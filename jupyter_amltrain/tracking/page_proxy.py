"""Proxies requests for MLflow's page to its process, for Jupyter's server and for a page with its own port.

Imports Tornado, the standard library and the agent only: it is loaded into every Jupyter server.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import stat
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from tornado import httputil, iostream, web

from jupyter_amltrain.agent.mlflow.project_server import SECRET_HEADER

#: Environment variable with the folder of a Jupyter server that can show MLflow's page.
FOLDER_VARIABLE = "AMLTRAIN_JUPYTER_FOLDER"
#: File in that folder: address of the server.
SERVER_FILE = "server.json"
#: Below the server's base URL.
ROUTE = "amltrain/mlflow"

_CONNECT_TIMEOUT_S = 10.0
#: Seconds without a byte of the response; MLflow may need a while for a large experiment.
_RESPONSE_TIMEOUT_S = 300.0
_PIECE_BYTES = 1 << 16
_KEY = re.compile(r"[0-9a-f]{16}")
#: Request headers that MLflow needs. The browser's cookies and tokens must not be passed on.
_PASSED = ("Accept", "Accept-Language", "Content-Type", "If-Modified-Since", "If-None-Match", "Range", "User-Agent")
#: Response headers that are not passed on.
_DROPPED = ("connection", "keep-alive", "set-cookie", "server", "date", "transfer-encoding", "trailer", "upgrade")
_NOT_RUNNING = (
    "<!doctype html><title>MLflow</title><p>MLflow's page of this project is not running."
    " Open it again from the panel or with <code>%aml_runs ui</code>, then reload this page.</p>"
)


def key_of(project: str | os.PathLike[str]) -> str:
    """Return the key of a project's page in its address; it is no secret."""
    return hashlib.sha256(os.fsencode(os.path.realpath(project))).hexdigest()[:16]


def record_path(folder: str | os.PathLike[str], key: str) -> Path:
    """Return the file with the address of the page `key`."""
    if not _KEY.fullmatch(key):
        raise ValueError(key)
    return Path(folder) / f"{key}.json"


def read_record(folder: str | os.PathLike[str], key: str) -> dict[str, Any] | None:
    """Return the record that a page's process wrote when it was ready; ``None`` without one."""
    if not is_private(folder):
        return None
    try:
        record = json.loads(record_path(folder, key).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("address"), dict) else None


def is_private(folder: str | os.PathLike[str]) -> bool:
    """Return whether `folder` is this user's folder, without access for others."""
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    if os.name != "posix":
        return stat.S_ISDIR(status.st_mode)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def is_same_origin(request: httputil.HTTPServerRequest) -> bool:
    """Return whether a page of the same origin sent `request`, as far as the browser reports it.

    MLflow's page sends no XSRF token. A browser adds ``Sec-Fetch-Site`` and, to a request that
    changes something, ``Origin``; no page can forge them.
    """
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("Origin")
    return origin is not None and urlsplit(origin).netloc.lower() == request.host.lower()


async def forward(handler: web.RequestHandler, record: dict[str, Any], path: str, prefix: str) -> None:
    """Forward the request of `handler` to MLflow's process, and stream the response.

    Parameters
    ----------
    handler
        The caller has verified that the request is the owner's.
    record
        Record of the page's process.
    path
        Path at MLflow's process, beginning with a slash.
    prefix
        Path of the page for the browser, without a slash at its end.
    """
    try:
        reader, writer = await asyncio.wait_for(_connect(record["address"]), _CONNECT_TIMEOUT_S)
    except (OSError, KeyError, TypeError, ValueError, asyncio.TimeoutError):
        return not_running(handler)
    try:
        writer.write(_request(handler.request, str(record.get("secret", "")), path))
        await writer.drain()
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _RESPONSE_TIMEOUT_S)
        first, _, rest = head.decode("latin-1").partition("\r\n")
        status = httputil.parse_response_start_line(first)
        handler.set_status(status.code, status.reason)
        _take_headers(handler, httputil.HTTPHeaders.parse(rest), path, prefix)
        if handler.request.method != "HEAD":
            while piece := await asyncio.wait_for(reader.read(_PIECE_BYTES), _RESPONSE_TIMEOUT_S):
                handler.write(piece)
                await handler.flush()
        handler.finish()
    except iostream.StreamClosedError:
        pass  # the browser has disconnected
    except (OSError, EOFError, ValueError, asyncio.TimeoutError, asyncio.LimitOverrunError, httputil.HTTPInputError):
        if handler._headers_written:
            handler.request.connection.close()  # type: ignore[union-attr]
        else:
            not_running(handler)
    finally:
        writer.close()


def not_running(handler: web.RequestHandler) -> None:
    """Respond that the page is not running, and how to open it again."""
    handler.clear()
    handler.set_status(503)
    handler.set_header("Content-Type", "text/html; charset=utf-8")
    handler.finish(_NOT_RUNNING)


async def _connect(address: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if "unix" in address:
        return await asyncio.open_unix_connection(str(address["unix"]))
    return await asyncio.open_connection("127.0.0.1", int(address["port"]))


def _request(request: httputil.HTTPServerRequest, secret: str, path: str) -> bytes:
    target = quote(path, safe="/%:@!$&'()*+,;=~-._") + (f"?{request.query}" if request.query else "")
    lines = [
        f"{request.method} {target} HTTP/1.0",
        "Host: localhost",
        "Connection: close",
        f"{SECRET_HEADER}: {secret}",
    ]
    lines += [f"{name}: {request.headers[name]}" for name in _PASSED if name in request.headers]
    body = request.body or b""
    if body or request.method not in ("GET", "HEAD"):
        lines.append(f"Content-Length: {len(body)}")
    text = "\r\n".join(lines)
    if "\n" in text.replace("\r\n", ""):
        raise ValueError("a line break in a header")
    return text.encode("latin-1", "replace") + b"\r\n\r\n" + body


def _take_headers(handler: web.RequestHandler, headers: httputil.HTTPHeaders, path: str, prefix: str) -> None:
    handler.clear_header("Content-Type")
    for name, value in headers.get_all():
        lower = name.lower()
        if lower in _DROPPED or lower.startswith("access-control-"):
            continue
        if lower == "location":
            value = _moved(value, prefix)
        if lower == "content-security-policy":
            continue
        handler.add_header(name, value)
    handler.set_header("X-Content-Type-Options", "nosniff")
    handler.set_header("Referrer-Policy", "same-origin")
    if path != "/" and not path.startswith("/static-files/"):
        # An artifact opened directly must not run as a page of this origin.
        handler.set_header("Content-Security-Policy", "sandbox; default-src 'none'; frame-ancestors 'self'")


def _moved(location: str, prefix: str) -> str:
    """Return the target of a redirect by MLflow, which knows neither the host nor the prefix."""
    parts = urlsplit(location)
    if parts.netloc not in ("", "localhost"):
        return location
    moved = parts.path + (f"?{parts.query}" if parts.query else "") + (f"#{parts.fragment}" if parts.fragment else "")
    return prefix + moved if moved.startswith("/") else moved
