"""A service in miniature: a code folder, its processes started as the service does, its MLflow endpoint."""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.agent.conftest import until

RUN, TRACKED, TOKEN = "digits-at-the-service", "0123456789abcdef0123456789abcdef", "the-job's-own-token"
WORKSPACE = "/subscriptions/s/resourceGroups/r/providers/Microsoft.MachineLearningServices/workspaces/w"


@functools.cache
def pythons() -> tuple[str, ...]:
    """This Python, and a 3.8 where there is one."""
    places = [*sorted(Path.home().glob(".pyenv/versions/3.8.*/bin/python3.8")), shutil.which("python3.8") or ""]
    for place in map(str, places):
        if place and not subprocess.run([place, "-c", "pass"], capture_output=True).returncode:
            return sys.executable, place
    return (sys.executable,)


#: Processes that the tests of this Python have started.
_STARTED: list[Any] = []
_NUMBERS = itertools.count()


class Job:
    """A code folder with the agent in it.

    Parameters
    ----------
    folder
        Takes ``code``.
    script
        Text of ``script.py``.
    fields
        Of ``job.json``.
    """

    def __init__(self, folder: Path, zipapp: Path, script: str = "", **fields: Any) -> None:
        self.code = folder / "code"
        hidden = self.code / ".amltrain"
        hidden.mkdir(parents=True)
        shutil.copy(zipapp, hidden / "agent.pyz")
        # Nothing of one test may count as a process of another's run.
        self.name = f"digits-{os.getpid()}-{next(_NUMBERS)}"
        job = {
            "schema": 1,
            "run": self.name,
            "name": "digits",
            "argv": ["@python", "-S", "script.py"],
            "env": {},
            "gpus": None,
        }
        job.update({"tracking": {"run_id": TRACKED, "mode": "sink"}, "grace": 5.0, **fields})
        (hidden / "job.json").write_text(json.dumps(job))
        (self.code / "script.py").write_text(script)
        self.environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("AMLTRAIN_", "MLFLOW_", "AZUREML_", "OMPI_", "RANK", "LOCAL_RANK", "NODE_RANK"))
        }
        self.environ.update(AMLTRAIN_SAMPLE_PERIOD="0.05", AMLTRAIN_FORWARD_PERIOD="0.1", TMPDIR=str(folder / "tmp"))
        self.environ["AMLTRAIN_FORWARD_LAST"] = "60"  # a busy machine may need longer than the default
        (folder / "tmp").mkdir()

    def start(self, *words: str, python: str = sys.executable, before: tuple[str, ...] = (), **environ: str) -> Any:
        """Start one process as the service does."""
        process = subprocess.Popen(
            [*before, python, ".amltrain/agent.pyz", "rank", ".amltrain/job.json", *words],
            cwd=self.code,
            env={**self.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        _STARTED.append(process)
        return process

    def run(self, *words: str, **how: Any) -> tuple[int, bytes, bytes]:
        """Run one process to its end: exit code, output, errors."""
        process = self.start(*words, **how)
        out, errors = process.communicate(timeout=60)
        return process.returncode, out, errors

    @property
    def logs(self) -> Path:
        return self.code / "logs" / "amltrain"

    def json(self, name: str) -> dict[str, Any]:
        path = self.logs / name
        return json.loads(path.read_text()) if path.exists() else {}

    def lines(self, name: str) -> list[Any]:
        path = self.logs / name
        data = path.read_bytes() if path.exists() else b""
        return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]

    def ticks(self, node: int = 0) -> list[Any]:
        return [line for line in self.lines(f"telemetry/node-{node}.jsonl") if isinstance(line, list)]


def one_line(errors: bytes, text: str) -> None:
    """That our only word to the job's log is one line with `text`."""
    lines = errors.decode().splitlines()
    assert len(lines) == 1 and lines[0].startswith("amltrain: ") and text in lines[0], lines


def helper(parent: int, number: int) -> int:
    """Pid of the `number`-th forked process of an agent that has exec'd nothing."""
    from jupyter_amltrain.agent.processes import process_table

    def found() -> list[int]:
        rows = [row for row in process_table().values() if row.parent == parent and row.state not in "ZX"]
        return sorted(r.pid for r in rows if b"agent.pyz" in Path(f"/proc/{r.pid}/cmdline").read_bytes())

    return until(lambda: pids[number] if len(pids := found()) > number else 0, "a helper")


class Service:
    """The service's MLflow endpoint: checks batches and gives scripted answers."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []
        self.wrong: list[str] = []
        self.requests = 0
        #: Answers of the next requests: a status, ``(429, seconds)`` or ``"cut"``.
        self.faults: list[Any] = []
        self.refuses: Callable[[dict[str, Any]], bool] = lambda batch: False
        self.version = "v1.0"
        service = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None: ...

            def do_POST(self) -> None:
                service._serve(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def environ(self) -> dict[str, str]:
        """What the service tells its jobs."""
        uri = f"http://127.0.0.1:{self._server.server_port}/mlflow/v1.0{WORKSPACE}?"
        return {"MLFLOW_TRACKING_URI": uri, "MLFLOW_RUN_ID": RUN, "MLFLOW_TRACKING_TOKEN": TOKEN, "AZUREML_RUN_ID": RUN}

    def _serve(self, request: Any) -> None:
        self.requests += 1
        body = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        fault = self.faults.pop(0) if self.faults else 200
        if fault == "cut":
            request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
            request.close_connection = True
            return
        status, wait = fault if isinstance(fault, tuple) else (fault, None)
        if status == 200:
            status = self._judge(request.path, request.headers, body)
        request.send_response(status)
        if wait is not None:
            request.send_header("Retry-After", str(wait))
        answer = b"{}" if status == 200 else b'{"Error": {"Code": "UserError", "Message": "No."}}'
        request.send_header("Content-Length", str(len(answer)))
        request.end_headers()
        request.wfile.write(answer)

    def _judge(self, path: str, headers: Any, body: dict[str, Any]) -> int:
        if headers["Authorization"] != f"Bearer {TOKEN}":
            return 401
        if path != f"/mlflow/{self.version}{WORKSPACE}/api/2.0/mlflow/runs/log-batch":
            return 404
        if self.refuses(body):
            return 400
        good = body["run_id"] == RUN and body.keys() == {"run_id", "metrics", "params", "tags"}
        good = good and len(body["metrics"]) <= 250 and len(body["params"]) <= 100 and len(body["tags"]) <= 100
        for one in body["metrics"]:
            good = good and one.keys() == {"key", "value", "timestamp", "step"} and len(one["key"]) <= 255
            good = good and type(one["timestamp"]) is type(one["step"]) is int and one["timestamp"] > 10**12
            good = good and (type(one["value"]) in (int, float) or one["value"] == "NaN")
        for one in body["params"] + body["tags"]:
            good = good and one.keys() == {"key", "value"} and type(one["value"]) is str
        good = good and all(len(one["value"]) <= 500 for one in body["params"])
        if not good:
            self.wrong.append(json.dumps(body)[:500])
        self.batches.append(body)
        return 200

    def of(self, kind: str, key: str = "") -> list[Any]:
        """All metrics, params or tags that arrived; of one name their values."""
        found = [one for batch in list(self.batches) for one in batch[kind]]
        return [one["value"] for one in found if one["key"] == key] if key else found

    def close(self) -> None:
        assert not self.wrong, self.wrong[0]
        self._server.shutdown()
        self._server.server_close()


def ended(processes: list[Any]) -> Iterator[tuple[int, bytes, bytes]]:
    """Exit code, output and errors of each."""
    for process in processes:
        out, errors = process.communicate(timeout=60)
        yield process.returncode, out, errors


@pytest.fixture(autouse=True)
def no_leftovers() -> Iterator[None]:
    """Nothing outlives its test; the agent's death takes the job along. Put it into a module of tests."""
    yield
    for process in _STARTED:
        if process.poll() is None:
            process.kill()
            process.communicate()
    _STARTED.clear()
