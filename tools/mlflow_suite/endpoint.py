"""An MLflow endpoint that can be emptied between two tests: that of a job, or a server of MLflow.

``python -m tools.mlflow_suite.endpoint job|server FOLDER``: prints the environment of its clients as a line of JSON,
then empties itself for each line that it reads and prints a line; ends with its standard input.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from jupyter_amltrain.agent.mlflow import project_server, sink_server
from jupyter_amltrain.agent.mlflow.project_search import ProjectSearch
from jupyter_amltrain.agent.mlflow.routes import Sink
from jupyter_amltrain.agent.mlflow.sink_state import Recorder
from jupyter_amltrain.tracking.job_server import job_server_command

#: Set if a run of the script has begun before each test: the first one is the job's own.
LATER = "AMLTRAIN_SUITE_LATER"

#: Seconds until a server must answer.
START_TIMEOUT_S = 120


class Database:
    """A database of MLflow, which can get back the rows that it has now."""

    def __init__(self, path: Path) -> None:
        self._path, self._copy = path, path.with_suffix(".copy")
        with closing(sqlite3.connect(path)) as now, closing(sqlite3.connect(self._copy)) as copy:
            now.backup(copy)

    def restore(self) -> None:
        """Delete what is new."""
        with closing(sqlite3.connect(self._path, timeout=60, isolation_level=None)) as database:
            database.execute("ATTACH ? AS old", (str(self._copy),))
            tables = database.execute("SELECT name FROM old.sqlite_master WHERE type = 'table'").fetchall()
            database.execute("BEGIN IMMEDIATE")
            for (table,) in tables:
                # without columns that the database makes itself
                columns = ", ".join(f'"{row[1]}"' for row in database.execute(f'PRAGMA main.table_info("{table}")'))
                database.execute(f'DELETE FROM main."{table}"')
                database.execute(f'INSERT INTO main."{table}" ({columns}) SELECT {columns} FROM old."{table}"')
            database.execute("COMMIT")


class JobEndpoint:
    """The endpoint of a job in a new project, as the job's supervisor starts it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        self._is_later = bool(os.environ.get(LATER))
        self._place = project_server.ServerProcess(job_server_command(str(folder)), lambda text: None)
        self._place.record()
        self._database = Database(folder / ".amltrain" / "mlflow.db")
        listening, token = socket.create_server(("127.0.0.1", 0)), os.urandom(16).hex()
        self.env = sink_server.client_env(listening.getsockname()[1], token)
        self.env |= {"AMLTRAIN_FOLLOW": str(listening.getsockname()[1]), "AMLTRAIN_FOLLOW_TOKEN": token}
        project = project_server.ProjectServer(self._place)
        self._server = sink_server._Server(listening, self._recorder(), token, project)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _recorder(self) -> Recorder:
        self._count += 1
        run = self._folder / "runs" / str(self._count)
        recorder = Recorder(
            journal=str(run / "metrics" / "rank-0.jsonl"),
            artifacts=str(run / "artifacts"),
            run_id=sink_server.new_run_id(),
            run_name="suite",
            experiment_name="suite",
            on_note=lambda text: None,
        )
        if self._is_later:
            recorder.change("runs/update", {"run_id": recorder.run_id, "status": "RUNNING"}, {"joined": ["script", ""]})
        return recorder

    def empty(self) -> None:
        """Begin a new job."""
        self._database.restore()
        project = project_server.ProjectServer(self._place)
        self._server.recorder = recorder = self._recorder()
        self._server.sink = Sink(recorder, ProjectSearch(project, recorder.state.experiments))

    def close(self) -> None:
        """End MLflow's server."""
        self._place.close()


class ServerEndpoint:
    """MLflow's own server on a new database."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        words = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--host", "127.0.0.1", "--port", str(port)]
        words += ["--artifacts-destination", str(folder / "artifacts"), "--workers", "1"]
        with open(folder / "server.txt", "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", *words], stdout=log, stderr=log, cwd=folder,
                env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            )  # fmt: skip
        self.env = {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}"}
        until = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < until and self._process.poll() is None:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(self.env["MLFLOW_TRACKING_URI"] + "/health", timeout=5).close()
                break
            time.sleep(0.2)
        self._database = Database(folder / "mlflow.db")

    def empty(self) -> None:
        """Delete everything in the database."""
        self._database.restore()

    def close(self) -> None:
        """End the server."""
        self._process.terminate()
        self._process.wait(30)


@contextlib.contextmanager
def started(kind: str, folder: Path, cwd: Path) -> Iterator[tuple[dict[str, str], Callable[[], None]]]:
    """Start an endpoint in a process of its own, with this Python's MLflow; yield its clients' environment and reset.

    Parameters
    ----------
    cwd
        Where this package is.
    """
    folder.mkdir(parents=True)
    env = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_", "PYTHON", "AMLTRAIN_F"))}
    with subprocess.Popen(
        [sys.executable, "-m", __spec__.name, kind, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, cwd=cwd,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def empty() -> None:
            stdin.write("\n")
            stdin.flush()
            if not stdout.readline():
                raise RuntimeError("the endpoint has ended")

        yield json.loads(stdout.readline()), empty


def main(kind: str, folder: str) -> None:
    """Body of the process."""
    endpoint = (JobEndpoint if kind == "job" else ServerEndpoint)(Path(folder).resolve())
    print(json.dumps(endpoint.env), flush=True)
    for _ in sys.stdin:
        endpoint.empty()
        print("", flush=True)
    endpoint.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
