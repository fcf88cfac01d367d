"""Artifacts of a project's store for jobs on other machines, whose MLflow cannot open files of this one.

Locations ``file:///...`` below the project become ``mlflow-artifacts:/...`` in responses, and back in requests:
MLflow's client then reads and writes these artifacts through the server.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

#: Begins a location of an artifact that the server passes on.
_PROXIED = "mlflow-artifacts:/"

Application = Callable[..., Iterable[bytes]]


class RemoteArtifacts:
    """WSGI middleware that changes the locations of artifacts in JSON.

    Parameters
    ----------
    app
        MLflow's application, which serves the artifacts below `root`.
    root
        Folder that ``mlflow-artifacts:/`` stands for.
    """

    def __init__(self, app: Application, root: Path) -> None:
        self._app = app
        self._here = (root.as_uri().rstrip("/") + "/").encode()
        self._there = _PROXIED.encode()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request."""
        if _is_json(environ.get("CONTENT_TYPE", "")):
            body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            body = body.replace(b'"' + self._there, b'"' + self._here)
            environ.update({"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))})
        begun: list[Any] = []

        def begin(status: str, headers: Sequence[tuple[str, str]], *more: Any) -> None:
            begun[:] = [status, list(headers), more]

        parts = self._app(environ, begin)
        status, headers, more = begun
        if not _is_json(dict(headers).get("Content-Type", "")):
            start_response(status, headers, *more)
            return parts
        data = b"".join(parts).replace(b'"' + self._here, b'"' + self._there)
        close = getattr(parts, "close", None)
        if close is not None:
            close()
        headers = [(name, str(len(data)) if name.lower() == "content-length" else value) for name, value in headers]
        start_response(status, headers, *more)
        return [data]


def _is_json(content_type: str) -> bool:
    return content_type.partition(";")[0].strip() == "application/json"
