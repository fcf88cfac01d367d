"""MLflow's own web application over one project's store, for this user alone.

It listens on a Unix socket in a folder of mode 0700 (where there is none: on loopback) and answers
only requests with the secret of its start. It reads and writes artifacts of the project's store only,
wherever an experiment, a run, a model or a link leads.
"""

from __future__ import annotations

import functools
import hmac
import importlib
import inspect
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from jupyter_amltrain.tracking.page_proxy import SECRET_HEADER
from jupyter_amltrain.tracking.store import artifact_root, database_uri

#: Methods of the local artifact repository that read or write below its folder, in any version of MLflow.
_METHODS = (
    "delete_artifacts",
    "download_artifacts",
    "download_trace_data",
    "get_local_path",
    "list_artifacts",
    "log_artifact",
    "log_artifact_from_stream",
    "log_artifacts",
    "_download_file",
)
#: Schemes whose artifacts may be asked for: files, and the two that name a run or model whose artifacts are files.
_SCHEMES = ("", "file", "runs", "models")

Environ = dict[str, Any]


class Activity:
    """When the page was last used.

    Attributes
    ----------
    last
        Time of the last request that was let in (``time.monotonic``).
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
        """Seconds since the last request ended; 0 while one runs."""
        return 0.0 if self._running else time.monotonic() - self.last


class SecretCheck:
    """WSGI middleware that answers only requests with the secret, before their body is read."""

    def __init__(self, app: Callable[..., Iterable[bytes]], secret: str, activity: Activity) -> None:
        self._app, self._secret, self._activity = app, secret.encode(), activity
        self._header = "HTTP_" + SECRET_HEADER.upper().replace("-", "_")

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        given = str(environ.pop(self._header, "")).encode("latin-1", "replace")
        if not hmac.compare_digest(given, self._secret):
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


def serve(project: str, folder: Path, secret: str, activity: Activity) -> dict[str, Any]:
    """Listen in a thread; returns the address, ``{"unix": path}`` or ``{"port": number}``.

    Parameters
    ----------
    project
        Folder that owns ``.amltrain``.
    folder
        An empty folder of ours, 0700, for the socket.
    secret
        Without it nothing is answered.
    activity
        Told of every request that was let in.
    """
    app = SecretCheck(application(project), secret, activity)
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Handler(WSGIRequestHandler):
        timeout = 120  # seconds for a request to arrive

        def log_request(self, *what: Any) -> None:
            """Keep no list of requests."""

    path = folder / "mlflow.sock"
    unix = hasattr(socket, "AF_UNIX") and os.name == "posix"
    host = f"unix://{path}" if unix else "127.0.0.1"
    server = make_server(host, 0, app, threaded=True, request_handler=Handler)
    if unix:
        os.chmod(path, 0o600)
    threading.Thread(target=server.serve_forever, name="mlflow", daemon=True).start()
    return {"unix": str(path)} if unix else {"port": server.port}


def application(project: str) -> Callable[..., Iterable[bytes]]:
    """Return MLflow's WSGI application for the store of `project`, confined to its artifacts."""
    for name in list(os.environ):
        if name.startswith(("MLFLOW_TRACKING_", "MLFLOW_REGISTRY_", "MLFLOW_DEPLOYMENTS_", "_MLFLOW_SERVER_")):
            del os.environ[name]
    # Who may ask, and from where, is checked in front of it.
    os.environ.update(
        MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE="true",
        MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false",
        MLFLOW_TRACKING_URI=database_uri(project),
    )
    server: Any = importlib.import_module("mlflow.server")
    from mlflow.server import handlers

    os.environ[server.BACKEND_STORE_URI_ENV_VAR] = database_uri(project)
    os.environ[server.ARTIFACT_ROOT_ENV_VAR] = artifact_root(project).as_uri()
    confine(artifact_root(project))
    handlers.initialize_backend_stores(database_uri(project), None, artifact_root(project).as_uri())
    app: Callable[..., Iterable[bytes]] = server.app
    return app


def confine(root: Path) -> None:
    """Let MLflow's classes of this process touch artifacts below `root` only.

    Checked where MLflow opens a store of artifacts, not by the address of a request: locations of
    experiments, runs, traces, models and their versions all end there.
    """
    from mlflow.store.artifact import artifact_repository_registry as registry
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    known: Any = registry._artifact_repository_registry._registry
    repository: Any = LocalArtifactRepository
    store: Any = SqlAlchemyStore
    for scheme in [scheme for scheme in known if scheme not in _SCHEMES]:
        known[scheme] = _refuse
    for name in _METHODS:
        method = getattr(repository, name, None)  # versions differ in what they have and inherit
        if method is not None:
            setattr(repository, name, _confined(method, root))
    repository.__init__ = _confined_init(repository.__init__, root)
    store.create_experiment = _confined_create(store.create_experiment, root)


def _confined_init(init: Callable[..., None], root: Path) -> Callable[..., None]:
    @functools.wraps(init)
    def checked(self: Any, artifact_uri: str, *arguments: Any, **named: Any) -> None:
        _check(local_path(artifact_uri), root)
        init(self, artifact_uri, *arguments, **named)

    return checked


def _confined(method: Callable[..., Any], root: Path) -> Callable[..., Any]:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def checked(self: Any, *arguments: Any, **named: Any) -> Any:
        given = signature.bind(self, *arguments, **named).arguments
        below = given.get("artifact_path") or given.get("remote_file_path")
        if method.__name__ == "list_artifacts":
            below = given.get("path")
        name = os.path.basename(given.get("local_file") or given.get("artifact_file_name") or "")
        if method.__name__ == "download_trace_data":
            name = "traces.json"
        _check(os.path.join(local_path(self.artifact_uri), below or "", name), root)
        return method(self, *arguments, **named)

    return checked


def _confined_create(create: Callable[..., Any], root: Path) -> Callable[..., Any]:
    @functools.wraps(create)
    def checked(self: Any, name: str, artifact_location: str | None = None, *arguments: Any, **named: Any) -> Any:
        if artifact_location:
            _check(local_path(artifact_location), root)
        return create(self, name, artifact_location, *arguments, **named)

    return checked


def local_path(uri: str) -> str:
    """Path of a ``file:`` address or a plain path; anything else is refused."""
    parts = urlsplit(uri)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return url2pathname(parts.path)
    if not parts.scheme or (os.name == "nt" and len(parts.scheme) == 1):
        return uri
    raise _refusal()


def _check(path: str, root: Path) -> None:
    inside = os.path.realpath(root)
    real = os.path.realpath(path)
    if real != inside and not real.startswith(inside + os.sep):
        raise _refusal()


def _refuse(*arguments: Any, **named: Any) -> Any:
    raise _refusal()


def _refusal() -> Exception:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import PERMISSION_DENIED

    return MlflowException(
        "This page reads and writes artifacts of the project's own store only.", error_code=PERMISSION_DENIED
    )
