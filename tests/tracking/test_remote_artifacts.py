from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.tracking.remote_artifacts import RemoteArtifacts

ROOT = Path("/data/pro ject/mlartifacts")
HERE, THERE = "file:///data/pro%20ject/mlartifacts/1/a", "mlflow-artifacts:/1/a"


def answer(reply: bytes, kind: str, sent: bytes = b"") -> tuple[bytes, bytes, dict[str, str]]:
    """Return what the application was sent, and what it answers to the job."""
    received, heads = [], []

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        received.append(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        start_response("200 OK", [("Content-Type", kind), ("Content-Length", str(len(reply)))])
        return [reply[:9], reply[9:]]

    environ = {"wsgi.input": io.BytesIO(sent), "CONTENT_LENGTH": str(len(sent)), "CONTENT_TYPE": kind}
    found = b"".join(RemoteArtifacts(app, ROOT)(environ, lambda status, headers: heads.append(dict(headers))))
    return received[0], found, heads[0]


def test_location_in_json_is_of_the_server_outside_and_of_the_disk_inside() -> None:
    reply, sent = json.dumps({"uri": HERE, "note": f"at {HERE}"}), json.dumps({"source": THERE}).encode()
    received, found, headers = answer(reply.encode(), "application/json; charset=utf-8", sent)
    assert json.loads(received) == {"source": HERE}
    assert json.loads(found) == {"uri": THERE, "note": f"at {HERE}"}
    assert headers["Content-Length"] == str(len(found))


@pytest.mark.parametrize("kind", ["application/octet-stream", "text/plain", ""])
def test_file_passes_unchanged(kind: str) -> None:
    reply = f'"{HERE}"'.encode()
    assert answer(reply, kind, b'"mlflow-artifacts:/1"')[:2] == (b'"mlflow-artifacts:/1"', reply)
