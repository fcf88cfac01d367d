"""What logging costs: a program in a job, against the same program with plain ``python`` and an ``mlflow server``.

The program logs the first metric of a run, 100,000 points in batches of 1,000, 1,000 small artifacts, and a model of
scikit-learn: once as it is, and once after the points, with requirements that MLflow need not infer. ``import mlflow``
does not count.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from benchmarks.timing import line, verdict

#: What is measured, with the highest ratio to the server.
GOALS = {
    "first metric": 1.0,
    "log_model": 1.1,
    "100,000 points": 0.6,
    "1,000 artifacts": 0.4,
    "log_model after the points": 0.6,
}
RECORDED = "until the run is recorded"
_PROGRAM = """
import contextlib, json, time
import mlflow, mlflow.sklearn
from mlflow import MlflowClient
from mlflow.entities import Metric
from sklearn.linear_model import LogisticRegression

figures = {}

@contextlib.contextmanager
def timed(name):
    begin = time.perf_counter()
    yield
    figures[name] = time.perf_counter() - begin

model = LogisticRegression().fit([[0.0], [1.0]], [0, 1])
with timed("first metric"):
    mlflow.log_metric("first", 1.0)
run = mlflow.active_run().info.run_id
with timed("log_model"):
    mlflow.sklearn.log_model(model, name="model")
with timed("100,000 points"):
    for first in range(0, 100_000, 1000):
        now = int(time.time() * 1000)
        points = [Metric(f"m{i % 5}", i / 7, now, i) for i in range(first, first + 1000)]
        MlflowClient().log_batch(run, points)
with timed("1,000 artifacts"):
    for i in range(1000):
        mlflow.log_text("x" * 1000, f"texts/{i}.txt")
with timed("log_model after the points"):
    mlflow.sklearn.log_model(model, name="late", pip_requirements=["scikit-learn", "skops"])
with open(OUT, "w") as file:
    json.dump(figures, file)
"""


@contextlib.contextmanager
def tracking_server(folder: Path) -> Iterator[str]:
    """Run ``mlflow server`` on a new SQLite database; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["--backend-store-uri", f"sqlite:///{folder}/server.db", "--artifacts-destination", f"{folder}/server"]
    argv = [sys.executable, "-m", "mlflow", "server", *words, "--port", str(port), "--workers", "1"]
    env = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # processes that logging does not need
    with (folder / "server.txt").open("wb") as log:
        server = subprocess.Popen(argv, env=env, stdout=log, stderr=log, start_new_session=True)
    with server:
        uri = f"http://127.0.0.1:{port}"
        try:
            deadline = time.monotonic() + 120
            while True:
                try:
                    urllib.request.urlopen(f"{uri}/health", timeout=5).close()
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.2)
            yield uri
        finally:
            os.killpg(server.pid, signal.SIGTERM)


def job(script: Path, out: Path) -> dict[str, float]:
    """Run the program in a job; its seconds, and those from its end until the project's store has its record."""
    from jupyter_amltrain import api

    run = api.submit(script, gpus=0, name="cost").wait(600)
    ended = time.perf_counter()
    while run.run.tracking == "pending":
        time.sleep(0.02)
    return {**json.loads(out.read_text()), RECORDED: time.perf_counter() - ended}


def plain(script: Path, out: Path, uri: str) -> dict[str, float]:
    """Run the program with ``python`` against a server; its seconds."""
    env = {**os.environ, "MLFLOW_TRACKING_URI": uri}
    subprocess.run([sys.executable, str(script)], env=env, capture_output=True, check=True)
    figures: dict[str, float] = json.loads(out.read_text())
    return figures


def main(rounds: int = 3) -> None:
    """Print the table."""
    ours: list[dict[str, float]] = []
    server: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        script, out = folder / "program.py", folder / "figures.json"
        script.write_text(f"OUT = {str(out)!r}\n" + _PROGRAM)
        os.environ.update(
            AMLTRAIN_HOME=f"{folder}/home",
            AMLTRAIN_QUEUE=f"{folder}/queue",
            AMLTRAIN_DISPATCHER_IDLE="60",
            MLFLOW_DISABLE_TELEMETRY="true",
        )
        os.chdir(folder)
        from jupyter_amltrain import api

        try:
            with tracking_server(folder) as uri:
                for number in range(rounds):
                    if number % 2:
                        server.append(plain(script, out, uri))
                    ours.append(job(script, out))
                    if not number % 2:
                        server.append(plain(script, out, uri))
        finally:
            api.close()
            os.chdir("/")
    print("MLflow in a job, and plain python with mlflow server (wall, without import mlflow)")
    for what, goal in GOALS.items():
        values, peer = [one[what] for one in ours], [one[what] for one in server]
        print(line(f"{what}, job", values, "s"))
        print(line(f"{what}, server", peer, "s"))
        print(verdict(f"{what}: job / server", statistics.median(values) / statistics.median(peer), goal))
    print(line(RECORDED, [one[RECORDED] for one in ours], "s"))


if __name__ == "__main__":
    main()
